// The base of both line charts of the page.

import { count } from "./format.js";
import { Surface, roundStep } from "./canvas.js";

const SPAN_MS = 60_000;
const [LEFT, RIGHT, TOP, BOTTOM] = [8, 10, 10, 22];

/** A chart of lines over the last minute. It is drawn once for each message; its lines come from `compose`. */
export class Chart {
  #drawn = null;

  constructor(canvas) {
    this.surface = new Surface(canvas);
  }

  /** Draws it. It moves too little for more than once for each message, and nothing of it moves without news. */
  draw(state) {
    if (this.#drawn === state.now && !this.surface.isStale) return Infinity;
    this.#drawn = state.now;
    const { lines, ...scale } = this.compose(state);
    this.#plot(state.clock(), lines, scale);
    return Infinity;
  }

  /**
   * Draws `lines` (each `{ colour, dash, isStep, values: [[ms, value], ..] }`) over the minute before `clock`,
   * and a `mark` (`{ value, text }`) across.
   */
  #plot(clock, lines, { mark, most }) {
    const frame = this.surface.begin();
    if (!frame) return;
    const { pen, width, height } = frame;
    const top = Math.max(most, mark?.value ?? 0, 1);
    const step = Math.max(1, roundStep(top, 3));
    const ceiling = Math.max(top * 1.06, step);
    const x = (ms) => LEFT + (1 - (clock - ms) / SPAN_MS) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / ceiling) * (height - TOP - BOTTOM);
    this.#drawGrid(pen, { width, height, ceiling, step, x, y, clock });
    if (mark) this.#drawMark(pen, mark, width, y);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT - RIGHT + 2, height - BOTTOM + 2);
    pen.clip();
    for (const line of lines) this.#drawLine(pen, line, x, y, clock);
    pen.restore();
    this.#drawScale(pen, { ceiling, step, y });
  }

  #drawGrid(pen, { width, height, ceiling, step, x, y, clock }) {
    const surface = this.surface;
    pen.strokeStyle = surface.style("--edge");
    pen.fillStyle = surface.style("--ink-soft");
    pen.font = surface.font(11);
    pen.lineWidth = 1;
    pen.beginPath();
    for (let value = 0; value <= ceiling; value += step) {
      const at = Math.round(y(value)) + 0.5;
      pen.moveTo(LEFT, at);
      pen.lineTo(width - RIGHT, at);
    }
    pen.stroke();
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText("−60 s", LEFT, height - 6);
    pen.textAlign = "center";
    pen.fillText("−30 s", x(clock - SPAN_MS / 2), height - 6);
    pen.textAlign = "right";
    pen.fillText("now", width - RIGHT, height - 6);
  }

  /** The numbers of the scale, over the lines, so that none is struck through. */
  #drawScale(pen, { ceiling, step, y }) {
    pen.fillStyle = this.surface.style("--ink-soft");
    pen.font = this.surface.font(11);
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    for (let value = 0; value <= ceiling; value += step) {
      const at = Math.round(y(value)) - 1;
      const text = count(value);
      pen.clearRect(LEFT, at - 13, pen.measureText(text).width + 3, 13);
      pen.fillText(text, LEFT + 1, at);
    }
  }

  #drawMark(pen, { value, text }, width, y) {
    const at = Math.round(y(value)) + 0.5;
    pen.strokeStyle = this.surface.style("--ink-soft");
    pen.fillStyle = this.surface.style("--ink-soft");
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, at);
    pen.lineTo(width - RIGHT, at);
    pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "center";
    pen.textBaseline = "top";
    pen.fillText(text, width / 2, at + 3);
  }

  #drawLine(pen, { colour, dash, isStep, values }, x, y, clock) {
    if (values.length === 0) return;
    pen.strokeStyle = this.surface.style(colour);
    pen.lineWidth = 2;
    pen.lineJoin = "round";
    pen.setLineDash(dash ?? []);
    pen.beginPath();
    let [before] = values;
    pen.moveTo(x(before[0]), y(before[1]));
    for (const value of values.slice(1)) {
      if (isStep) pen.lineTo(x(value[0]), y(before[1]));
      pen.lineTo(x(value[0]), y(value[1]));
      before = value;
    }
    if (isStep) pen.lineTo(x(clock), y(before[1]));
    pen.stroke();
    pen.setLineDash([]);
  }
}
