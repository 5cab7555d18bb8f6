// How the panels change the document. Text goes in as text, never as HTML.

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

/** Sets or removes a `data-` attribute, which styles depend on. */
export function setData(element, name, value) {
  if (value === undefined || value === null || value === false) {
    delete element.dataset[name];
  } else if (element.dataset[name] !== String(value)) {
    element.dataset[name] = String(value);
  }
}

/** Shows or hides an element. */
export function setShown(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Makes an element with a class and a text. */
export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Makes a radio button that looks like a button. */
export function makeSegment(name, value, text, isChecked) {
  const label = make("label", "segment");
  const radio = make("input");
  Object.assign(radio, { type: "radio", name, value, checked: isChecked });
  label.append(radio, make("span", "", text));
  return label;
}

/** Makes `parent` have exactly `count` children, by `create` and by removing the last ones; returns them. */
export function children(parent, count, create) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(create(parent.children.length));
  return parent.children;
}
