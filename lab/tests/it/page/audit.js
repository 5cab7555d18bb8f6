// Finds texts that stand out too little from what is behind them, and ids that are there twice. WCAG 2.2, AA:
// 4.5 to 1, or 3 to 1 for large text, and for the edges of what one can use.

const parse = (colour) => {
  const parts = colour.match(/[0-9.]+/g).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
};
const over = (top, bottom) => top.rgb.map((part, index) => part * top.alpha + bottom[index] * (1 - top.alpha));
const luminance = (rgb) => {
  const [red, green, blue] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const contrast = (one, other) => {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
};
/** The colour behind an element: the first opaque one of its ancestors, with those before it laid upon. */
const behind = (element) => {
  const layers = [];
  for (let one = element; one; one = one.parentElement) {
    const ground = parse(getComputedStyle(one).backgroundColor);
    if (ground.alpha > 0) layers.push(ground);
    if (ground.alpha === 1) break;
  }
  return layers.reverse().reduce((ground, layer) => over(layer, ground), [255, 255, 255]);
};
const named = (element) => `${element.tagName}#${element.id}.${element.className} "${element.textContent.trim().slice(0, 30)}"`;

const faults = [];
let texts = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(".hidden, noscript, .skip")) continue;
  const style = getComputedStyle(element);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  // a disabled control may be faint
  if (element.closest("label")?.querySelector("input:disabled")) continue;
  const ground = behind(element);
  const ratio = contrast(over(parse(style.color), ground), ground);
  texts += 1;
  const needed = isLarge || element.closest("[aria-hidden=true]") ? 3 : 4.5;
  if (ratio < needed) faults.push(`${named(element)}: contrast ${ratio.toFixed(2)}`);
}
for (const control of document.querySelectorAll("button:not([aria-disabled=true]), input[type=number]")) {
  if (!control.checkVisibility()) continue;
  const style = getComputedStyle(control);
  const outside = behind(control.parentElement);
  const edge = Math.max(contrast(parse(style.borderTopColor).rgb, outside), contrast(behind(control), outside));
  if (edge < 3) faults.push(`${named(control)}: its edge ${edge.toFixed(2)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids)) {
  if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`the id ${id} is there twice`);
}
if (texts < 50) faults.push(`only ${texts} texts were looked at`);
return faults;
