// The tenures as blocks, on one lane for each instance: the lock as it goes back and forth.

import { Surface, roundStep } from "../page/canvas.js";
import { byId, makeSegment, setText } from "../page/dom.js";
import { duration } from "../page/format.js";
import { guardOf } from "../page/guards.js";
import { colour, place, sign } from "../page/instances.js";
import { roster } from "../page/roster.js";
import { ordersOf } from "./tenures.js";

const ZOOMS = [
  { label: "auto", ms: null },
  { label: "0.1 s", ms: 100 },
  { label: "1 s", ms: 1000 },
  { label: "10 s", ms: 10_000 },
];
/** With `auto`, so many tenures are in view that each has about this much room for its label, in pixels. */
const TENURE_WIDTH = 64;
const [AUTO_MIN_MS, AUTO_MAX_MS] = [20, 10_000];
/** The right edge is this old: news comes a few times a second, and blocks are drawn whole. */
const DELAY_MS = 250;
/** After this much time without a change, the view stays at the last one. */
const QUIET_MS = 800;
/** A wait longer than this is drawn at a slower pace: it may take hours. */
const [LONG_MS, SLOW_MS] = [10_000, 100];
const LANE = 44;
const AXIS = 26;
const GUTTER = 76;

const NOTE = "Each block is one tenure: its width is its duration, its number the orders that it served.";

export class Timeline {
  surface = new Surface(byId("timeline"));
  #box = byId("timeline").parentElement;
  #note = byId("timeline-note");
  #zoom = null;
  #frozen = null;
  #span = AUTO_MAX_MS;

  constructor() {
    ZOOMS.forEach(({ label, ms }) => {
      const option = makeSegment("zoom", label, label, ms === null);
      option.addEventListener("change", () => {
        this.#zoom = ms;
        this.surface.outdate();
      });
      byId("zoom").append(option);
    });
    const freeze = byId("freeze");
    freeze.addEventListener("click", () => {
      this.#frozen = this.#frozen === null ? {} : null;
      freeze.setAttribute("aria-pressed", String(this.#frozen !== null));
      this.surface.outdate();
    });
  }

  /** Draws it. Returns after how many milliseconds it would look different without any news, if ever. */
  draw(state) {
    const names = roster(state.now);
    const lanes = Math.max(names.length, 2);
    const view = this.#view(state);
    // claims of other programs, such as `etcdctl lock`, have a lane only while there are some
    const strangers = view.tenures.some((tenure) => place(names, tenure.instance) === null);
    const height = (lanes + (strangers ? 1 : 0)) * LANE + AXIS;
    if (this.#box.clientHeight !== height) this.#box.style.height = `${height}px`;
    const frame = this.surface.begin();
    if (!frame) return Infinity;
    const { pen, width } = frame;
    const plot = { left: GUTTER, right: width - 8, bottom: height - AXIS };
    const x = (ms) => plot.left + ((ms - view.start) / (view.end - view.start)) * (plot.right - plot.left);
    this.#drawLanes(pen, plot, names, lanes, strangers);
    this.#drawAxis(pen, plot, view, x);
    for (const tenure of view.tenures) this.#drawTenure(pen, plot, tenure, names, lanes, view, x);
    this.#say(state, view);
    const isStill = view.isQuiet || this.#frozen !== null || state.link.state !== "live";
    if (isStill) return Infinity;
    return view.clock - state.movedAt > LONG_MS ? SLOW_MS : 0;
  }

  /** The part of time that is shown, and its tenures. */
  #view(state) {
    if (this.#frozen?.tenures) return this.#rezoomed(this.#frozen);
    const clock = state.clock();
    // while an instance waits, an idle holder must stay visible
    const isQuiet = clock - state.movedAt > QUIET_MS && !isContended(state.now);
    const span = this.#zoom ?? this.#autoSpan(state, isQuiet);
    const end = isQuiet && state.movedAt > 0 ? state.movedAt + span * 0.04 : clock - DELAY_MS;
    const view = { end, clock, isQuiet, guard: guardOf(state.now), all: state.tenures };
    if (this.#frozen !== null) this.#frozen = view;
    return this.#rezoomed(view, span);
  }

  #rezoomed(view, span = this.#zoom ?? this.#span) {
    const start = view.end - span;
    const isSeen = (tenure) => !view.guard.noHolder && (tenure.end_ms ?? view.clock) >= start && tenure.start_ms <= view.end;
    return Object.assign(view, { start, span, tenures: view.all.filter(isSeen) });
  }

  /** So long that the last tenures fit; in steps, so that it stays the same for a while. */
  #autoSpan(state, isQuiet) {
    const edge = isQuiet ? state.movedAt : state.clock() - DELAY_MS;
    const inView = Math.max(4, Math.round((this.#box.clientWidth - GUTTER) / TENURE_WIDTH));
    const last = state.tenures.filter((tenure) => tenure.start_ms <= edge).slice(-inView);
    // a pause between two sales would make both too small to see
    let first = last.length - 1;
    while (first > 0 && isSameBurst(last[first - 1], last[first])) first -= 1;
    // the cause of a burst this short came before it: a holder that died or was paused
    if (first > 0 && last.length - first < 3) first -= 1;
    const wanted = first < 0 ? AUTO_MAX_MS : edge - last[first].start_ms;
    const span = Math.min(AUTO_MAX_MS, Math.max(AUTO_MIN_MS, wanted * 1.08));
    if (span > this.#span || span < this.#span * 0.45 || isQuiet) this.#span = roundUp(span);
    return this.#span;
  }

  #drawLanes(pen, plot, names, lanes, strangers) {
    pen.textBaseline = "middle";
    for (let lane = 0; lane < lanes + (strangers ? 1 : 0); lane += 1) {
      const top = lane * LANE;
      pen.fillStyle = this.surface.style("--sunken");
      pen.fillRect(plot.left, top + 4, plot.right - plot.left, LANE - 8);
      const instance = names[lane];
      if (!instance && lane < lanes) continue;
      const at = instance ? place(names, instance.name) : null;
      pen.textAlign = "left";
      pen.font = this.surface.font(13, 600);
      pen.fillStyle = this.surface.style(colour(at));
      pen.fillText(sign(at), 2, top + LANE / 2);
      pen.fillStyle = this.surface.style(instance?.isUp === false ? "--ink-soft" : "--ink");
      pen.fillText(instance?.name ?? "others", 20, top + LANE / 2 - (instance?.isUp === false ? 7 : 0), GUTTER - 26);
      if (instance?.isUp === false) {
        pen.font = this.surface.font(11);
        pen.fillStyle = this.surface.style("--bad");
        pen.fillText("✕ down", 20, top + LANE / 2 + 9);
      }
    }
  }

  #drawAxis(pen, plot, view, x) {
    pen.strokeStyle = this.surface.style("--edge");
    pen.fillStyle = this.surface.style("--ink-soft");
    pen.font = this.surface.font(11);
    pen.textBaseline = "alphabetic";
    const step = roundStep(view.span, plot.right - plot.left > 500 ? 8 : 3);
    pen.beginPath();
    for (let back = 0; back < view.span * 0.999; back += step) {
      const at = Math.round(x(view.end - back)) + 0.5;
      pen.moveTo(at, 0);
      pen.lineTo(at, plot.bottom + 4);
      pen.textAlign = back === 0 ? "right" : "center";
      // no room beside the lane's name, or beside the last label
      if (at < plot.left + 12 || (back > 0 && at > plot.right - 96)) continue;
      pen.fillText(back === 0 ? (view.isQuiet ? "last change" : "newest") : `−${shortTime(back)}`, at, plot.bottom + 18);
    }
    pen.stroke();
  }

  #drawTenure(pen, plot, tenure, names, lanes, view, x) {
    const at = place(names, tenure.instance);
    const index = names.findIndex((one) => one.name === tenure.instance);
    const top = (index < 0 ? lanes : index) * LANE + 4;
    const [from, to] = [Math.max(plot.left, x(tenure.start_ms)), Math.min(plot.right, x(tenure.end_ms ?? view.end))];
    const wide = Math.max(1, to - from - (to - from > 4 ? 1 : 0));
    pen.fillStyle = this.surface.style(colour(at));
    // a tenure without orders is paler, and has no label
    pen.globalAlpha = tenure.orders > 0 ? 1 : 0.55;
    pen.beginPath();
    pen.roundRect(from, top, wide, LANE - 8, Math.min(4, wide / 2));
    pen.fill();
    pen.globalAlpha = 1;
    const label = ordersOf(tenure);
    pen.font = this.surface.font(13, 600);
    const long = `${label} ${tenure.orders === 1 ? "order" : "orders"}, token ${tenure.token}`;
    const text = pen.measureText(long).width + 12 < wide ? long : label;
    if (tenure.orders === 0) return;
    if (pen.measureText(text).width + 6 > wide) pen.font = this.surface.font(10, 600);
    if (pen.measureText(text).width + 2 > wide) return;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = this.surface.style("--on-instance");
    pen.fillText(text, from + wide / 2, top + (LANE - 8) / 2);
  }

  #say(state, view) {
    let text = NOTE;
    if (view.guard.isUnwatched) {
      text = "The claims of this lock are not watched, so there are no tenures to show.";
    } else if (view.guard.noHolder) {
      text = "The instances share no lock, so there are no tenures to show.";
    } else if (state.now && state.tenures.length === 0) {
      text = `${NOTE} No instance has held the lock yet.`;
    } else if (this.#frozen !== null) {
      text = `${NOTE} The view is frozen.`;
    } else if (view.isQuiet) {
      text = `${NOTE} Nothing changes now; this is the last change.`;
    }
    if (view.tenures.some((tenure) => !tenure.exact && tenure.orders > 0)) text += " ~ marks an estimate.";
    setText(this.#note, text);
  }
}

function isContended(now) {
  return (now?.lock?.queue.length ?? 0) > 1;
}

/** Whether two tenures in a row belong together: no pause between them, and no idle holder. */
function isSameBurst(one, next) {
  const idle = one.orders === 0 ? next.start_ms - one.start_ms : next.start_ms - (one.end_ms ?? next.start_ms);
  return idle < QUIET_MS / 4;
}

/** Rounds up to one of a few steps for each power of ten, so that the axis stands still for a while. */
function roundUp(ms) {
  const power = 10 ** Math.floor(Math.log10(ms));
  return power * ([1, 1.5, 2, 3, 5, 7, 10].find((step) => step * power >= ms) ?? 10);
}

function shortTime(ms) {
  return ms < 1000 ? `${Math.round(ms * 10) / 10} ms` : duration(ms).replace(".0 s", " s");
}
