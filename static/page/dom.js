// The few things that every panel does with the document. Text only ever goes in as text.

/** The element of this id; a missing one is a fault of the page. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** Sets an element's text, unless it is there already: screen readers take each change for news. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes a `data-` attribute, by which styles know of a state. */
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

/** Makes `parent` have exactly `count` children, by `create` and by removing the last ones; returns them. */
export function children(parent, count, create) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(create(parent.children.length));
  return parent.children;
}
