// The chapters, and what the stage says of a recording while it is replayed.

import { count, counted, duration } from "../page/format.js";
import { mostSold } from "./state.js";

const LOCK = "etcd";
const SALE = { stock: 300, requests: 500, guard: LOCK, fence: true, fault: null };
const chapter = (number, id, title, ask, run) => ({ number, id, title, ask, run: { ...SALE, ...run } });

/** Each is one run on the real servers. `ask` leads to it from the end of the chapter before. */
export const CHAPTERS = [
  chapter("1", "no-lock", "No lock", "Take the lock away", { guard: "no-lock" }),
  chapter("2", "local", "A lock in each shop", "Give each shop a lock", { guard: "local" }),
  chapter("3", "shared", "One shared lock", "Share one lock", {}),
  chapter("4", "asleep", "The holder falls asleep", "What if the holder falls asleep?", { fence: false, fault: "pause" }),
  chapter("5", "checked", "The store checks the number", "Let the store check the number", { fault: "pause" }),
  chapter("?", "atomic", "No lock, one step", "Why not without any lock?", { guard: "atomic-script" }),
];

/** The first sale, as a visitor finds it: without the words of the chapters. */
export const OPENING = { id: "opening" };
/** A run of the visitor's own. */
const OWN = { id: "own" };

/** The chapter that a recording tells. To a visitor who has seen no other one, the shared lock's is the opening. */
export function chapterOf({ guard, fence, fault }, isFirst) {
  const isIt = ({ run }) => run.guard === guard && run.fault === fault && (guard !== LOCK || run.fence === fence);
  const chapter = CHAPTERS.find(isIt) ?? OWN;
  return isFirst && chapter.id === "shared" ? OPENING : chapter;
}

export const shopName = (shop) => `shop ${String.fromCharCode(65 + shop)}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const numbered = ({ number }) => `number ${count(number)}`;

export const moment = (us) => duration(us / 1000);

/** The scenes of a recording: `{ at, seconds, text, isEnding }`, in order. */
export function scenes(recording, { id }) {
  const { events, end, final, buyers, stock, shops, sample, fence } = recording;
  const sales = events.filter((event) => event[1] === "sold").map(([at]) => at);
  const [first, last] = [sales[0] ?? end, sales.at(-1) ?? end];
  const people = sample ? `${count(final.buyers.size)} of ${count(buyers)} people are drawn here; they want` : `${count(buyers)} people want`;
  const sellers = { 1: "One shop sells", 2: "Two shops sell" }[shops.length] ?? `${count(shops.length)} shops sell`;
  const start = `${people} ${counted(stock, "unit")}. ${sellers} them, from one shelf.`;
  const ending = { text: endingOf(recording, id), isEnding: true };
  // what is in flight at the end comes to rest
  const endings = (at) => (at < end ? [{ at, seconds: 2, ...ending }, { at: end, seconds: 1, ...ending }] : [{ at, seconds: 3, ...ending }]);
  const [sleep] = final.sleeps;
  const next = sleep && final.tenures.find((one) => one.shop !== sleep.shop && one.from > sleep.from);
  if (!next) {
    const middle = (MIDDLE[id] ?? "").replace(final.tenures.length > 1 ? "" : TURNS, "");
    return [{ at: 0, seconds: 3, text: start }, { at: first, seconds: 4, text: middle }, ...endings(last)];
  }
  const [sleeper, other] = [capital(shopName(sleep.shop)), capital(shopName(next.shop))];
  const old = final.tenures.findLast((one) => one.shop === sleep.shop && one.from <= sleep.from);
  const again = final.tenures.find((one) => one.shop === sleep.shop && one.number > next.number);
  const served = sales.findLast((at) => at < sleep.to && at > next.from) ?? next.from;
  const [bounce] = final.bounces;
  const takesOver = { at: next.from, seconds: 4, text: `${other} gets the key, now with ${numbered(next)}, and sells.${fence ? ` The store remembers ${count(next.number)}.` : ""}` };
  const list = !old || sleep.to === null ? [
    { at: 0, seconds: 3, text: start },
    { at: sleep.from, seconds: 4, text: `${sleeper} is killed while it has the key. Nobody can sell until the time of the key runs out.` },
    takesOver,
    ...endings(last),
  ] : [
    { at: 0, seconds: 2, text: `${sleeper} takes the key, ${numbered(old)}.` },
    { at: sleep.from, seconds: 4, text: `${sleeper} falls asleep with the key, before it writes. The key is only lent, and its time runs out.` },
    takesOver,
    { at: served, seconds: 2, text: `${sleeper} still sleeps. It does not know that its time has run out.` },
    { at: sleep.to, seconds: 3, text: `${sleeper} wakes up. It still believes in its key, ${numbered(old)}, and writes what it decided before.` },
    bounce && { at: bounce.at, seconds: 3, text: `The store has seen ${count(bounce.fence)}, so it refuses ${numbered(bounce)}.` },
    bounce && again && { at: again.from, seconds: 2, text: `${sleeper} gets the key again, with ${numbered(again)}.` },
    ...endings(Math.max(last, sleep.to)),
  ];
  return list.filter(Boolean).filter(({ at }, index, all) => index === 0 || at >= all[index - 1].at);
}

const TURNS = " The shops pass it to and fro.";
const ONE_KEY = `Only the shop with the key may sell.${TURNS}`;
const MIDDLE = {
  opening: ONE_KEY,
  own: "The shops sell.",
  "no-lock": "To sell, a shop reads how many are left, takes one off, and writes the result. Nobody makes the shops take turns.",
  local: "Each shop has a key of its own, and serves one buyer at a time. It does not wait for the other shop.",
  shared: `${ONE_KEY} Each time it gets a larger number, its token.`,
  atomic: "There is no key. The store itself reads, takes one off and writes, all in one step.",
};

/** The last sentence: what this run has shown. */
function endingOf({ final, guard, fault, fence, sample, stock, shops }, id) {
  const most = mostSold(final);
  const failed = final.failed > 0 ? ` ${capital(counted(final.failed, "person", "people"))} got no answer.` : "";
  if (most) {
    const left = stock - most.unit + 1;
    const names = (owners) => [...new Set(owners.map(({ shop }) => shopName(shop)))].sort().join(" and ");
    const hold = `${count(final.sold)} people hold ${counted(final.units.size, "unit")}.`;
    const sleeper = names(final.sleeps);
    const why = {
      "no-lock": `: ${names(most.owners)} read “${count(left)} left” and wrote ${count(left - 1)}, again and again. ${hold}`,
      local: `: ${shops.length === 2 ? "two" : count(shops.length)} keys open the same shelf. ${hold}`,
      asleep: `: ${sleeper} sold again what was sold. ${counted(final.doubled, "unit")} ${final.doubled === 1 ? "has" : "have"} two owners.`,
    };
    return `Unit ${count(most.unit)} was sold to ${counted(most.owners.length, "buyer")}${why[id] ?? "."}${failed}`;
  }
  const drawn = sample ? "Among the people drawn here, no" : "No";
  const [bounce] = final.bounces;
  const refused = bounce ? `The store has seen ${count(bounce.fence)}, so ${numbered(bounce)} bounces off. ` : "";
  const passes = final.tenures.length - 1;
  const after = bounce ? "" : {
    shared: passes > 0 ? ` The key was passed on ${{ 1: "once", 2: "twice" }[passes] ?? `${count(passes)} times`}.` : "",
    atomic: " So when is a lock needed? When the work is more than the store can do in one step.",
    own: guard === "no-lock" || guard === "local" || (fault === "pause" && !fence) ? " This time." : "",
  }[id] ?? "";
  return `${refused}${drawn} unit was sold twice.${after}${failed}`;
}

/** Who got a unit, and why. */
export function soldTo({ guard, stock, sample, events }, { units, step, bounces: [bounce] }, unit) {
  const owners = units.get(unit) ?? [];
  if (owners.length === 0) return sample ? "None of the people drawn here." : step < events.length ? "Nobody yet." : "Nobody: it is still on the shelf.";
  const sold = `Sold to ${counted(owners.length, "buyer")}`;
  const left = stock - unit + 1;
  if (guard === "no-lock" || guard === "local") return `${sold}. Each time a shop read ${count(left)} and wrote ${count(left - 1)}.`;
  const [{ shop, number }] = owners;
  if (number === null) return `${sold}${guard.endsWith("-script") ? ": the store took it off in one step" : ""}.`;
  if (owners.length > 1) return `${sold}, under ${owners.map((one) => count(one.number)).join(" and ")}. The store did not compare the numbers.`;
  return `${sold}: ${shopName(shop)} had the key.${bounce ? ` Number ${count(bounce.number)} came too late, and was refused.` : ""}`;
}

/** An event in words, for the table and for the scrubber. */
export function words([, kind, ...rest]) {
  return WORDS[kind]?.(...rest) ?? kind;
}

const WORDS = {
  asked: (buyer, shop) => `buyer ${buyer + 1} asks ${shopName(shop)}`,
  sold: (buyer, shop, unit, number, heard) =>
    `${shopName(shop)} sells unit ${count(unit)} to buyer ${buyer + 1}${number === null ? "" : `, under number ${count(number)}; heard of at ${moment(heard)}`}`,
  none: (buyer, shop) => `${shopName(shop)} tells buyer ${buyer + 1} that nothing is left`,
  failed: (buyer, shop) => `buyer ${buyer + 1} gets no answer from ${shopName(shop)}`,
  read: (shop, left) => `${shopName(shop)} reads that ${counted(left, "unit is", "units are")} left`,
  key: (shop, number) => `${shopName(shop)} gets the key, number ${count(number)}`,
  drop: (shop, number) => `${shopName(shop)} gives up key ${count(number)}`,
  bounced: (shop, number, fence) => `the store refuses number ${count(number)} of ${shopName(shop)}: it has seen ${count(fence)}`,
  asleep: (shop) => `${shopName(shop)} falls asleep`,
  killed: (shop) => `${shopName(shop)} is killed`,
  awake: (shop) => `${shopName(shop)} wakes up`,
};
