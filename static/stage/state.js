// A recorded sale at one moment: pure functions of its events, which demo/src/control/replay.rs describes.

/** The recording with a moment of its own for each event, so that each is a step, and with what is known at its end. */
export function prepare(recording) {
  let last = -1;
  const events = underTheKey(recording.events).map(([at, ...rest]) => {
    last = Math.max(at, last + 0.01);
    return [last, ...rest];
  });
  const end = Math.max(last, recording.took_us);
  return { ...recording, events, end, final: state(events, end) };
}

/**
 * A shop sells, for itself or for others, while it has the key; only when the buyer heard of it was measured. So a sale that
 * was heard of after the end of its tenure moves into it, and each sale has the moment when it was heard of as its last value.
 */
function underTheKey(events) {
  const { tenures, sleeps } = state(events, Infinity);
  const asked = new Map(events.filter(([, kind]) => kind === "asked").map(([at, , buyer]) => [buyer, at]));
  const late = new Map();
  const moved = events.map((event) => {
    const [at, kind, , , , number] = event;
    if (kind !== "sold") return event;
    const sale = [...event, at];
    const tenure = tenures.find((one) => one.number === number && one.to !== null && one.to < at);
    if (tenure) late.set(tenure, [...(late.get(tenure) ?? []), sale]);
    return sale;
  });
  for (const [{ shop, from, to }, sales] of late) {
    const awake = sleeps.filter((one) => one.shop === shop && one.to !== null && one.to < to).map((one) => one.to);
    const start = Math.max(from, ...awake);
    sales.forEach((sale, index) => {
      // not before its buyer has asked
      const earliest = Math.max(start, asked.get(sale[2]));
      sale[0] = earliest + (Math.max(0, to - earliest) * (index + 1)) / (sales.length + 1);
    });
  }
  return moved.sort(([one], [other]) => one - other);
}

/** Everything that can be said at the moment `t`, in microseconds from the first order. */
export function state(events, t) {
  const now = {
    /** The number of events so far. */
    step: 0,
    /** The last event, or null before the first one. */
    event: null,
    /** By buyer: `{ rank, shop, place, asked, is, at, unit }`. `rank` counts the buyers as they came, and `place` those of a shop. */
    buyers: new Map(),
    /** By unit: its owners as `{ buyer, shop, at, number, heard }`. More than one is what must not happen. */
    units: new Map(),
    /** By shop: `{ came, waiting, sold, asleep, read }`; `asleep` says how, and `read` is how many units it saw, or undefined. */
    shops: [],
    /** Who believed to have the key and when: `{ shop, number, from, to, bounced }`; `to` is null while it goes on. */
    tenures: [],
    /** The same of sleep: `{ shop, from, to }`. */
    sleeps: [],
    /** The refusals: `{ shop, number, fence, at }`. */
    bounces: [],
    /** The largest number that the store has seen. */
    fence: 0,
    sold: 0,
    none: 0,
    failed: 0,
    /** The units with more than one owner. */
    doubled: 0,
  };
  for (const event of events) {
    if (event[0] > t) break;
    now.step += 1;
    now.event = event;
    APPLY[event[1]]?.(now, ...event.slice(2), event[0]);
  }
  return now;
}

const APPLY = {
  asked(now, buyer, shop, at) {
    const door = shopOf(now, shop);
    now.buyers.set(buyer, { rank: now.buyers.size, shop, place: door.came, asked: at, is: "asked", at, unit: null });
    door.came += 1;
    door.waiting += 1;
  },
  sold(now, buyer, shop, unit, number, ...times) {
    const at = times.at(-1);
    answer(now, buyer, shop, "sold", at, unit);
    const owners = now.units.get(unit) ?? [];
    owners.push({ buyer, shop, at, number, heard: times[0] });
    now.units.set(unit, owners);
    shopOf(now, shop).sold += 1;
    now.fence = Math.max(now.fence, number ?? 0);
    if (owners.length === 2) now.doubled += 1;
  },
  read(now, shop, left) {
    shopOf(now, shop).read = left;
  },
  none: (now, buyer, shop, at) => answer(now, buyer, shop, "none", at),
  failed: (now, buyer, shop, at) => answer(now, buyer, shop, "failed", at),
  key: (now, shop, number, at) => now.tenures.push({ shop, number, from: at, to: null, bounced: false }),
  drop(now, shop, number, at) {
    const tenure = openTenure(now, shop, number);
    if (tenure) tenure.to = at;
  },
  bounced(now, shop, number, fence, at) {
    now.bounces.push({ shop, number, fence, at });
    const tenure = openTenure(now, shop, number);
    if (tenure) tenure.bounced = true;
  },
  asleep(now, shop, at, how = "z z z  asleep") {
    shopOf(now, shop).asleep = how;
    now.sleeps.push({ shop, from: at, to: null });
  },
  killed: (now, shop, at) => APPLY.asleep(now, shop, at, "killed"),
  awake(now, shop, at) {
    shopOf(now, shop).asleep = "";
    const sleep = now.sleeps.find((one) => one.shop === shop && one.to === null);
    if (sleep) sleep.to = at;
  },
};

function shopOf(now, shop) {
  now.shops[shop] ??= { came: 0, waiting: 0, sold: 0, asleep: "" };
  return now.shops[shop];
}

const openTenure = (now, shop, number) =>
  now.tenures.findLast((one) => one.shop === shop && one.number === number && one.to === null);

/** A buyer gets an answer. Another shop than the first one asked may give it: a buyer without an answer asks again. */
function answer(now, buyer, shop, is, at, unit = null) {
  const known = now.buyers.get(buyer) ?? { rank: now.buyers.size, shop, place: 0, asked: at, is: null };
  if (known.is === "asked") shopOf(now, known.shop).waiting -= 1;
  now.buyers.set(buyer, { ...known, by: shop, is, at, unit });
  now[is] += 1;
}

/** Who has the key, or had it last: the newest tenure, or null. An older one that goes on is only believed. */
export function holder({ tenures }) {
  return tenures.reduce((one, other) => (one && one.number > other.number ? one : other), null);
}

/** The unit with the most owners, the first of several, if any has more than one: `{ unit, owners }`. */
export function mostSold({ units }) {
  const doubled = Array.from(units, ([unit, owners]) => ({ unit, owners })).filter(({ owners }) => owners.length > 1);
  return doubled.sort((one, other) => other.owners.length - one.owners.length || one.unit - other.unit)[0];
}

/**
 * The film of a recording: its scenes `{ at, seconds, text }` take so many seconds each, whatever time they `took`. Returns its
 * length, the starts of its scenes, the scene and the moment of a position in it, and the position of a moment.
 */
export function film(scenes, end) {
  let length = 0;
  const parts = scenes.map((scene, index) => {
    const part = { ...scene, from: length, took: (scenes[index + 1]?.at ?? end) - scene.at };
    length += scene.seconds;
    return part;
  });
  const within = (share) => Math.min(1, Math.max(0, share));
  const sceneAt = (position) => parts.findLast(({ from }) => from <= position);
  return {
    length,
    marks: scenes.map(({ at }) => at),
    sceneAt,
    timeAt(position) {
      const { at, took, from, seconds } = sceneAt(position);
      return at + took * within((position - from) / seconds);
    },
    positionOf(t) {
      const { at, took, from, seconds } = parts.findLast(({ at }) => at <= t) ?? parts[0];
      return from + (took > 0 ? seconds * within((t - at) / took) : 0);
    },
  };
}
