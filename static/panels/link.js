// Whether this page hears from its instance, and which one that is.

import { byId, setData, setText } from "../page/dom.js";

export function showLink(state) {
  const { link, now } = state;
  const instance = now?.instance ?? "this one";
  setData(byId("link"), "state", link.state);
  setText(byId("link-text"), words(link.state, instance, now !== null));
  setData(document.body, "link", link.state);
  setData(document.body, "known", now !== null);
  for (const name of document.querySelectorAll(".here")) setText(name, instance);
}

function words(state, instance, wasLive) {
  if (state === "live") return `live from instance ${instance}`;
  if (state === "connecting") return "connecting";
  return wasLive ? `instance ${instance} does not answer, trying again` : "no answer yet, trying again";
}
