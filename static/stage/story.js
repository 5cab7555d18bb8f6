// The chapters, and what the stage says of a recording while it is replayed.

import { count, counted, duration } from "../page/format.js";
import { mostSold } from "./state.js";

const LOCK = "etcd";
const SALE = { stock: 300, requests: 500, guard: LOCK, fence: true, fault: null };
const chapter = (number, id, title, ask, run, question) => ({ number, id, title, ask, question, run: run && { ...SALE, ...run } });
const TWICE = "Will a unit be sold twice?";

/**
 * The chapters in order. The first one is drawn, and each other one is a run on the real servers. `ask` leads to it from the end
 * of the chapter before. The reader may guess the answer to its question, a text or a function of the sleep and the lease.
 */
export const CHAPTERS = [
  chapter("1", "two", "Two buyers", "", null),
  chapter("2", "shared", "500 at once", "And 500 at once", {}, `500 buyers, 300 units, and now one key: only the shop that has it may sell. ${TWICE}`),
  chapter("3", "asleep", "The holder sleeps", "What if the holder falls asleep?", { fence: false, fault: "pause" },
    (sleep, lease) => `The holder of the key sleeps for ${sleep}. Its lease lasts ${lease}. Does the lock still hold?`),
  chapter("4", "checked", "The store checks", "Let the store check", { fault: "pause" },
    "Each grant of the key has a larger number, its token. The store remembers the largest. Does the sleeper’s late write still pass?"),
  chapter("5", "no-lock", "No lock", "And 500 without a lock?", { guard: "no-lock" }, `500 buyers, 300 units, and no key at all. ${TWICE}`),
  chapter("6", "local", "A lock in each shop", "Give each shop a lock", { guard: "local" }, "Each shop has a key of its own, and serves one buyer at a time. Is that enough?"),
  chapter("?", "atomic", "One step", "Why not without any lock?", { guard: "atomic-script" }, `No key, but the store itself reads, takes one off and writes, all in one step. ${TWICE}`),
];
/** A run of the visitor's own. */
export const OWN = { id: "own" };

/** What happens if two shops both read before either writes. */
export const DRAWING = {
  run: "drawing", guard: "no-lock", fence: true, fault: null, stock: 1, buyers: 2, shops: ["", ""], took_us: 3e6, sample: null,
  events: [[0, "asked", 0, 0], [1, "asked", 1, 1], [1e6, "read", 0, 1], [1e6, "read", 1, 1], [2e6, "sold", 0, 0, 1, null], [2e6, "sold", 1, 1, 1, null]],
};

export const isStoryOfSleep = ({ id }) => id === "asleep" || id === "checked";

/** The chapter that a recording tells. */
export function chapterOf({ run, guard, fence, fault, shops }) {
  if (run === DRAWING.run) return CHAPTERS[0];
  const isIt = ({ run: sale }) => sale && sale.guard === guard && sale.fault === fault && (guard !== LOCK || sale.fence === fence);
  // one shop alone shows nothing
  return (shops.length > 1 && CHAPTERS.find(isIt)) || OWN;
}

/** Where the recording comes from. */
export function sourceOf({ run, isLive, machine, isLinked }) {
  if (run === DRAWING.run) return "A drawing, not a run";
  if (isLive) return "Live: the real shops, now";
  return machine ? `Replay of a run on ${machine}` : isLinked ? "Replay of a run, from a link" : "Replay of a run on the real shops";
}

export const shopName = (shop) => `shop ${String.fromCharCode(65 + shop)}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const withToken = ({ number }) => `token ${count(number)}`;
const seconds = (us) => `${count(us / 1e6)} s`;

/** How long the holder sleeps, in words, if it does. */
export const sleepOf = ({ final: { sleeps: [sleep] } }) => (sleep?.to ? seconds(sleep.to - sleep.from) : null);

export const moment = (us) => duration(us / 1000);

/** The scenes of a recording: `{ at, seconds, text, isEnding }`, in order. */
export function scenes(recording, { id }) {
  const { events, end, final, buyers, stock, shops, sample, fence } = recording;
  const sales = events.filter((event) => event[1] === "sold").map(([at]) => at);
  const [first, last] = [sales[0] ?? end, sales.at(-1) ?? end];
  const ending = { text: endingOf(recording, id), isEnding: true };
  // what is in flight at the end comes to rest
  const endings = (at) => (at < end ? [{ at, seconds: 2, ...ending }, { at: end, seconds: 1, ...ending }] : [{ at, seconds: 3, ...ending }]);
  if (id === "two") return [
    { at: 0, seconds: 2, text: "Two buyers want one unit. Each asks another shop." },
    { at: 1e6, seconds: 2.5, text: "Both shops read “1 left”." },
    { at: 2e6, seconds: 2, text: "Both sell it, and both write “0 left”." },
    { at: 2.5e6, seconds: 3.5, ...ending },
  ];
  const crowd = sample ? `${count(final.buyers.size)} of ${count(buyers)} buyers are drawn here; they want` : `${count(buyers)} buyers want`;
  const sellers = { 1: "One shop sells", 2: "Two shops sell" }[shops.length] ?? `${count(shops.length)} shops sell`;
  const start = `${crowd} ${counted(stock, "unit")}. ${sellers} them, from one shelf.`;
  const [sleep] = final.sleeps;
  if (!sleep) return [{ at: 0, seconds: 2, text: start }, { at: first, seconds: 2.5, text: MIDDLE[id] }, ...endings(last)];
  const sleeper = capital(shopName(sleep.shop));
  const old = final.tenures.findLast((one) => one.shop === sleep.shop && one.from <= sleep.from);
  const next = final.tenures.find((one) => one.shop !== sleep.shop && one.from > sleep.from && one.from < (sleep.to ?? end));
  const other = next && capital(shopName(next.shop));
  const again = next && final.tenures.find((one) => one.shop === sleep.shop && one.number > next.number);
  // the store has remembered a token once something was written under it
  const written = next && sales.find((at) => at >= next.from);
  const [bounce] = final.bounces;
  const isKilled = !old || sleep.to === null;
  const fate = isKilled ? "is killed while it has the key" : `falls asleep for ${sleepOf(recording)} before it writes`;
  const list = [
    { at: 0, seconds: 1.5, text: isKilled ? start : `${sleeper} gets the key, with ${withToken(old)}.` },
    { at: sleep.from, seconds: 2, text: `${sleeper} ${fate}. The key is only lent${next ? ": its lease runs out" : ", and its lease lasts for now"}.` },
    next && { at: next.from, seconds: 1, text: `${other} gets the key, with ${withToken(next)}, and sells.` },
    written && { at: written, seconds: 1, text: `${other} gets the key, with ${withToken(next)}, and sells.${fence ? ` The store remembers ${count(next.number)}.` : ""}` },
    !isKilled && { at: sleep.to, seconds: 2, text: next ? `${sleeper} wakes up, believes in its key, and writes with ${withToken(old)}.` : `${sleeper} wakes up while its lease lasts, and writes.` },
    bounce && { at: bounce.at, seconds: 2.5, text: `The store has seen token ${count(bounce.fence)}, so it refuses ${withToken(bounce)}.` },
    bounce && again && { at: again.from, seconds: 1.5, text: `${sleeper} gets the key again, with ${withToken(again)}.` },
    ...endings(Math.max(last, sleep.to ?? 0)),
  ];
  // the second time, the reader knows the beginning
  const pace = id === "checked" ? 0.7 : 1;
  return list.filter(Boolean).filter(({ at }, index, all) => index === 0 || at >= all[index - 1].at)
    .map((scene) => ({ ...scene, seconds: scene.seconds * (scene.at < sleep.to ? pace : 1) }));
}

const MIDDLE = {
  own: "The shops sell.",
  "no-lock": "To sell, a shop reads how many are left, takes one off, and writes the result. Nobody makes the shops take turns.",
  local: "Each shop waits for its own key, but not for the other shop.",
  shared: "Only the shop with the key sells. Then it passes the key on.",
  atomic: "There is no key. The store itself reads, takes one off and writes, all in one step.",
};

/** The last sentence: what this run has shown. */
function endingOf({ final, guard, fault, fence, sample, stock, shops }, id) {
  const most = mostSold(final);
  const failed = final.failed > 0 ? ` ${capital(counted(final.failed, "buyer"))} got no answer.` : "";
  if (id === "two") return "One unit, two owners.";
  if (most) {
    const left = stock - most.unit + 1;
    const names = (owners) => [...new Set(owners.map(({ shop }) => shopName(shop)))].sort().join(" and ");
    const hold = `${count(final.sold)} buyers hold ${counted(final.units.size, "unit")}.`;
    const why = {
      "no-lock": `: ${names(most.owners)} read “${count(left)} left” and wrote ${count(left - 1)}, again and again. ${hold}`,
      local: `: ${shops.length === 2 ? "two" : count(shops.length)} keys open the same shelf. ${hold}`,
      asleep: `: ${names(final.sleeps)} sold again what was sold. The lock did not hold: ${counted(final.doubled, "unit")} ${final.doubled === 1 ? "has" : "have"} two owners.`,
    };
    return `Unit ${count(most.unit)} was sold to ${counted(most.owners.length, "buyer")}${why[id] ?? "."}${failed}`;
  }
  const drawn = sample ? "Among the buyers drawn here, no" : "No";
  const [bounce] = final.bounces;
  const refused = bounce ? `The store has seen token ${count(bounce.fence)}, so ${withToken(bounce)} bounces off. ` : "";
  const passes = final.tenures.length - 1;
  const [sleep] = final.sleeps;
  const isOvertaken = sleep && final.tenures.some(({ shop, from }) => shop !== sleep.shop && from > sleep.from && !(from > sleep.to));
  const inTime = !sleep ? "" : isOvertaken ? " This time." : ` ${capital(shopName(sleep.shop))} woke up in time.`;
  const after = bounce ? "" : {
    shared: passes > 0 ? ` The key was passed on ${{ 1: "once", 2: "twice" }[passes] ?? `${count(passes)} times`}.` : "",
    asleep: inTime,
    checked: inTime,
    atomic: ` So when is a lock needed? When the work is more than one call to one store. Run ${EXAMPLE}.`,
    own: guard === "no-lock" || guard === "local" || (fault === "pause" && !fence) ? " This time." : "",
  }[id] ?? "";
  return `${refused}${drawn} unit was sold twice.${after}${failed}`;
}

/** Takes a unit in Redis and writes a row in PostgreSQL, under one lock. */
const EXAMPLE = "crates/fenced-lock/examples/two_stores.rs";

/** What is to be said of a run that takes place now. */
export function liveText({ buyers, stock, shops, fault, lease }, { sleeps: [sleep], tenures }, isOver) {
  const crowd = `${count(buyers)} buyers come for ${counted(stock, "unit")}.`;
  if (!fault) return crowd;
  if (!sleep) return `${crowd} ${capital(shopName(shops.length - 1))} will get the key first.`;
  const [sleeper, next] = [capital(shopName(sleep.shop)), tenures.find((one) => one.shop !== sleep.shop && one.from > sleep.from)];
  if (sleep.to !== null || isOver) return `${sleeper} wakes up, and writes what it decided before.`;
  const fate = fault === "kill" ? `${sleeper} is dead` : `${sleeper} sleeps, and believes that it has the key`;
  return next ? `${fate}. ${capital(shopName(next.shop))} has it now, with ${withToken(next)}, and sells.`
    : `${fate}. Its lease of ${duration(lease)} runs out; until then nobody can sell.`;
}

/** Who got a unit, and why. */
export function soldTo({ guard, stock, sample, events }, { units, step, bounces: [bounce] }, unit) {
  const owners = units.get(unit) ?? [];
  if (owners.length === 0) return sample ? "None of the buyers drawn here." : step < events.length ? "Nobody yet." : "Nobody: it is still on the shelf.";
  const sold = `Sold to ${counted(owners.length, "buyer")}`;
  const left = stock - unit + 1;
  if (guard === "no-lock" || guard === "local") return `${sold}. Each time a shop read ${count(left)} and wrote ${count(left - 1)}.`;
  const [{ shop, number }] = owners;
  if (number === null) return `${sold}${guard.endsWith("-script") ? ": the store took it off in one step" : ""}.`;
  if (owners.length > 1) return `${sold}, under tokens ${owners.map((one) => count(one.number)).join(" and ")}. The store did not compare them.`;
  return `${sold}: ${shopName(shop)} had the key.${bounce ? ` Token ${count(bounce.number)} came too late, and was refused.` : ""}`;
}

/** An event in words, for the table and for the scrubber. */
export function words([, kind, ...rest]) {
  return WORDS[kind]?.(...rest) ?? kind;
}

const WORDS = {
  asked: (buyer, shop) => `buyer ${buyer + 1} asks ${shopName(shop)}`,
  sold: (buyer, shop, unit, number, heard) =>
    `${shopName(shop)} sells unit ${count(unit)} to buyer ${buyer + 1}${number === null ? "" : `, under token ${count(number)}; heard of at ${moment(heard)}`}`,
  none: (buyer, shop) => `${shopName(shop)} tells buyer ${buyer + 1} that nothing is left`,
  failed: (buyer, shop) => `buyer ${buyer + 1} gets no answer from ${shopName(shop)}`,
  read: (shop, left) => `${shopName(shop)} reads that ${counted(left, "unit is", "units are")} left`,
  key: (shop, number) => `${shopName(shop)} gets the key, token ${count(number)}`,
  drop: (shop, number) => `${shopName(shop)} gives up the key, token ${count(number)}`,
  bounced: (shop, number, fence) => `the store refuses token ${count(number)} of ${shopName(shop)}: it has seen ${count(fence)}`,
  asleep: (shop) => `${shopName(shop)} falls asleep`,
  killed: (shop) => `${shopName(shop)} is killed`,
  awake: (shop) => `${shopName(shop)} wakes up`,
};
