// Units left and units sold over the last minute, and the initial stock as a mark.

import { byId, children, make, setData, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { Chart } from "../page/plot.js";

const LINES = [
  { key: "stock", text: "left", colour: "--ink" },
  { key: "sold", text: "sold", colour: "--accent", dash: [6, 3] },
];

export class StockChart extends Chart {
  constructor() {
    super(byId("stock-chart"));
  }

  /** The lines, the largest value, and what is marked; writes the key as well. */
  compose(state) {
    const { now, points } = state;
    const stock = now?.stock ?? null;
    const entries = children(byId("stock-key"), LINES.length, () => make("span", "key-entry"));
    LINES.forEach(({ key, text }, index) => {
      setData(entries[index], "line", key);
      const value = key === "stock" ? stock?.stock : now?.sold;
      setText(entries[index], `${text} ${stock ? count(value) : "–"}`);
    });
    const lines = LINES.map(({ key, colour, dash }) => ({
      colour,
      dash,
      isStep: true,
      values: points.filter((point) => Number.isFinite(point[key])).map((point) => [point.at_ms, point[key]]),
    }));
    const most = Math.max(0, ...lines.flatMap((line) => line.values.map(([, value]) => value)));
    const mark = stock ? { value: stock.initial, text: "initial" } : undefined;
    return { lines, mark, most };
  }
}
