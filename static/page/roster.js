// The instances, in an order that does not change: their colours and lanes depend on it.

/** The instances as `{ name, isUp }`: those of the demo first, then all others that were seen. */
export function roster(now) {
  const demo = now?.demo?.instances ?? [];
  const known = demo.map((one) => ({ name: one.instance, isUp: one.up }));
  const others = (now?.instances ?? []).filter((name) => !known.some((one) => one.name === name));
  return [...known, ...others.map((name) => ({ name, isUp: true }))];
}
