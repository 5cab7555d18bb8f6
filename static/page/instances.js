// Each instance has one colour and one sign throughout the page, so that colour is not the only difference.

import { make, setData, setText } from "./dom.js";

const SIGNS = ["●", "■", "▲", "◆"];

/** The place of an instance among the known ones. From the fifth on, they share the looks of the first ones. */
export function place(instances, name) {
  const index = instances.findIndex((instance) => instance.name === name);
  return index < 0 ? null : index % SIGNS.length;
}

/** The sign of that place. */
export function sign(index) {
  return index === null ? "○" : SIGNS[index];
}

/** The name of the custom property with the colour of that place. */
export function colour(index) {
  return index === null ? "--ink-soft" : `--instance-${index + 1}`;
}

/** An empty tag for `setTag`. */
export function makeTag() {
  const tag = make("span", "tag");
  const mark = make("span", "tag-sign");
  mark.setAttribute("aria-hidden", "true");
  tag.append(mark, make("span", "tag-name"));
  return tag;
}

/** Makes the tag show the instance `name`. */
export function setTag(tag, instances, name) {
  const index = place(instances, name);
  setData(tag, "place", index === null ? "none" : index + 1);
  setText(tag.firstElementChild, sign(index));
  setText(tag.lastElementChild, name ?? "unknown");
}
