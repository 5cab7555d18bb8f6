// The holder of the lock, the queue behind it, and the fence.

import { byId, children, make, setData, setShown, setText } from "../page/dom.js";
import { count, counted, duration } from "../page/format.js";
import { guardOf } from "../page/guards.js";
import { makeTag, setTag } from "../page/instances.js";
import { roster } from "../page/roster.js";

const NOT_WATCHED = "The queue of this lock is not watched here: /lock reads it when asked.";
const NO_QUEUE = "No instance queues for a lock.";
/** What the fence is, by whose it is. */
const LARGEST = { lock: "The largest token that the store has accepted.", store: "The number of the newest tenure, which the store counts." };
const STRANGER = "another program";
const RULE = "The claims in etcd form a queue, and the first one holds the lock. Each grant has a larger number than all before: its token.";

export function showLock(state) {
  const { now } = state;
  if (!now) return;
  const names = roster(now);
  const { isUnwatched } = guardOf(now);
  const lock = isUnwatched ? null : now.lock;
  // without the store no holder can serve
  const isStoreAway = now.troubles.some(({ kind }) => kind === "redis-away");
  const wrong = isStoreAway ? undefined : now.troubles.find(({ kind }) => kind === "holder-silent");
  setData(byId("lock-words"), "tone", wrong && "bad");
  setText(byId("lock-words"), wrong?.text ?? (lock ? RULE : isUnwatched ? NOT_WATCHED : NO_QUEUE));
  const lease = lock?.ttl_ms ? `, lease ${duration(lock.ttl_ms)}` : "";
  setText(byId("lock-name"), lock ? lock.name + lease : "");
  showHolder(lock, now, names, state.clock());
  showQueue(lock, names, state.clock());
  showFence(now);
}

function showHolder(lock, now, names, clock) {
  const holder = lock?.holder ?? null;
  const title = byId("holder-name");
  if (holder) {
    if (!title.firstElementChild) title.replaceChildren(makeTag());
    setTag(title.firstElementChild, names, holder.instance ?? STRANGER);
  } else {
    setText(title, !lock ? (guardOf(now).noHolder ?? "There is no lock.") : lock.known ? "none" : unknown(now));
  }
  setText(byId("holder-token"), count(holder?.token));
  setText(byId("holder-age"), holder ? duration(Math.max(0, clock - holder.since_ms)) : "–");
}

/** Why the holder is not known. */
function unknown({ troubles }) {
  const has = (wanted) => troubles.some(({ kind }) => kind === wanted);
  if (has("etcd-away")) return "not known: etcd does not answer";
  return has("lock-lost") ? "not known: this instance has no session with etcd" : "not known yet";
}

function showQueue(lock, names, clock) {
  const waiters = lock?.queue.filter((claim) => claim.token !== lock.holder?.token) ?? [];
  const rows = children(byId("queue"), waiters.length, makeRow);
  waiters.forEach((claim, index) => {
    const [tag, token, age] = rows[index].children;
    setTag(tag, names, claim.instance ?? STRANGER);
    setText(token, `token ${count(claim.token)}`);
    setText(age, duration(Math.max(0, clock - claim.since_ms)));
  });
  const none = byId("queue-none");
  setShown(none, waiters.length === 0);
  setText(none, !lock ? "–" : lock.known ? "empty" : "not known");
}

function makeRow() {
  const row = make("li", "queue-row");
  row.append(makeTag(), make("span", "queue-token"), make("span", "queue-age"));
  return row;
}

function showFence(now) {
  const { stock, fence_on: isOn, here, instance } = now;
  const isUsed = guardOf(now).hasTokens;
  setText(byId("fence-token"), isUsed ? (isOn ? count(stock?.fence?.token) : "off") : "–");
  const refused = here.stale_batches > 0 ? ` It has refused ${counted(here.stale_batches, "batch", "batches")} of ${instance}.` : "";
  const words = !isUsed
    ? "This guard has no tokens to compare."
    : isOn
      ? `${LARGEST[now.demo?.fence_kind ?? "lock"]} It refuses smaller ones.${refused}`
      : "The store accepts every batch, also from a holder that lost the lock.";
  setText(byId("fence-note"), words);
}
