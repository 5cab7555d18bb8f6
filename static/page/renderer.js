// Draws at most once for each frame of the screen, and not at all while nothing changes or the page is hidden.

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** With reduced motion, charts move on by whole seconds. */
const CALM_STEP_MS = 1000;

export class Renderer {
  #state;
  #onNews;
  #onFrame;
  #hasNews = false;
  #frame = null;
  #timer = null;
  #lastDrawn = -Infinity;

  constructor(state, { onNews, onFrame }) {
    this.#state = state;
    this.#onNews = onNews;
    this.#onFrame = onFrame;
    // a chart that lost its size or its colours is drawn anew even if nothing else happens
    for (const chart of onFrame) chart.surface.onStale = () => this.#request();
  }

  /** Says that the state has changed. */
  news() {
    this.#hasNews = true;
    this.#request();
  }

  #request() {
    this.#frame ??= requestAnimationFrame((time) => this.#draw(time));
  }

  #draw(time) {
    this.#frame = null;
    if (this.#hasNews) {
      this.#hasNews = false;
      for (const show of this.#onNews) guarded(() => show(this.#state));
    }
    const isDue = !calm.matches || time - this.#lastDrawn >= CALM_STEP_MS;
    let next = Infinity;
    for (const chart of this.#onFrame) {
      guarded(() => {
        if (isDue || chart.surface.isStale) next = Math.min(next, chart.draw(this.#state));
      });
    }
    if (isDue) this.#lastDrawn = time;
    clearTimeout(this.#timer);
    if (calm.matches || next === Infinity) return;
    if (next === 0) this.#request();
    else this.#timer = setTimeout(() => this.#request(), next);
  }
}

/** A panel that fails must not stop the others. */
function guarded(show) {
  try {
    show();
  } catch (error) {
    console.error(error);
  }
}
