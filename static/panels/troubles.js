// What is wrong now, in words. The sentences are the server's, but for the one that it cannot send.

import { byId, children, make, setData, setText } from "../page/dom.js";
import { listed } from "../page/format.js";

/** What other panels say where it belongs. A banner besides would only push the page down. */
const ELSEWHERE = new Set(["oversold", "unbalanced", "no-lock", "fence-off", "holder-silent"]);
/** Kinds that are the beginning of everything, and not a fault. */
const TONES = { "no-sale": "info" };
const SIGNS = { info: "i", bad: "✕" };

export function showTroubles(state) {
  const told = state.link.state === "live" ? state.now.troubles.filter(({ kind }) => !ELSEWHERE.has(kind)) : [];
  const troubles = [...connectionTrouble(state), ...told];
  const rows = children(byId("troubles"), troubles.length, makeRow);
  troubles.forEach((trouble, index) => {
    const tone = TONES[trouble.kind] ?? "bad";
    setData(rows[index], "tone", tone);
    setData(rows[index], "kind", trouble.kind);
    setText(rows[index].firstElementChild, SIGNS[tone]);
    setText(rows[index].lastElementChild, trouble.text);
  });
}

function connectionTrouble({ link, now }) {
  if (link.state !== "lost") return [];
  const others = now?.demo?.instances.filter((one) => !one.here && one.up).map((one) => one.url) ?? [];
  const elsewhere = others.length > 0 ? ` The sale goes on elsewhere: ${listed(others)}.` : "";
  const since = now ? " What you see is how it was when the connection broke." : "";
  const text = `This page has lost its connection and keeps trying.${since}${elsewhere}`;
  return [{ kind: "connection", text }];
}

function makeRow() {
  const row = make("p", "trouble");
  const sign = make("span", "trouble-sign");
  sign.setAttribute("aria-hidden", "true");
  row.append(sign, make("span", "trouble-text"));
  return row;
}
