// The chapters, and what the stage says of a recording while it is replayed.

import { count, counted, duration } from "../page/format.js";
import { mostSold } from "./state.js";

/** Stands for the lock that the demo was started with. */
export const LOCK = "lock";
const USUAL = { stock: 300, requests: 500, guard: LOCK, fence: true, fault: null };

/** Each is one run on the real servers. `ask` leads to it from the end of the chapter before. */
export const CHAPTERS = [
  { id: "no-lock", title: "No lock", ask: "Take the lock away", run: { ...USUAL, guard: "no-lock" } },
  { id: "local", title: "A lock in each shop", ask: "Give each shop a lock", run: { ...USUAL, guard: "local" } },
  { id: "shared", title: "One shared lock", ask: "Share one lock", run: USUAL },
  { id: "asleep", title: "The holder falls asleep", ask: "What if the holder falls asleep?", run: { ...USUAL, fence: false, fault: "pause" } },
  { id: "checked", title: "The store checks the number", ask: "Let the store check the number", run: { ...USUAL, fault: "pause" } },
  { id: "atomic", title: "No lock, one step", ask: "Why not without any lock?", run: { ...USUAL, guard: "atomic-script" } },
];

/** The first sale, as a visitor finds it: without the words of the chapters. */
export const OPENING = { id: "opening", title: "The first sale" };
/** A run of the visitor's own. */
export const OWN = { id: "own", title: "Your own sale" };

const GUARDS = ["no-lock", "local", "atomic-script"];

/** The chapter that a recording tells; the first sale is that of the shared lock. */
export function chapterOf({ guard, fence, fault }) {
  const kind = GUARDS.includes(guard) ? guard : LOCK;
  const isIt = ({ run }) => run.guard === kind && run.fault === fault && (kind !== LOCK || run.fence === fence);
  return CHAPTERS.find(isIt) ?? OWN;
}

/** How the stage names a shop. */
export const shopName = (shop) => `shop ${String.fromCharCode(65 + shop)}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A moment of the recording, in words. */
export const moment = (us) => duration(us / 1000);

/** The scenes of a recording: `{ at, seconds, text }`, in order. The last one has the ending. */
export function scenes(recording, chapter) {
  const { events, end, final, buyers, stock, shops, sample } = recording;
  const sales = events.filter((event) => event[1] === "sold").map(([at]) => at);
  const [first, last] = [sales[0] ?? end, sales.at(-1) ?? end];
  const people = sample ? `${count(final.buyers.size)} of ${count(buyers)} people are drawn here; they want` : `${count(buyers)} people want`;
  const start = `${people} ${counted(stock, "unit")}, and ${shops.length === 2 ? "two" : count(shops.length)} shops sell them.`;
  const ending = { seconds: 3, text: endingOf(recording, chapter) };
  const [sleep] = final.sleeps;
  const old = sleep && final.tenures.findLast((one) => one.shop === sleep.shop && one.from <= sleep.from);
  const next = old && final.tenures.find((one) => one.shop !== sleep.shop && one.from > sleep.from);
  if (!old || !next || sleep.to === null) {
    return [{ at: 0, seconds: 3, text: start }, { at: first, seconds: 4, text: MIDDLE[chapter.id] ?? "" }, { at: last, ...ending }];
  }
  const [sleeper, other] = [capital(shopName(sleep.shop)), capital(shopName(next.shop))];
  const served = sales.findLast((at) => at < sleep.to && at > next.from) ?? next.from;
  const list = [
    { at: 0, seconds: 2, text: `${sleeper} takes the key, number ${count(old.number)}.` },
    { at: sleep.from, seconds: 4, text: `${sleeper} falls asleep with the key, before it writes. The key is only lent, and its time runs out.` },
    { at: next.from, seconds: 4, text: `${other} gets the key, now with number ${count(next.number)}, and sells.` },
    { at: served, seconds: 1, text: `${sleeper} still sleeps, and does not know.` },
    { at: sleep.to, seconds: 3, text: `${sleeper} wakes up. It still believes in its key, number ${count(old.number)}, and writes what it decided before.` },
    { at: Math.max(last, sleep.to), ...ending },
  ];
  return list.filter(({ at }, index) => index === 0 || at >= list[index - 1].at);
}

const ONE_KEY = "Only the shop with the key may sell. The shops pass it to and fro.";
const MIDDLE = {
  opening: ONE_KEY,
  own: "The shops sell.",
  "no-lock": "To sell, a shop reads how many are left, takes one off, and writes the result. Nobody makes the shops take turns.",
  local: "In each shop one buyer is served at a time, by the shop's own key. The other shop has another key.",
  shared: `${ONE_KEY} Each time it gets a larger number, its token.`,
  atomic: "There is no key. The store itself reads, takes one off and writes, all in one step.",
};

/** The last sentence: what this run has shown. */
function endingOf({ final, guard, fault, fence, sample, stock }, { id }) {
  const most = mostSold(final);
  const failed = final.failed > 0 ? ` ${capital(counted(final.failed, "person", "people"))} got no answer.` : "";
  if (most) {
    const named = `Unit ${count(most.unit)} was sold to ${counted(most.owners.length, "buyer")}`;
    const seen = stock - most.unit + 1;
    const who = [...new Set(most.owners.map(({ shop }) => shopName(shop)))].sort().join(" and ");
    const why = {
      "no-lock": `: ${who} read “${count(seen)} left” and wrote ${count(seen - 1)}, again and again. ${count(final.sold)} people hold ${counted(final.units.size, "unit")}.`,
      local: `: two keys open the same shelf. ${count(final.sold)} people hold ${counted(final.units.size, "unit")}.`,
      asleep: `. The sleeper sold again what was sold: ${counted(final.doubled, "unit")} ${final.doubled === 1 ? "has" : "have"} two owners.`,
    };
    return named + (why[id] ?? ".") + failed;
  }
  const drawn = sample ? "Among the people drawn here, no" : "No";
  const bounce = final.bounces[0];
  if (bounce) return `The store has seen ${count(bounce.fence)}, so number ${count(bounce.number)} bounces off. ${drawn} unit was sold twice.${failed}`;
  const passes = final.tenures.length - 1;
  const after = {
    shared: passes > 0 ? ` The key was passed on ${passes === 1 ? "once" : `${count(passes)} times`}.` : "",
    atomic: " So when is a lock needed? When the work is more than the store can do in one step.",
    own: guard === "no-lock" || guard === "local" || (fault === "pause" && !fence) ? " This time." : "",
  };
  return `${drawn} unit was sold twice.${after[id] ?? ""}${failed}`;
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
  key: (shop, number) => `${shopName(shop)} gets the key, number ${count(number)}`,
  drop: (shop, number) => `${shopName(shop)} gives up key ${count(number)}`,
  bounced: (shop, number, fence) => `the store refuses number ${count(number)} of ${shopName(shop)}: it has seen ${count(fence)}`,
  asleep: (shop) => `${shopName(shop)} falls asleep`,
  awake: (shop) => `${shopName(shop)} wakes up`,
};
