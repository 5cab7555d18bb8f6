// The last tenures as a table. Filled only while it is open.

import { byId, children, make, setText } from "../page/dom.js";
import { count, duration } from "../page/format.js";
import { makeTag, setTag } from "../page/instances.js";
import { roster } from "../page/roster.js";

const SHOWN = 12;

export function showTenures(state) {
  if (!state.now || !byId("tenures-details").open) return;
  const names = roster(state.now);
  const newest = state.tenures.slice(-SHOWN).reverse();
  const rows = children(byId("tenures"), newest.length, makeRow);
  newest.forEach((tenure, index) => {
    const [token, instance, lasted, orders] = rows[index].children;
    setText(token, count(tenure.token));
    setTag(instance.firstElementChild, names, tenure.instance);
    const end = tenure.end_ms ?? state.clock();
    setText(lasted, duration(end - tenure.start_ms) + (tenure.end_ms === null ? ", goes on" : ""));
    setText(orders, ordersOf(tenure));
  });
}

/** The number of orders of a tenure; an estimate says so. */
export function ordersOf(tenure) {
  return (tenure.exact ? "" : "~") + count(tenure.orders);
}

function makeRow() {
  const row = make("tr");
  const instance = make("td");
  instance.append(makeTag());
  row.append(make("td"), instance, make("td", "n"), make("td", "n"));
  return row;
}
