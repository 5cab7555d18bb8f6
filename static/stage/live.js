// Makes a recording of a run that still takes place, from what is known so far. Who got which unit is known when it is over: until
// then, buyers and units are only counted.

import { prepare } from "./state.js";

/** The most buyers that are drawn. */
const MOST_DOTS = 1000;

export class Live {
  #run;
  #heardAt;
  #lease;
  /** Who had the key: `{ at, shop, number }`. */
  #keys = [];
  /** The shop and the time of each sale that was noticed. */
  #sales = [];

  /** `lease` in milliseconds. */
  constructor(run, lease) {
    this.#lease = lease;
    this.hear(run);
  }

  /** Takes in the state of the run. */
  hear(run) {
    this.#run = run;
    this.#heardAt = performance.now();
    const { shop } = this.#keys.at(-1) ?? {};
    const sold = Math.min(run.sold, run.stock) * this.#scale();
    while (this.#sales.length < Math.floor(sold)) this.#sales.push([run.elapsed_ms * 1000, shop ?? this.#sales.length % run.shops.length]);
  }

  /** Takes in the state of the lock. */
  see(lock) {
    const { shops, began_ms: began } = this.#run;
    const shop = shops.indexOf(lock?.holder?.instance);
    if (shop < 0 || !began || this.#keys.at(-1)?.number === lock.holder.token) return;
    this.#keys.push({ at: Math.max(0, lock.holder.since_ms - began) * 1000, shop, number: lock.holder.token });
  }

  /** In seconds from the first order. */
  get position() {
    const { state, elapsed_ms: elapsed } = this.#run;
    return (elapsed + (state === "firing" ? performance.now() - this.#heardAt : 0)) / 1000;
  }

  get isOver() {
    return this.#run.state === "checking";
  }

  #scale() {
    return Math.min(1, MOST_DOTS / this.#run.requests);
  }

  recording() {
    const { id, requests, shops, victim, fault, hit_ms: hitMs, began_ms: began } = this.#run;
    const sleep = this.#run.sleep_seconds ?? this.#lease / 500 + 2;
    const hit = hitMs === null ? null : (hitMs - began) * 1000;
    const sleeper = shops.indexOf(victim);
    const events = [];
    const waiting = shops.map(() => []);
    // first come the buyers of the shop that the fault hits
    for (let buyer = 0; buyer < requests * this.#scale(); buyer += 1) {
      const shop = buyer % shops.length;
      if (hit === null && sleeper >= 0 && shop !== sleeper) continue;
      events.push([shop === sleeper ? 0 : (hit ?? 0), "asked", buyer, shop]);
      waiting[shop].push(buyer);
    }
    this.#keys.forEach(({ at, shop, number }, index) => {
      const before = this.#keys[index - 1];
      const isAsleep = before?.shop === sleeper && hit !== null && at > hit;
      if (before && !isAsleep) events.push([at, "drop", before.shop, before.number]);
      events.push([at, "key", shop, number]);
    });
    const wakes = hit + sleep * 1e6;
    if (hit !== null) events.push([hit, fault === "kill" ? "killed" : "asleep", sleeper]);
    if (hit !== null && fault === "pause") events.push([wakes, "awake", sleeper]);
    this.#sales.forEach(([at, shop], index) => {
      // a shop also sells to the buyers of others
      const queue = waiting[shop].length ? waiting[shop] : waiting.find(({ length }) => length);
      if (!queue) return;
      events.push([at, "sold", queue.shift(), shop, Math.floor(index / this.#scale()) + 1, this.#keys.findLast((key) => key.shop === shop)?.number ?? null]);
    });
    events.sort(([one], [other]) => one - other);
    const took = Math.max(2e6, this.position * 1e6, fault === "pause" ? wakes + 5e5 : 0);
    return prepare({ ...this.#run, run: id, isLive: true, lease: this.#lease, buyers: requests, dots: Math.ceil(requests * this.#scale()), took_us: took, sample: requests > MOST_DOTS ? { of: requests } : null, events });
  }
}
