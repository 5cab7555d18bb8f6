// stock + lucky = initial: the proof that nothing was sold twice and nothing was lost; and the counters.

import { byId, setData, setText } from "../page/dom.js";
import { count, counted } from "../page/format.js";
import { fenceOf, guardOf } from "../page/guards.js";

const RULE = "Each unit is either left or sold, and sold once: stock and lucky must always add up to initial.";

export function showSum({ now, link }) {
  if (link.isUnsold) {
    const item = new URLSearchParams(location.search).get("item");
    setText(byId("sum-words"), `No sale was started.${startOf(item)}`);
  }
  if (!now) return;
  const { stock } = now;
  const isOverdrawn = now.oversold > 0;
  const isOdd = stock !== null && (isOverdrawn || !stock.balanced);
  const isOld = now.troubles.some(({ kind }) => kind === "redis-away");
  setData(byId("proof"), "state", stock === null || isOld ? "empty" : isOdd ? "wrong" : "right");
  setText(byId("stock"), count(stock?.stock));
  setText(byId("lucky"), count(stock?.lucky));
  setText(byId("initial"), count(stock?.initial));
  setText(byId("proof-sign"), stock === null || isOld ? "" : isOdd ? "✕" : "✓");
  setText(byId("proof-text"), isOld && stock ? "not known now" : proof(now));
  showWords(now);
  const fence = fenceOf(now, now.fence_on, now.demo ? now.demo.fence_kind : "lock");
  setData(byId("guarded"), "tone", now.troubles.some(({ kind }) => kind === "no-lock" || kind === "fence-off") && "warn");
  setText(byId("guarded"), `guard: ${guardOf(now).words}${fence ? `, fence: ${fence}` : ""}`);

  setText(byId("sold"), count(now.sold));
  // the current rate is not known while the connection is lost
  setText(byId("rate"), link.state === "lost" ? "–" : count(now.orders_per_second));
  setText(byId("waiting"), count(now.here.waiting));
  setText(byId("sold-out"), count(now.here.sold_out));
  setText(byId("refused"), count(now.here.refused));
}

function showWords({ troubles, stock, demo, item }) {
  const wrong = troubles.find(({ kind }) => kind === "unbalanced");
  const missing = noSale(troubles);
  const isFirst = stock === null && missing;
  // a run always sells the default item
  const isDefault = item === "default";
  const start = demo && isDefault ? " Choose a run to start one." : startOf(item);
  setData(byId("sum-words"), "tone", wrong && "bad");
  setText(byId("sum-words"), wrong?.text ?? (isFirst ? missing.text + start : RULE));
}

function startOf(item) {
  return ` PUT /stock${item === "default" ? "" : `?item=${item}`} starts a sale.`;
}

function noSale(troubles) {
  return troubles.find(({ kind }) => kind === "no-sale");
}

function proof({ stock, sold, oversold, troubles }) {
  if (stock === null) return noSale(troubles) ? "no sale yet" : "not known";
  if (oversold > 0) return `${counted(oversold, "unit")} sold too many`;
  if (!stock.balanced) {
    const gap = stock.initial - stock.stock - stock.lucky;
    return gap > 0 ? `${counted(gap, "unit")} lost` : `${counted(-gap, "unit")} too many: sold twice`;
  }
  if (stock.initial > 0 && stock.stock === 0) return "adds up, and sold out";
  return sold === 0 ? "adds up, nothing sold yet" : "it adds up";
}
