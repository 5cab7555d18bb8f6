// The holder of the lock, the queue behind it, and the fence.

import { byId, list, say, setData } from "../page/dom.js";
import { count, counted, duration } from "../page/format.js";
import { guardOf } from "../page/guards.js";
import { named } from "../page/instances.js";

const RULE = "The claims in etcd form a queue, and the first one holds the lock. Each grant has a larger number than all before: its token.";

export function showLock(known) {
  const { now } = known;
  if (!now) return;
  const { hasTokens } = guardOf(now.guard);
  const { lock } = now;
  const alertOf = (wanted) => now.alerts.find(({ kind }) => kind === wanted);
  // without the store no holder can serve
  const wrong = !alertOf("redis-away") && alertOf("holder-silent");
  const holder = lock?.holder;
  const since = (claim) => duration(Math.max(0, known.clock() - claim.since_ms));
  const who = (claim) => named(now, claim.instance ?? "another program");
  setData(byId("lock-words"), "tone", wrong && "bad");
  const none = !lock ? "no lock" : lock.known ? "none" : "not known";
  list(byId("holder"), [holder ? who(holder) : [none]]);
  const waiters = lock?.queue.filter(({ token }) => token !== holder?.token) ?? [];
  list(byId("queue"), waiters.map((claim) => [...who(claim), `token ${count(claim.token)}`, since(claim)]));
  const refused = now.here.stale_batches > 0 ? ` It has refused ${counted(now.here.stale_batches, "batch", "batches")} of ${now.instance}.` : "";
  say({
    "lock-words": wrong?.text ?? (lock ? RULE : "No instance queues for a shared lock."),
    "lock-name": lock ? lock.name + (lock.ttl_ms ? `, lease ${duration(lock.ttl_ms)}` : "") : "",
    "holder-token": count(holder?.token),
    "holder-age": holder ? since(holder) : "–",
    "queue-none": waiters.length > 0 ? "" : !lock ? "–" : lock.known ? "empty" : "not known",
    "fence-token": !hasTokens ? "–" : now.fence_on ? count(now.stock?.fence?.token) : "off",
    "fence-note": !hasTokens ? "This guard has no tokens to compare."
      : now.fence_on ? `The store refuses a token that is smaller than this one.${refused}`
        : "The store accepts every batch, also from a holder that lost the lock.",
  });
}
