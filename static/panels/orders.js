// The last orders of the ledger, newest first.

import { byId, children, make, setShown, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { guardOf } from "../page/guards.js";
import { makeTag, setTag } from "../page/instances.js";
import { roster } from "../page/roster.js";

const SHOWN = 10;
const LONGEST = 20;
const NO_LEDGER = "Under this guard the sale keeps no ledger: it counts units, but does not record orders.";

export function showOrders({ now }) {
  if (!now) return;
  const names = roster(now);
  const newest = now.orders.slice(-SHOWN).reverse();
  const rows = children(byId("orders"), newest.length, makeRow);
  newest.forEach((order, index) => {
    const [position, id, instance, token, left] = rows[index].children;
    setText(position, count(order.position));
    setText(id.firstElementChild, shortened(order.order));
    if (id.firstElementChild.title !== order.order) id.firstElementChild.title = order.order;
    setTag(instance.firstElementChild, names, order.instance);
    setText(token, count(order.token));
    setText(left, count(order.remaining));
  });
  setShown(byId("orders").parentElement, newest.length > 0);
  const { hasLedger } = guardOf(now);
  const before = newest.length > 0 ? " These orders are older." : "";
  setShown(byId("orders-none"), newest.length === 0 || !hasLedger);
  setText(byId("orders-none"), hasLedger ? "No order yet." : NO_LEDGER + before);
}

/** Ids of one client often begin alike, so this keeps their ends. The title has the whole id. */
function shortened(id) {
  return id.length <= LONGEST ? id : `${id.slice(0, 6)}…${id.slice(7 - LONGEST)}`;
}

function makeRow() {
  const row = make("tr");
  const id = make("td");
  id.append(make("span", "cut"));
  const instance = make("td");
  instance.append(makeTag());
  row.append(make("td", "n"), id, instance, make("td", "n"), make("td", "n"));
  return row;
}
