// The time of an order at this instance: percentiles, as numbers and as bars on a logarithmic scale.

import { byId, children, make, setText } from "../page/dom.js";
import { count, duration } from "../page/format.js";

const ROWS = ["p50", "p90", "p99", "max"];
/** The scale begins at a tenth of a millisecond and ends at ten seconds: five powers of ten. */
const [FROM_MS, POWERS] = [0.1, 5];

export function showLatency({ now }) {
  if (!now) return;
  const latency = now.latency_ms;
  setText(
    byId("latency-note"),
    latency
      ? `${count(latency.count)} at ${now.instance} in the last ${latency.window_s} s. p99: 99 of 100 took no longer.`
      : `None at ${now.instance} in the last seconds.`,
  );
  const rows = children(byId("latency"), ROWS.length, makeRow);
  ROWS.forEach((key, index) => {
    const ms = latency?.[key];
    const [, value] = rows[index].children;
    const [number, track] = value.children;
    setText(number, duration(ms));
    const share = latency ? Math.log10(Math.max(ms, FROM_MS) / FROM_MS) / POWERS : 0;
    track.firstElementChild.style.transform = `scaleX(${Math.min(1, Math.max(latency ? 0.01 : 0, share))})`;
  });
}

function makeRow(index) {
  const row = make("div", "latency-row");
  const value = make("dd");
  const track = make("span", "latency-track");
  track.setAttribute("aria-hidden", "true");
  track.append(make("span", "latency-bar"));
  value.append(make("span", "latency-value"), track);
  row.append(make("dt", "", ROWS[index]), value);
  return row;
}
