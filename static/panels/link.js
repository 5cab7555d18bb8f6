// The connection to the instance, and what is wrong now, mostly in the server's words.

import { byId, list, say, setData, setText } from "../page/dom.js";
import { duration } from "../page/format.js";

/** Shown in other panels. */
const ELSEWHERE = ["no-sale", "oversold", "unbalanced", "no-lock", "fence-off", "holder-silent"];

export function showLink({ link, now }) {
  const instance = now?.instance ?? "this one";
  const isLost = link.state === "lost";
  setData(byId("link"), "state", link.state);
  setData(document.body, "link", link.state);
  say({
    "link-text": words(link, instance, now),
    "link-age": isLost && now ? `, figures ${duration(Date.now() - link.since)} old` : "",
  });
  for (const name of document.querySelectorAll(".here")) setText(name, instance);

  byId("lost").hidden = !isLost || link.isUnsold;
  say({
    "lost-text": now
      ? "This page has lost its instance and keeps trying. The figures are the last known ones."
      : "The instance does not answer, or has too many watchers. This page keeps trying.",
  });
  const alerts = link.state === "live" ? now.alerts.filter(({ kind }) => !ELSEWHERE.includes(kind)) : [];
  list(byId("told-alerts"), alerts.map(({ text }) => [{ sign: "✕", ink: "--bad" }, text]));
  alerts.forEach(({ kind }, index) => setData(byId("told-alerts").children[index], "kind", kind));
}

function words({ state, isUnsold }, instance, now) {
  if (state === "live") return `connected to instance ${instance}`;
  if (state === "connecting") return "connecting";
  if (isUnsold) return "no sale of this item";
  return now ? `${instance} does not answer` : "no answer yet, trying again";
}
