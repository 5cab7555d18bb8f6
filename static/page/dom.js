// How the page changes its document. Text goes in as text, never as HTML.

/** The element of this id; a missing one is a fault of the page. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** Sets an element's text, unless it is there already: screen readers announce each change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets the texts of the elements with these ids. */
export function say(texts) {
  for (const [id, text] of Object.entries(texts)) setText(byId(id), text);
}

/** Sets or removes a `data-` attribute, which styles depend on. */
export function setData(element, name, value) {
  if (value === undefined || value === null || value === false) delete element.dataset[name];
  else element.dataset[name] = value;
}

/** Makes `parent` have exactly `count` children, by `create` and by removing the last ones; returns them. */
export function children(parent, count, create) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(create(parent.children.length));
  return parent.children;
}

const CELLS = { tbody: ["tr", "td"], ol: ["li", "span"] };

/** Makes the children of `parent` show these rows. A cell is a text, or the sign of an instance, which is not read out. */
export function list(parent, rows) {
  const [row, cell] = (CELLS[parent.localName] ?? ["p", "span"]).map((tag) => () => document.createElement(tag));
  const shown = children(parent, rows.length, row);
  rows.forEach((cells, index) => {
    const elements = children(shown[index], cells.length, cell);
    cells.forEach((content, at) => setCell(elements[at], content));
  });
}

/** Makes an element show a text or a sign. */
export function setCell(element, content) {
  const { sign, ink } = content;
  setText(element, sign ?? content);
  element.ariaHidden = sign ? "true" : null;
  element.style.color = sign ? `var(${ink})` : "";
}
