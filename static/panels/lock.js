// Who holds the lock now, who waits behind, and what the store would refuse.

import { byId, children, make, setData, setShown, setText } from "../page/dom.js";
import { count, duration } from "../page/format.js";
import { makeTag, setTag } from "../page/instances.js";
import { roster } from "../page/roster.js";

const WITHOUT = {
  "no-lock": "There is no lock: every instance reads and writes as it likes.",
  local: "Each process has a lock of its own. They do not know of each other.",
  "atomic-script": "There is no lock: the store's script is one step by itself.",
  "etcd-rpc": "Each order takes etcd's own lock for itself. Who holds it is not watched.",
  "etcd-recipe": "Each order queues in etcd for itself. Who holds the lock is not watched here.",
};
/** These queue in etcd, but with claims that this instance does not follow. */
const UNWATCHED = new Set(["etcd-rpc", "etcd-recipe"]);
const NOT_WATCHED = "Each order takes the lock for itself, and gives it back at once. That queue is not watched here.";
const NO_QUEUE = "Nobody queues in etcd, so nobody can be seen to hold a lock or to wait for it.";
const RULE = "The claims in etcd form a queue, and the first one holds the lock. Each grant has a larger number than all before: its token.";

export function showLock(state) {
  const { now } = state;
  if (!now) return;
  const names = roster(now);
  const isUnwatched = UNWATCHED.has(now.guard);
  const lock = isUnwatched ? null : now.lock;
  const wrong = now.troubles.find(({ kind }) => kind === "holder-silent");
  setData(byId("lock-words"), "tone", wrong && "bad");
  setText(byId("lock-words"), wrong?.text ?? (lock ? RULE : isUnwatched ? NOT_WATCHED : NO_QUEUE));
  const lease = lock?.ttl_ms ? `, lease ${duration(lock.ttl_ms)}` : "";
  setText(byId("lock-name"), lock ? lock.name + lease : "");
  showHolder(lock, now, names, state.clock());
  showQueue(lock, names, state.clock());
  showFence(now);
}

function showHolder(lock, { guard, troubles }, names, clock) {
  const card = byId("holder");
  const holder = lock?.holder ?? null;
  const title = byId("holder-name");
  setData(card, "state", holder ? "held" : !lock ? "without" : lock.known ? "none" : "unknown");
  if (holder) {
    if (!title.firstElementChild) title.replaceChildren(makeTag());
    setTag(title.firstElementChild, names, holder.instance ?? "somebody else");
  } else {
    setText(title, !lock ? (WITHOUT[guard] ?? "There is no lock in etcd.") : lock.known ? "nobody" : unknown(troubles));
  }
  setText(byId("holder-token"), count(holder?.token));
  setText(byId("holder-lease"), holder?.lease ?? "–");
  setText(byId("holder-age"), holder ? duration(Math.max(0, clock - holder.since_ms)) : "–");
}

/** Why nobody knows who holds the lock. */
function unknown(troubles) {
  const has = (wanted) => troubles.some(({ kind }) => kind === wanted);
  if (has("etcd-away")) return "not known: etcd does not answer";
  return has("lock-lost") ? "not known: this instance has no session with etcd" : "not known yet";
}

function showQueue(lock, names, clock) {
  const waiters = lock?.queue.filter((claim) => claim.token !== lock.holder?.token) ?? [];
  const rows = children(byId("queue"), waiters.length, makeRow);
  waiters.forEach((claim, index) => {
    const [tag, token, age] = rows[index].children;
    setTag(tag, names, claim.instance ?? "somebody else");
    setText(token, `token ${count(claim.token)}`);
    setText(age, duration(Math.max(0, clock - claim.since_ms)));
  });
  const none = byId("queue-none");
  setShown(none, waiters.length === 0);
  setText(none, !lock ? "–" : lock.known ? "nobody" : "not known");
}

function makeRow() {
  const row = make("li", "queue-row");
  row.append(makeTag(), make("span", "queue-token"), make("span", "queue-age"));
  return row;
}

function showFence({ stock, fence_on: isOn, guard, here, instance }) {
  const isUsed = guard === "etcd" || guard === "etcd-recipe";
  setData(byId("fence-card"), "state", !isUsed ? "none" : isOn ? "on" : "off");
  setText(byId("fence-token"), isUsed ? (isOn ? count(stock?.fence?.token) : "off") : "–");
  const refused = here.stale_batches > 0 ? ` It has refused ${count(here.stale_batches)} of ${instance}.` : "";
  const words = !isUsed
    ? "As it is guarded now, there are no tokens to compare."
    : isOn
      ? `The largest token that the store has seen. It refuses a smaller one.${refused}`
      : "The store takes whatever comes, from a holder that lost the lock as well.";
  setText(byId("fence-note"), words);
}
