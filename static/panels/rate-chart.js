// Orders a second over the last minute: one line for each instance, or one for all where no ledger tells them apart.

import { byId, children, make, setData, setShown, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { guardOf } from "../page/guards.js";
import { colour, makeTag, place, setTag } from "../page/instances.js";
import { Chart } from "../page/plot.js";
import { roster } from "../page/roster.js";

/** Lines on top of each other stay visible. */
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

export class RateChart extends Chart {
  constructor() {
    super(byId("rate-chart"));
  }

  /** The lines, the largest value, and what is marked; writes the key as well. */
  compose(state) {
    const isSplit = Boolean(guardOf(state.now).hasLedger);
    setShown(byId("rate-key"), isSplit);
    setShown(byId("rate-all"), !isSplit);
    const lines = isSplit ? this.#split(state) : this.#together(state);
    const most = Math.max(10, ...lines.flatMap((line) => line.values.map(([, value]) => value)));
    return { lines, most };
  }

  #split({ now, points, link }) {
    const names = roster(now);
    const entries = children(byId("rate-key"), names.length, makeEntry);
    return names.map(({ name }, index) => {
      const at = place(names, name);
      setTag(entries[index].firstElementChild, names, name);
      setText(entries[index].lastElementChild, link.state === "lost" ? "–" : count(now?.rates.by_instance[name] ?? 0));
      const values = points.map((point) => [point.at_ms, point.rates?.[name] ?? 0]);
      return { colour: colour(at), dash: DASHES[at], values };
    });
  }

  #together({ now, points, link }) {
    setText(byId("rate-all-key"), `all instances ${link.state === "lost" ? "–" : count(now.rates.total)}`);
    setData(byId("rate-all-key"), "line", "all");
    setText(byId("rate-all-words"), "Without a ledger, the instance that sold is not known.");
    return [{ colour: "--ink", values: points.map((point) => [point.at_ms, point.total ?? 0]) }];
  }
}

function makeEntry() {
  const entry = make("span", "key-entry");
  entry.append(makeTag(), make("span", "key-value"));
  return entry;
}
