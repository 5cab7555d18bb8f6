// Units left and units sold over the last minute: the one falls as the other rises, and neither exceeds the initial.

import { byId, children, make, setData, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { Plot } from "../page/plot.js";

const LINES = [
  { key: "stock", text: "left", colour: "--ink" },
  { key: "sold", text: "sold", colour: "--accent", dash: [6, 3] },
];

export class StockChart {
  #plot = new Plot(byId("stock-chart"));
  #drawn = null;

  get isStale() {
    return this.#plot.surface.isStale;
  }

  set onStale(request) {
    this.#plot.surface.onStale = request;
  }

  /** Draws it, once for each message: it moves too little for more. Nothing of it moves without news. */
  draw(state) {
    const { now, points } = state;
    if (this.#drawn === now && !this.isStale) return false;
    this.#drawn = now;
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
    this.#plot.draw(state.clock(), lines, { mark, most });
    return false;
  }
}
