// Returns what is wrong with the page: the findings of axe-core, which must be loaded, and what it has no rule for. Events and
// owners that are scrolled out of view are left out: the table follows the moment of the replay.

// what stays at an edge of the window covers nothing there
scrollTo(0, 0);
const { violations, incomplete, passes } = await axe.run({ exclude: ["#events tr:not([aria-current])", ".owners li:nth-child(n + 3)"] }, {
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
});
const findings = (results) => results.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
// axe does not measure the contrast of texts of one character; that of all signs is measured below
const isLong = ({ any }) => !["nonBmp", "shortTextContent"].includes(any[0].data?.messageKey);
const unmeasured = incomplete.filter(({ id }) => id === "color-contrast")
  .map(({ id, nodes }) => ({ id, nodes: nodes.filter(isLong) }));
const faults = findings([...violations, ...unmeasured]);
const texts = passes.find(({ id }) => id === "color-contrast")?.nodes.length ?? 0;
if (texts < 50) faults.push(`the contrast of only ${texts} elements was measured`);

axe.setup();
const { color } = axe.commons;
const colourOf = (element, property) => {
  const colour = new color.Color();
  colour.parseString(getComputedStyle(element)[property]);
  return colour;
};
/** The colour behind an element: that of its first ancestor, or its own, that is not transparent. */
const behind = (element) => {
  const ground = colourOf(element, "backgroundColor");
  return ground.alpha > 0 || !element.parentElement ? ground : behind(element.parentElement);
};
const named = ({ id, textContent, localName }) => `${localName}#${id} ${textContent.trim().slice(0, 30)}`;
const shown = [...document.querySelectorAll("body, body *")].filter((element) => element.checkVisibility());
for (const element of shown) {
  const isSign = element.childElementCount === 0 && [...element.textContent.trim()].length === 1;
  const sign = color.getContrast(behind(element), colourOf(element, "color"));
  if (isSign && sign < 3) faults.push(`contrast of a sign: ${named(element)}`);
  const isControl = element.matches("button:not([aria-disabled=true]), input[type=number], select");
  const edges = [colourOf(element, "borderTopColor"), behind(element)];
  const edge = Math.max(...edges.map((colour) => color.getContrast(behind(element.parentElement), colour)));
  if (isControl && edge < 3) faults.push(`contrast of an edge: ${named(element)}`);
}
axe.teardown();
return faults;
