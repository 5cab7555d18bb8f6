// A canvas as sharp as the screen, in the colours and fonts of the page.

const schemes = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((query) => matchMedia(query));

/** A drawing surface that follows the size of its element and the colours of the page. */
export class Surface {
  #canvas;
  #styles = new Map();
  /** Called when its size or the colours have changed. */
  onStale = null;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#forget()).observe(canvas);
    for (const scheme of schemes) scheme.addEventListener("change", () => this.#forget());
  }

  #forget() {
    this.#styles.clear();
    this.onStale?.();
  }

  /** Clears it and returns the context with the size in CSS pixels, or null while it is not shown. */
  begin() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (width === 0 || height === 0) return null;
    const scale = Math.min(devicePixelRatio || 1, 3);
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.#canvas.width !== wide || this.#canvas.height !== high) {
      this.#canvas.width = wide;
      this.#canvas.height = high;
    }
    const pen = this.#canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  }

  /** The value of a custom property such as `--ink`. */
  style(name) {
    let value = this.#styles.get(name);
    if (value === undefined) {
      value = getComputedStyle(this.#canvas).getPropertyValue(name).trim();
      this.#styles.set(name, value);
    }
    return value;
  }

  /** The page's font at this size in pixels. */
  font(size, weight = 400) {
    return `${weight} ${size}px ${this.style("--font")}`;
  }
}
