// Each instance has one colour and one sign throughout the page, so that colour is not the only difference.

const SIGNS = ["●", "■", "▲", "◆"];

/** The looks of the instance in this place. From the fifth on, they share those of the first ones. */
export function looks(place) {
  const index = place % SIGNS.length;
  return index < 0 ? { sign: "○", ink: "--ink-soft" } : { sign: SIGNS[index], ink: `--instance-${index + 1}` };
}

/** The sign and the name of an instance, as cells. The order of the instances does not change: first those of the demo. */
export function named(now, name) {
  const known = new Set([...(now.demo?.instances ?? []).map(({ instance }) => instance), ...now.instances]);
  return [looks([...known].indexOf(name)), name ?? "unknown"];
}
