// Orders a second over the last minute, one line for each instance.

import { byId, children, make, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { colour, makeTag, place, setTag } from "../page/instances.js";
import { Plot } from "../page/plot.js";
import { roster } from "../page/roster.js";

/** Lines that lie upon each other stay visible. */
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

export class RateChart {
  #plot = new Plot(byId("rate-chart"));
  #drawn = null;

  get isStale() {
    return this.#plot.surface.isStale;
  }

  set onStale(request) {
    this.#plot.surface.onStale = request;
  }

  /** Draws it, once for each message. Nothing of it moves without news. */
  draw(state) {
    const { now, points } = state;
    if (this.#drawn === now && !this.isStale) return false;
    this.#drawn = now;
    const names = roster(now);
    const entries = children(byId("rate-key"), names.length, makeEntry);
    // a sale without a ledger does not say which instance sold
    const isSplit = now?.guard !== "none" && now?.guard !== "local";
    const lines = names.map(({ name }, index) => {
      const at = place(names, name);
      setTag(entries[index].firstElementChild, names, name);
      setText(entries[index].lastElementChild, count(isSplit ? (now.rates.by_instance[name] ?? 0) : undefined));
      const values = points.map((point) => [point.at_ms, point.rates?.[name] ?? 0]);
      return { colour: colour(at), dash: DASHES[at], values };
    });
    const most = Math.max(10, ...lines.flatMap((line) => line.values.map(([, value]) => value)));
    this.#plot.draw(state.clock(), lines, { most });
    return false;
  }
}

function makeEntry() {
  const entry = make("span", "key-entry");
  entry.append(makeTag(), make("span", "key-value"));
  return entry;
}
