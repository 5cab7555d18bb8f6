// The connection to the instance, and its name.

import { byId, setData, setText } from "../page/dom.js";
import { duration } from "../page/format.js";
import { LOCKS } from "../page/guards.js";

export function showLink(state) {
  const { link, now } = state;
  const instance = now?.instance ?? "this one";
  setData(byId("link"), "state", link.state);
  setText(byId("link-text"), words(link, instance, now !== null));
  const isOld = link.state === "lost" && now !== null;
  setText(byId("link-age"), isOld ? `, figures ${duration(Date.now() - link.since)} old` : "");
  setData(document.body, "link", link.state);
  setText(byId("home"), LOCKS[now?.demo?.locks[0]]?.home ?? "etcd");
  for (const name of document.querySelectorAll(".here")) setText(name, instance);
}

function words({ state, isUnsold }, instance, wasLive) {
  if (state === "live") return `live from instance ${instance}`;
  if (state === "connecting") return "connecting";
  if (isUnsold) return "no sale of this item";
  return wasLive ? `${instance} does not answer` : "no answer yet, trying again";
}
