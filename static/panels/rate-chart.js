// Orders a second over the last minute, one line for each instance.

import { byId, children, make, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { colour, makeTag, place, setTag } from "../page/instances.js";
import { Chart } from "../page/plot.js";
import { roster } from "../page/roster.js";

/** Lines that lie upon each other stay visible. */
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

export class RateChart extends Chart {
  constructor() {
    super(byId("rate-chart"));
  }

  /** The lines, the largest value, and what is marked; writes the key as well. */
  compose(state) {
    const { now, points } = state;
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
    return { lines, most };
  }
}

function makeEntry() {
  const entry = make("span", "key-entry");
  entry.append(makeTag(), make("span", "key-value"));
  return entry;
}
