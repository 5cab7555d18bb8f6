// Adapts the words of the page to the lock of the sale.

import { setText } from "../page/dom.js";
import { LOCKS, STORE_TOKEN } from "../page/guards.js";

const parts = [...document.querySelectorAll("[data-words]")];
/** The words of the document are those for etcd. */
const usual = parts.map((part) => part.textContent);

export function showWords({ now }) {
  const { locks: [lock] = [], fence_kind: fence } = now?.demo ?? {};
  const words = { token: fence === "store" ? STORE_TOKEN : undefined, ...LOCKS[lock] };
  parts.forEach((part, index) => setText(part, words[part.dataset.words] ?? usual[index]));
}
