// Draws a moment of a recorded sale on one canvas: buyers as dots, shops, the key, the shelf, and who believed what.

import { count, counted } from "../page/format.js";
import { looks } from "../page/instances.js";
import { moment } from "./story.js";

/** How long a dot flies, in seconds of the film. */
const FLIGHT = 0.7;
/** The most squares on the shelf; above, one stands for several units. */
const MOST_SQUARES = 1000;
const [LANE, LANE_GAP, AXIS, EDGE] = [20, 4, 18, 8];

/** A canvas as sharp as the screen, with a pen in the colours and the font of the page. */
export class Brush {
  #canvas;
  #inks = new Map();

  constructor(canvas, onStale) {
    this.#canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.family = getComputedStyle(canvas).fontFamily;
    const forget = () => {
      this.#inks.clear();
      onStale();
    };
    new ResizeObserver(forget).observe(canvas);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", forget);
  }

  begin() {
    const scale = Math.min(devicePixelRatio || 1, 3);
    const [width, height] = [this.#canvas.clientWidth, this.#canvas.clientHeight].map((size) => Math.round(size * scale));
    if (this.#canvas.width !== width || this.#canvas.height !== height) Object.assign(this.#canvas, { width, height });
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.clearRect(0, 0, width, height);
  }

  /** The colour of a custom property such as `--ink`. */
  ink(name) {
    if (!this.#inks.has(name)) {
      this.#canvas.style.color = `var(${name})`;
      this.#inks.set(name, getComputedStyle(this.#canvas).color);
    }
    return this.#inks.get(name);
  }

  fill(ink, ...box) {
    this.pen.fillStyle = this.ink(ink);
    this.pen.fillRect(...box);
  }

  area(ink, path) {
    this.pen.fillStyle = this.ink(ink);
    this.pen.beginPath();
    path(this.pen);
    this.pen.fill();
  }

  stroke(ink, width, path, dash = []) {
    const { pen } = this;
    pen.strokeStyle = this.ink(ink);
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath();
    path(pen);
    pen.stroke();
  }

  frame(ink, width, ...box) {
    this.stroke(ink, width, (pen) => pen.rect(...box));
  }

  line(ink, width, from, to, dash) {
    this.stroke(ink, width, (pen) => {
      pen.moveTo(...from);
      pen.lineTo(...to);
    }, dash);
  }

  /** Writes, and returns how wide it is. With an `edge`, the words get a background that is wider by this much on each side. */
  text(words, x, y, { size = 12, weight = 400, ink = "--ink-soft", align = "left", edge = 0 } = {}) {
    const { pen } = this;
    pen.font = `${weight} ${size}px ${this.family}`;
    const { width } = pen.measureText(words);
    if (edge) this.fill("--surface", x - width / 2 - edge, y - size, width + 2 * edge, size + 4);
    pen.textAlign = align;
    pen.fillStyle = this.ink(ink);
    pen.fillText(words, x, y);
    return width;
  }

  /** Writes around `x`, on a ground. */
  say(words, x, y, options) {
    return this.text(words, x, y, { weight: 600, ink: "--ink", align: "center", edge: 4, ...options });
  }
}

/** The places of everything in a canvas of this size. */
export function layout({ width, height, dots, stock, shops, lanes }) {
  const bottom = height - (lanes ? shops * (LANE + LANE_GAP) + AXIS : 0);
  const isWide = width >= 620;
  const gap = isWide ? 36 : 10;
  const perSquare = Math.max(1, Math.ceil(stock / MOST_SQUARES));
  const squares = Math.ceil(stock / perSquare);
  const places = { isWide, perSquare, squares, width, bottom };
  const each = (place) => Array.from({ length: shops }, (_, index) => place(index));
  if (isWide) {
    const [crowd, shelf, head] = [width * 0.2, width * 0.38, 24];
    const h = (bottom - (gap / 2) * (shops - 1) - 4) / shops;
    places.crowd = { x: 0, y: head, w: crowd, h: bottom - head - 4 };
    places.shops = each((index) => ({ x: crowd + gap, y: index * (h + gap / 2) + 2, w: width - crowd - shelf - 2 * gap - 44, h }));
    places.shelf = { x: width - shelf, y: head, w: shelf, h: bottom - head - 4 };
    places.gate = { x: width - shelf - 24, y: 4, w: 0, h: bottom - 8 };
  } else {
    const [crowd, h] = [Math.round(bottom * 0.1), Math.round(bottom * 0.36)];
    const [w, top] = [(width - gap * (shops - 1)) / shops, crowd + h + 62];
    places.crowd = { x: 0, y: 18, w: width, h: crowd };
    places.shops = each((index) => ({ x: index * (w + gap), y: crowd + 28, w, h }));
    places.shelf = { x: 0, y: top, w: width, h: bottom - top - 4 };
    places.gate = { x: 4, y: top - 26, w: width - 8, h: 0 };
  }
  // in front of each shop, and behind it
  places.doors = places.shops.map(({ x, y, w, h }) => (isWide ? [[x - 8, y + h / 2], [x + w + 8, y + h / 2]] : [[x + w / 2, y - 6], [x + w / 2, y + h + 6]]));
  const few = dots > 20 ? 1 : 4;
  places.home = grid(places.crowd, dots, few * (isWide ? 11 : 9));
  places.rooms = places.shops.map(({ x, y, w, h }) => grid({ x: x + 10, y: y + 42, w: w - 20, h: h - 70 }, Math.ceil(dots / shops) + 1, few * 10));
  places.square = grid(places.shelf, squares, squares > 20 ? 46 : 120);
  return places;
}

/** A grid of `count` cells in a box, as large as they fit: the upper left corner of a cell, its middle, and the cell of a place. */
export function grid({ x, y, w, h }, count, most) {
  let size = Math.min(most, Math.sqrt((w * h) / Math.max(1, count)));
  const fits = (size) => Math.floor(w / size) * Math.floor(h / size) >= count;
  while (!fits(size) && size > 1) size *= 0.985;
  const columns = Math.max(1, Math.floor(w / size));
  const at = (index) => [x + (index % columns) * size, y + Math.floor(index / columns) * size];
  const centre = (index) => at(index).map((value) => value + size / 2);
  const cellAt = (left, top) => (left < x + columns * size ? Math.floor((top - y) / size) * columns + Math.floor((left - x) / size) : -1);
  return { size, at, centre, cellAt };
}

/** The unit of the square at this place, or null. */
export function unitAt({ shelf, square, squares, perSquare }, x, y) {
  const index = square.cellAt(x, y);
  return x >= shelf.x && index >= 0 && index < squares ? index * perSquare + 1 : null;
}

/**
 * Draws `now`, a moment of the `recording`. `key` is the newest tenure, and `chosen` the unit whose owners are listed;
 * `position` and `film` place the moment in the lanes. What began within the last moments is still in flight, unless `isStill`.
 */
export function draw(brush, places, scene) {
  const { film, position, isStill } = scene;
  const flown = (at) => (isStill ? 1 : Math.min(1, Math.max(0, (position - film.positionOf(at)) / FLIGHT)));
  if (places.width === 0) return;
  brush.begin();
  for (const part of [drawShops, drawShelf, drawBuyers, drawGate, drawDoings, drawKeys, drawLanes]) part(brush, places, { ...scene, flown });
}

function drawShops(brush, { shops }, { now, key }) {
  shops.forEach(({ x, y, w, h }, index) => {
    const hasKey = key?.shop === index;
    const box = (pen) => pen.roundRect(x + 1, y + 1, w - 2, h - 2, 8);
    brush.area("--sunken", box);
    brush.stroke(hasKey ? looks(index).ink : "--control-edge", hasKey ? 3 : 1, box, now.shops[index]?.asleep ? [5, 4] : []);
  });
}

function drawDoings(brush, { shops }, { now, key }) {
  shops.forEach(({ x, y, w, h }, index) => {
    const { asleep, waiting, sold, read } = now.shops[index] ?? {};
    const isMistaken = asleep && now.tenures.some((one) => one.shop === index && one.to === null && one.number < key?.number);
    if (isMistaken) brush.say("believes it has the key", x + w / 2, y + h - 33, { size: 14 });
    if (read !== undefined && (waiting || sold)) brush.say(waiting ? `reads “${count(read)} left”` : `wrote “${count(read - 1)} left”`, x + w / 2, y + h - 33, { size: 14 });
    const words = asleep || [waiting ? `${count(waiting)} wait` : "", sold ? `sold ${count(sold)}` : ""].filter(Boolean).join(", ");
    if (words) brush.say(words, x + w / 2, y + h - 11, asleep && { size: 14, ink: "--warn" });
  });
}

function drawShelf(brush, { squares, perSquare, square: { size, at, centre }, shelf }, { now, flown, chosen, recording }) {
  brush.text(`the shelf: ${counted(recording.stock, "unit")}${perSquare > 1 ? `, ${count(perSquare)} to a square` : ""}`, shelf.x, shelf.y - 8);
  const wide = size - (size > 9 ? 2 : 1);
  const square = (unit) => Math.floor((unit - 1) / perSquare);
  for (let index = 0; index < squares; index += 1) {
    const [x, y] = at(index);
    brush.fill("--sunken", x, y, wide, wide);
    brush.frame("--edge", 1, x + 0.5, y + 0.5, wide - 1, wide - 1);
  }
  for (const [unit, all] of now.units) {
    const owners = all.filter((owner) => flown(owner.at) >= 1);
    if (owners.length === 0) continue;
    const [x, y] = at(square(unit));
    const [middle, base] = centre(square(unit));
    // an owned square has the shop's colour; one with several owners splits
    const shops = [...new Set(owners.map(({ shop }) => shop))];
    const parts = owners.length > 1 && shops.length === 1 ? [...shops, ...shops] : shops;
    parts.forEach((shop, part) => brush.fill(looks(shop).ink, x + (wide * part) / parts.length + (part && 1), y, wide / parts.length - (part && 1), wide));
    if (owners.length > 1) {
      brush.frame("--bad", Math.min(3, size / 6), x, y, wide, wide);
      // how many own what should have one owner
      if (size >= Math.max(15, 5 + 6 * String(owners.length).length) && owners.length > 2) brush.say(String(owners.length), middle - 1, base + 3, { size: size < 30 ? 9 : 12, ink: "--bad", edge: 1 });
    } else if (size >= 13) {
      brush.text(looks(shops[0]).sign, middle - 1, base + size * 0.12, { size: size * 0.4, ink: "--on-instance", align: "center" });
    }
  }
  if (!chosen) return;
  const [x, y] = at(square(chosen));
  brush.frame("--ink", 2, x - 2, y - 2, wide + 4, wide + 4);
}

function drawBuyers(brush, { crowd, home, rooms, doors, square, perSquare }, { now, flown, dots, recording }) {
  const isHere = now.buyers.size < dots || recording.final.buyers.size === 0;
  brush.text(isHere ? "buyers" : now.none > 0 ? `${count(now.none)} went home without` : "", crowd.x, crowd.y - 8);
  const radius = Math.max(1.2, Math.min(dots > 20 ? 4 : 12, home.size * 0.36));
  const drawDot = (place, ink, isHollow) => {
    const circle = (pen) => pen.arc(...place, radius, 0, 2 * Math.PI);
    if (isHollow) brush.stroke(ink, 1, circle);
    else brush.area(ink, circle);
  };
  for (let index = now.buyers.size; index < dots; index += 1) drawDot(home.centre(index), "--ink");
  for (const { rank, shop, place, asked, is, at, unit, by } of now.buyers.values()) {
    const start = home.centre(rank);
    const [[front, back], room, far] = [doors[shop], rooms[shop].centre(place), flown(at)];
    if (is === "asked") drawDot(along(flown(asked), start, front, room), looks(shop).ink);
    else if (is !== "sold") drawDot(along(far, room, front, start), is === "failed" ? "--bad" : "--ink-soft", far > 0.5);
    else if (far < 1) drawDot(along(far, room, back, square.centre(Math.floor((unit - 1) / perSquare))), looks(by).ink);
  }
}

function between([x, y], [toX, toY], share) {
  const eased = share * share * (3 - 2 * share);
  return [x + (toX - x) * eased, y + (toY - y) * eased];
}

/** The place at this share of a way with a stop: through the door of a shop, since the straight way leads through another shop. */
export function along(share, from, stop, to) {
  return share < 0.5 ? between(from, stop, 2 * share) : between(stop, to, 2 * share - 1);
}

/** The key of each shop that believes to have it; only the newest is real. */
function drawKeys(brush, { shops, isWide }, { now, key, flown, hasNumbers, recording }) {
  const spot = ({ x, y, w }) => [x + w - 34, y + 21];
  if (recording.guard === "local") shops.forEach((shop, index) => drawKey(brush, spot(shop), looks(index).ink));
  for (const tenure of now.tenures) {
    if (tenure.to !== null && tenure !== key) continue;
    const before = tenure === key && now.tenures.findLast((one) => one.shop !== key.shop && one.number < key.number);
    const to = spot(shops[tenure.shop]);
    const place = before ? between(spot(shops[before.shop]), to, flown(key.from)) : to;
    drawKey(brush, place, tenure === key ? looks(key.shop).ink : "--ink-soft", tenure !== key);
    const [x, y] = place;
    const at = isWide ? [x - 13, y + 5] : [x + 24, y + 20];
    if (hasNumbers) brush.text(String(tenure.number), ...at, { size: isWide ? 15 : 13, weight: 700, ink: tenure === key ? "--ink" : "--ink-soft", align: "right" });
  }
}

function drawKey(brush, [x, y], ink, isGhost = false) {
  const shape = (pen) => {
    pen.arc(x, y, 6.5, 0, 2 * Math.PI);
    for (const [from, to, down] of [[6.5, 24, 0], [17, 17, 6], [23, 23, 7]]) {
      pen.moveTo(x + from, y);
      pen.lineTo(x + to, y + down);
    }
  };
  brush.stroke(ink, 3.5, shape, isGhost ? [2.5, 2.5] : []);
}

/** The store's gate before the shelf: it lets no smaller number pass than it has seen. */
function drawGate(brush, { gate, isWide, shops }, { now, flown, recording }) {
  if (!recording.fence || recording.final.sleeps.length === 0) return;
  brush.line("--ink", 4, [gate.x, gate.y + (isWide ? 22 : 0)], [gate.x + gate.w, gate.y + gate.h]);
  const place = isWide ? [gate.x + 14, gate.y + 14] : [gate.x + gate.w, gate.y + 18];
  brush.text(now.fence > 0 ? `≥ ${now.fence}` : "", ...place, { size: 14, weight: 700, ink: "--ink", align: "right" });
  for (const { shop, number, at } of now.bounces) {
    const { x, y, w, h } = shops[shop];
    const from = [x + w / 2, y + h / 2];
    // towards the gate, and a little way back
    const near = (distance) => (isWide ? [gate.x - distance, from[1]] : [from[0], gate.y - distance]);
    const far = flown(at);
    const place = far < 0.6 ? between(from, near(18), far / 0.6) : between(near(18), near(38), (far - 0.6) / 0.4);
    brush.say(`✕ ${number}`, ...place, { size: 16, ink: "--bad" });
  }
}

/** One lane for each shop, over the scrubber and on its scale: who believed to have the key, and who slept. */
function drawLanes(brush, { width, bottom, shops }, { recording: { final, end }, film, position, hasNumbers, lease }) {
  if (!hasNumbers) return;
  const { pen } = brush;
  const onScale = (position) => EDGE + (position / film.length) * (width - 2 * EDGE);
  const x = (at) => onScale(film.positionOf(at));
  const top = (shop) => bottom + LANE_GAP + shop * (LANE + LANE_GAP);
  const head = onScale(position);
  const labels = [];
  const block = (ink, from, to, shop) => brush.fill(ink, from, top(shop), Math.max(1.5, to - from), LANE);
  shops.forEach((_, shop) => block("--sunken", EDGE, width - EDGE, shop));
  for (const { shop, number, from, to, bounced } of final.tenures) {
    const [left, right] = [x(from), to === null ? width - EDGE : x(to)];
    pen.globalAlpha = 0.3;
    block(looks(shop).ink, left, right, shop);
    pen.globalAlpha = 1;
    if (head > left) block(looks(shop).ink, left, Math.min(head, right), shop);
    if (head > left + 24 && right > left + 24) labels.push([left + 16, String(number), shop]);
    if (bounced && head >= right) labels.push([right - 34, "✕ refused", shop]);
  }
  for (const { shop, from, to } of final.sleeps) {
    const [left, right, middle] = [x(from), x(to ?? end), top(shop) + LANE / 2];
    const next = final.tenures.find((one) => one.shop !== shop && one.from > from);
    pen.globalAlpha = 0.75;
    brush.line("--surface", LANE, [left, middle], [right, middle], [2, 5]);
    pen.globalAlpha = 1;
    const lent = x(next?.from ?? Math.min(to ?? end, from + lease * 1000));
    if (lent > left) {
      // the lease as a bar that runs out: it ends at the measured start of the next holder, if there is one
      const rest = Math.min(lent, Math.max(left, head));
      brush.fill("--surface", left + 2, middle + 4, lent - left - 4, 4);
      brush.fill("--warn", rest, middle + 4, lent - rest, 4);
    }
    if (head > left) labels.push([(lent + right) / 2, to === null ? "killed" : "asleep", shop]);
  }
  // a label without room is left out
  const ends = shops.map(() => -Infinity);
  for (const [at, words, shop] of labels.sort(([one], [other]) => one - other)) {
    if (at - 4 * words.length > ends[shop]) ends[shop] = at + brush.say(words, at, top(shop) + 14) / 2;
  }
  shops.forEach((_, shop) => brush.text(String.fromCharCode(65 + shop), 0, top(shop) + 14, { size: 11, weight: 700 }));
  brush.fill("--ink", head - 1, bottom, 2, shops.length * (LANE + LANE_GAP) + LANE_GAP);
  const axis = top(shops.length) + 10;
  const last = width - EDGE - brush.text(moment(end), width - EDGE, axis, { size: 11, align: "right" });
  for (const [left, words] of ticks(film.marks.map((at) => [x(at), moment(at)]), (words) => pen.measureText(words).width, last, moment(end))) {
    brush.text(words, left, axis, { size: 11 });
  }
}

/** The labels `[left, words]` that have room before `last`, and do not repeat one another or the label there. */
export function ticks(labels, width, last, end) {
  const shown = [];
  let free = 0;
  for (const [left, words] of labels) {
    if (left < free || left + width(words) + 14 > last || [shown.at(-1)?.[1], end].includes(words)) continue;
    shown.push([left, words]);
    free = left + width(words) + 14;
  }
  return shown;
}
