// How the page changes its document. Text goes in as text, never as HTML.

/** The element of this id; a missing one is a fault of the page. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** Characters that are not seen, such as those that turn the direction of a text. */
const INVISIBLE = /[\p{C}\p{DI}\p{Zl}\p{Zp}]/gu;
const numberOf = (character) => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Sets an element's text, unless it is there already: screen readers announce each change. */
export function setText(element, text) {
  const shown = String(text ?? "").replace(INVISIBLE, numberOf);
  if (element.textContent !== shown) element.textContent = shown;
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

const CELLS = { tbody: ["tr", "td"], ol: ["li", "span"], dl: ["div", "dt", "dd"] };

/** Makes the children of `parent` show these rows. A cell is a text, or the sign of an instance, which is not read out. */
export function list(parent, rows) {
  const [row, ...tags] = CELLS[parent.localName] ?? ["p", "span"];
  const cell = (at) => document.createElement(tags[at] ?? tags.at(-1));
  const shown = children(parent, rows.length, () => document.createElement(row));
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
