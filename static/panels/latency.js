// The time of an order at this instance.

import { byId, children, make, setText } from "../page/dom.js";
import { count, duration } from "../page/format.js";

const ROWS = ["p50", "p90", "p99", "max"];

export function showLatency({ now }) {
  if (!now) return;
  const latency = now.latency_ms;
  setText(
    byId("latency-note"),
    latency
      ? `Time of an order: ${count(latency.count)} at ${now.instance} in the last ${latency.window_s} s. p99: 99 of 100 took no longer.`
      : `Time of an order: none at ${now.instance} in the last seconds.`,
  );
  const rows = children(byId("latency"), ROWS.length, (index) => {
    const row = make("div");
    row.append(make("dt", "", ROWS[index]), make("dd"));
    return row;
  });
  ROWS.forEach((key, index) => setText(rows[index].lastElementChild, duration(latency?.[key])));
}
