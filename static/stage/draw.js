// Draws a moment of a recorded sale on one canvas: buyers as dots, shops, the key, the shelf, and who believed what.

import { count } from "../page/format.js";
import { colour, sign } from "../page/instances.js";
import { moment } from "./story.js";

/** How long a dot flies, in seconds of the film. */
export const FLIGHT = 0.7;
/** The most squares on the shelf; above, one stands for several units. */
const MOST_SQUARES = 1000;
const [LANE, LANE_GAP, AXIS, EDGE] = [20, 4, 18, 8];

/** The places of everything in a canvas of this size. */
export function layout({ width, height, dots, stock, shops, lanes }) {
  const bottom = height - (lanes ? shops * (LANE + LANE_GAP) + AXIS : 0);
  const isWide = width >= 620;
  const gap = isWide ? 36 : 10;
  const perSquare = Math.max(1, Math.ceil(stock / MOST_SQUARES));
  const squares = Math.ceil(stock / perSquare);
  const places = { isWide, perSquare, squares, width, height, bottom };
  const head = 24;
  if (isWide) {
    const [crowd, shelf] = [width * 0.2, width * 0.38];
    const column = { x: crowd + gap, w: width - crowd - shelf - 2 * gap - 44 };
    const high = (bottom - gap / 2 * (shops - 1) - 4) / shops;
    places.crowd = { x: 0, y: head, w: crowd, h: bottom - head - 4 };
    places.shops = row(shops, (index) => ({ ...column, y: index * (high + gap / 2) + 2, h: high }));
    places.shelf = { x: width - shelf, y: head, w: shelf, h: bottom - head - 4 };
    places.gate = { x: width - shelf - 24, y: 4, w: 0, h: bottom - 8 };
  } else {
    const crowd = Math.round(bottom * 0.16);
    const wide = (width - gap * (shops - 1)) / shops;
    const high = Math.round(bottom * 0.34);
    places.crowd = { x: 0, y: 18, w: width, h: crowd };
    places.shops = row(shops, (index) => ({ x: index * (wide + gap), y: crowd + 28, w: wide, h: high }));
    const top = crowd + high + 62;
    places.shelf = { x: 0, y: top, w: width, h: bottom - top - 4 };
    places.gate = { x: 4, y: top - 26, w: width - 8, h: 0 };
  }
  places.home = grid(places.crowd, dots, isWide ? 11 : 9);
  places.rooms = places.shops.map(({ x, y, w, h }) => grid({ x: x + 10, y: y + 42, w: w - 20, h: h - 70 }, Math.ceil(dots / shops) + 1, 10));
  places.square = grid(places.shelf, squares, 46);
  return places;
}

const row = (length, make) => Array.from({ length }, (_, index) => make(index));

/** A grid of `count` cells in a box, as large as they fit: `at(index)` is the upper left corner of a cell. */
function grid({ x, y, w, h }, count, most) {
  let size = Math.min(most, Math.sqrt((w * h) / Math.max(1, count)));
  const fits = (size) => Math.floor(w / size) * Math.floor(h / size) >= count;
  while (!fits(size) && size > 1) size *= 0.985;
  const columns = Math.max(1, Math.floor(w / size));
  return { size, columns, at: (index) => [x + (index % columns) * size, y + Math.floor(index / columns) * size] };
}

/** The unit of the square at this place, or null. */
export function unitAt(places, x, y) {
  const { size } = places.square;
  for (let index = 0; index < places.squares; index += 1) {
    const [left, top] = places.square.at(index);
    if (x >= left && x < left + size && y >= top && y < top + size) return index * places.perSquare + 1;
  }
  return null;
}

/**
 * Draws `now`. `flown(at)` says how far what began at that moment has come, from 0 to 1; `chosen` is the unit whose owners
 * are listed; `position` and `film` place the moment in the lanes.
 */
export function draw(surface, places, scene) {
  const frame = surface.begin();
  if (!frame) return;
  const brush = { pen: frame.pen, style: (name) => surface.style(name), font: (size, weight) => surface.font(size, weight) };
  drawHeadings(brush, places, scene);
  drawShops(brush, places, scene);
  drawShelf(brush, places, scene);
  if (scene.gate) drawGate(brush, places, scene);
  drawBuyers(brush, places, scene);
  drawDoings(brush, places, scene);
  drawKeys(brush, places, scene);
  if (scene.lanes) drawLanes(brush, places, scene);
}

function text({ pen, style, font }, words, x, y, { size = 12, weight = 400, ink = "--ink-soft", align = "left" } = {}) {
  pen.font = font(size, weight);
  pen.fillStyle = style(ink);
  pen.textAlign = align;
  pen.textBaseline = "alphabetic";
  pen.fillText(words, x, y);
}

function drawHeadings(brush, { crowd, shelf, perSquare }, { now, recording }) {
  const asked = now.buyers.size;
  const total = recording?.final.buyers.size ?? 0;
  text(brush, asked < total || total === 0 ? "people" : now.none > 0 ? `${count(now.none)} went home without` : "", crowd.x, crowd.y - 8);
  const each = perSquare > 1 ? `, ${count(perSquare)} to a square` : "";
  text(brush, `the shelf: ${recording ? count(recording.stock) : "300"} units${each}`, shelf.x, shelf.y - 8);
}

function drawShops({ pen, style }, { shops }, { now, key }) {
  shops.forEach(({ x, y, w, h }, index) => {
    const asleep = now.shops[index]?.asleep;
    pen.beginPath();
    pen.roundRect(x + 1, y + 1, w - 2, h - 2, 8);
    pen.fillStyle = style("--sunken");
    pen.fill();
    pen.lineWidth = key?.shop === index ? 3 : 1;
    pen.strokeStyle = style(key?.shop === index ? colour(index % 4) : "--control-edge");
    pen.setLineDash(asleep ? [5, 4] : []);
    pen.stroke();
    pen.setLineDash([]);
  });
}

function drawDoings(brush, { shops }, { now }) {
  shops.forEach(({ x, y, w, h }, index) => {
    const shop = now.shops[index];
    if (shop?.asleep) sayOn(brush, "z z z  asleep", x + w / 2, y + h - 12, { size: 14, ink: "--warn" });
    else if (shop) sayOn(brush, doing(shop), x + w / 2, y + h - 11);
  });
}

const doing = ({ waiting, sold }) => [waiting ? `${count(waiting)} wait` : "", sold ? `sold ${count(sold)}` : ""].filter(Boolean).join(", ");

function drawShelf(brush, places, { now, flown, chosen }) {
  const { pen, style } = brush;
  const { squares, perSquare, square: { size, at } } = places;
  const gap = size > 9 ? 2 : 1;
  const wide = size - gap;
  pen.fillStyle = style("--sunken");
  pen.strokeStyle = style("--edge");
  pen.lineWidth = 1;
  for (let index = 0; index < squares; index += 1) {
    const [x, y] = at(index);
    pen.fillRect(x, y, wide, wide);
    pen.strokeRect(x + 0.5, y + 0.5, wide - 1, wide - 1);
  }
  for (const [unit, all] of now.units) {
    const owners = all.filter((owner) => flown(owner.at) >= 1);
    if (owners.length === 0) continue;
    const [x, y] = at(Math.floor((unit - 1) / perSquare));
    const shares = new Map();
    for (const { shop } of owners) shares.set(shop, (shares.get(shop) ?? 0) + 1);
    // an owned square has the shop's colour; one with several owners splits
    const parts = owners.length > 1 && shares.size === 1 ? [...shares, ...shares] : [...shares];
    parts.forEach(([shop], part) => {
      const from = x + (wide * part) / parts.length;
      pen.fillStyle = style(colour(shop % 4));
      pen.fillRect(from + (part ? 1 : 0), y, wide / parts.length - (part ? 1 : 0), wide);
    });
    if (owners.length > 1) {
      pen.strokeStyle = style("--bad");
      pen.lineWidth = Math.min(3, size / 6);
      pen.strokeRect(x, y, wide, wide);
      if (size >= 15 && owners.length > 2) drawBadge(brush, owners.length, x + wide / 2, y + wide / 2, wide);
    } else if (size >= 13) {
      text(brush, sign([...shares.keys()][0] % 4), x + wide / 2, y + wide / 2 + size * 0.16, { size: size * 0.4, ink: "--on-instance", align: "center" });
    }
  }
  if (chosen) {
    const [x, y] = at(Math.floor((chosen - 1) / perSquare));
    pen.strokeStyle = style("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(x - 2, y - 2, wide + 4, wide + 4);
  }
}

/** How many own a square that should have one owner. */
function drawBadge({ pen, style, font }, number, x, y, wide) {
  const words = String(number);
  pen.font = font(Math.max(8, Math.min(12, (wide / words.length) * 1.2)), 700);
  const [w, h] = [pen.measureText(words).width + 3, Math.min(wide - 3, 13)];
  pen.fillStyle = style("--surface");
  pen.fillRect(x - w / 2, y - h / 2, w, h);
  pen.fillStyle = style("--bad");
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(words, x, y + 0.5);
}

function drawBuyers({ pen, style }, places, { now, flown, ranks, dots }) {
  const radius = (size) => Math.max(1.2, Math.min(4, size * 0.36));
  const centre = ({ at, size }, index) => at(index).map((value) => value + size / 2);
  const drawDot = ([x, y], r, ink, isHollow) => {
    pen.beginPath();
    pen.arc(x, y, r, 0, 2 * Math.PI);
    pen.lineWidth = 1;
    if (isHollow) {
      pen.strokeStyle = style(ink);
      pen.stroke();
    } else {
      pen.fillStyle = style(ink);
      pen.fill();
    }
  };
  const home = radius(places.home.size);
  for (let index = now.buyers.size; index < dots; index += 1) drawDot(centre(places.home, index), home, "--ink");
  for (const [buyer, { shop, place, asked, is, at, unit, by }] of now.buyers) {
    const start = centre(places.home, ranks.get(buyer));
    const inside = centre(places.rooms[shop] ?? places.home, place);
    const came = between(start, inside, flown(asked));
    if (is === "asked") {
      drawDot(came, home, colour(shop % 4));
    } else if (is === "sold") {
      const far = flown(at);
      if (far >= 1) continue;
      const { size, at: corner } = places.square;
      const goal = corner(Math.floor((unit - 1) / places.perSquare)).map((value) => value + size / 2);
      drawDot(between(came, goal, far), home * 1.2, colour(by % 4));
    } else {
      const far = flown(at);
      drawDot(between(came, start, far), home, is === "failed" ? "--bad" : "--ink-soft", far > 0.5);
    }
  }
}

function between([x, y], [toX, toY], share) {
  const eased = share * share * (3 - 2 * share);
  return [x + (toX - x) * eased, y + (toY - y) * eased];
}

/** The key of each shop that believes to have it; only the newest is real. */
function drawKeys(brush, places, { now, key, flown, numbers, recording }) {
  const spot = ({ x, y, w }) => [x + w - 34, y + 21];
  if (recording?.guard === "local") {
    places.shops.forEach((shop, index) => drawKey(brush, spot(shop), colour(index % 4), ""));
    return;
  }
  for (const tenure of now.tenures) {
    if (tenure.to !== null || tenure === key) continue;
    drawKey(brush, spot(places.shops[tenure.shop]), "--ink-soft", numbers ? String(tenure.number) : "", true);
  }
  if (!key) return;
  const before = now.tenures.findLast((one) => one !== key && one.shop !== key.shop && one.number < key.number);
  const to = spot(places.shops[key.shop]);
  const from = before ? spot(places.shops[before.shop]) : to;
  drawKey(brush, between(from, to, flown(key.from)), colour(key.shop % 4), numbers ? String(key.number) : "");
}

function drawKey(brush, [x, y], ink, number, isGhost = false) {
  const { pen, style } = brush;
  pen.strokeStyle = style(ink);
  pen.lineWidth = 3.5;
  pen.setLineDash(isGhost ? [2.5, 2.5] : []);
  pen.beginPath();
  pen.arc(x, y, 6.5, 0, 2 * Math.PI);
  pen.moveTo(x + 6.5, y);
  pen.lineTo(x + 24, y);
  pen.moveTo(x + 17, y);
  pen.lineTo(x + 17, y + 6);
  pen.moveTo(x + 23, y);
  pen.lineTo(x + 23, y + 7);
  pen.stroke();
  pen.setLineDash([]);
  if (number) text(brush, number, x - 13, y + 5, { size: 15, weight: 700, ink: isGhost ? "--ink-soft" : "--ink", align: "right" });
}

/** The store's gate before the shelf: it knows the largest number that came through, and lets no smaller one pass. */
function drawGate(brush, { gate, isWide, shops }, { now, flown }) {
  const { pen, style } = brush;
  const seen = Math.max(0, ...now.tenures.filter((one) => !one.bounced && !sleeps(now, one)).map((one) => one.number));
  pen.strokeStyle = style("--ink");
  pen.lineWidth = 4;
  pen.beginPath();
  pen.moveTo(gate.x, gate.y + (isWide ? 22 : 0));
  pen.lineTo(gate.x + gate.w, gate.y + gate.h);
  pen.stroke();
  const at = isWide ? [gate.x, gate.y + 14, "center"] : [gate.x + gate.w, gate.y + 18, "right"];
  if (seen > 0) text(brush, `≥ ${seen}`, at[0], at[1], { size: 14, weight: 700, ink: "--ink", align: at[2] });
  for (const { shop, number, at } of now.bounces) {
    const far = flown(at);
    const box = shops[shop];
    const from = [box.x + box.w / 2, box.y + box.h / 2];
    const touch = isWide ? [gate.x - 18, from[1]] : [from[0], gate.y - 4];
    const rest = isWide ? [gate.x - 38, from[1]] : [from[0], gate.y - 12];
    const [x, y] = far < 0.6 ? between(from, touch, far / 0.6) : between(touch, rest, (far - 0.6) / 0.4);
    sayOn(brush, `✕ ${number}`, x, y, { size: 16, ink: "--bad" });
  }
}

const sleeps = (now, tenure) => now.sleeps.some(({ shop, from }) => shop === tenure.shop && from >= tenure.from && !(tenure.to < from && tenure.to !== null));

/** One lane for each shop, over the scrubber and on its scale: who believed to have the key, and who slept. */
function drawLanes(brush, { width, bottom, shops }, { recording, film, position }) {
  const { pen, style } = brush;
  const { final, end } = recording;
  const x = (at) => EDGE + (film.positionOf(at) / film.length) * (width - 2 * EDGE);
  const head = EDGE + (position / film.length) * (width - 2 * EDGE);
  const top = (shop) => bottom + LANE_GAP + shop * (LANE + LANE_GAP);
  const block = (from, to, shop, fill) => {
    pen.fillStyle = fill;
    pen.fillRect(from, top(shop), Math.max(1.5, to - from), LANE);
  };
  const labels = [];
  shops.forEach((_, shop) => block(EDGE, width - EDGE, shop, style("--sunken")));
  for (const { shop, number, from, to, bounced } of final.tenures) {
    const [left, right] = [x(from), x(to ?? end)];
    pen.globalAlpha = 0.3;
    block(left, right, shop, style(colour(shop % 4)));
    pen.globalAlpha = 1;
    if (head > left) block(left, Math.min(head, right), shop, style(colour(shop % 4)));
    labels.push([String(number), shop, left + 16, head > left + 24 && right > left + 24]);
    labels.push(["✕ refused", shop, right - 34, bounced && head >= right]);
  }
  for (const { shop, from, to } of final.sleeps) {
    const [left, right] = [x(from), x(to ?? end)];
    const lent = final.tenures.find((one) => one.shop !== shop && one.from > from);
    pen.save();
    pen.beginPath();
    pen.rect(left, top(shop), right - left, LANE);
    pen.clip();
    pen.strokeStyle = style("--surface");
    pen.globalAlpha = 0.75;
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = left - LANE; at < right; at += 8) {
      pen.moveTo(at, top(shop) + LANE);
      pen.lineTo(at + LANE, top(shop));
    }
    pen.stroke();
    pen.restore();
    if (lent) drawLent(brush, left, x(lent.from), top(shop), head);
    labels.push(["asleep", shop, (x(lent?.from ?? from) + right) / 2, head > left]);
  }
  // a label without room is left out
  const ends = shops.map(() => -Infinity);
  for (const [words, shop, at, isShown] of labels.sort(([, , one], [, , other]) => one - other)) {
    if (isShown && at - 4 * words.length > ends[shop]) ends[shop] = sayOn(brush, words, at, top(shop) + 14);
  }
  shops.forEach((_, shop) => text(brush, String.fromCharCode(65 + shop), 0, top(shop) + 14, { size: 11, weight: 700 }));
  pen.fillStyle = style("--ink");
  pen.fillRect(head - 1, bottom, 2, shops.length * (LANE + LANE_GAP) + LANE_GAP);
  const marks = [0, ...film.marks, end];
  let [free, last] = [-Infinity, ""];
  marks.forEach((at, index) => {
    const words = moment(at);
    const place = x(at);
    const isLast = index === marks.length - 1;
    const wide = pen.measureText(words).width + 14;
    if (words === last || place - (isLast ? wide : 0) < free || (!isLast && place > width - 2 * wide)) return;
    [free, last] = [place + wide, words];
    text(brush, words, isLast ? width - EDGE : place, top(shops.length) + 10, { size: 11, align: isLast ? "right" : index ? "center" : "left" });
  });
}

/** The time for which the key is lent, as it runs out. It is drawn up to the next holder's start, which was measured. */
function drawLent(brush, left, right, top, head) {
  const { pen, style } = brush;
  const from = Math.min(right, Math.max(left, head));
  const rest = (right - from) / Math.max(1, right - left);
  pen.fillStyle = style("--surface");
  pen.fillRect(left + 2, top + LANE - 6, right - left - 4, 4);
  pen.fillStyle = style("--warn");
  pen.fillRect(from, top + LANE - 6, (right - left - 4) * rest, 4);
}

/** Words on a ground of their own. Returns where they end. */
function sayOn(brush, words, x, y, { size = 12, ink = "--ink" } = {}) {
  if (!words) return x;
  const { pen, style } = brush;
  pen.font = brush.font(size, 600);
  const wide = pen.measureText(words).width + 8;
  pen.fillStyle = style("--surface");
  pen.fillRect(x - wide / 2, y - size, wide, size + 4);
  text(brush, words, x, y, { size, weight: 600, ink, align: "center" });
  return x + wide / 2;
}

