// The sale in numbers: stock + lucky = initial is the proof that nothing was sold twice and nothing was lost.

import { byId, list, say, setData } from "../page/dom.js";
import { clock, count, counted } from "../page/format.js";
import { guardOf } from "../page/guards.js";

const RULE = "Each unit is either left or sold, and sold once: stock and lucky must always add up to initial.";
const NOTES = 8;

export function showSale({ now, link }) {
  const item = new URLSearchParams(location.search).get("item");
  if (link.isUnsold) say({ "sum-words": `No sale was started.${startOf(item)}` });
  if (!now) return;
  const { stock, here, alerts } = now;
  const alertOf = (...wanted) => alerts.find(({ kind }) => wanted.includes(kind));
  const missing = alertOf("no-sale");
  const wrong = alertOf("unbalanced");
  const isKnown = stock !== null && !alertOf("redis-away");
  const isRight = isKnown && now.oversold <= 0 && stock.balanced;
  setData(byId("proof"), "tone", isKnown && (isRight ? "good" : "bad"));
  setData(byId("sum-words"), "tone", wrong && "bad");
  setData(byId("guarded"), "tone", alertOf("no-lock", "fence-off") && "warn");
  const { words, hasTokens } = guardOf(now.guard);
  const shown = { stock: stock?.stock, lucky: stock?.lucky, initial: stock?.initial, waiting: here.waiting,
    // the current rate is not known while the connection is lost
    rate: link.state === "lost" ? undefined : now.orders_per_second, "sold-out": here.sold_out, refused: here.refused };
  for (const [id, number] of Object.entries(shown)) say({ [id]: count(number) });
  say({
    guarded: `guard: ${words}${hasTokens ? `, fence ${now.fence_on ? "on" : "off"}` : ""}`,
    "proof-sign": isKnown ? (isRight ? "✓" : "✕") : "",
    "proof-text": isKnown ? proof(now) : stock ? "not known now" : missing ? "no sale yet" : "not known",
    // a run always sells the default item
    "sum-words": wrong?.text ?? (missing && !stock ? missing.text + (now.demo && !item ? " Choose a run to start one." : startOf(item)) : RULE),
  });
}

const startOf = (item) => ` PUT /stock${item ? `?item=${item}` : ""} starts a sale.`;

function proof({ stock, sold, oversold }) {
  if (oversold > 0) return `${counted(oversold, "unit")} sold too many`;
  const gap = stock.initial - stock.stock - stock.lucky;
  if (!stock.balanced) return gap > 0 ? `${counted(gap, "unit")} lost` : `${counted(-gap, "unit")} too many: sold twice`;
  if (stock.initial > 0 && stock.stock === 0) return stock.units.held > 0 ? "adds up, the rest is held" : "adds up, and sold out";
  return sold === 0 ? "adds up, nothing sold yet" : "it adds up";
}

/** What happened in the demo, newest first. */
export function showNotes({ now }) {
  byId("happened").hidden = !now?.demo;
  const notes = (now?.demo?.notes ?? []).slice(-NOTES).reverse();
  list(byId("notes"), notes.map(({ at_ms, text }) => [clock.format(at_ms), text]));
  say({ "notes-none": notes.length > 0 ? "" : "Nothing unusual." });
}
