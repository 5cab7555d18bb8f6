// The stream of events. After a break: say so, and reconnect.

/** There are two messages a second. After this much silence the figures count as old. */
const LATE_MS = 1500;
/** After this much silence the connection is replaced. */
const SILENCE_MS = 8000;
const LOOK_MS = 1000;

export class Connection {
  #url;
  #on;
  #stream = null;
  #openedAt = 0;
  #heardAt = null;
  #isLive = false;

  /** Calls `on.message(message)`, and `on.status(status)` when the connection changes and while it is lost. */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
    this.#open();
    setInterval(() => this.#look(), LOOK_MS);
  }

  #open() {
    this.#openedAt = Date.now();
    this.#stream?.close();
    this.#stream = new EventSource(this.#url);
    for (const kind of ["snapshot", "change"]) this.#stream.addEventListener(kind, ({ data }) => this.#receive(JSON.parse(data)));
    this.#stream.addEventListener("error", () => this.#lose());
  }

  #receive(message) {
    this.#heardAt = Date.now();
    if (!this.#isLive) this.#on.status({ state: "live" });
    this.#isLive = true;
    try {
      this.#on.message(message);
    } catch (error) {
      console.error(error);
    }
  }

  #look() {
    const now = Date.now();
    // the browser connects again by itself, but not after a refusal
    if (this.#stream.readyState === EventSource.CLOSED || now - Math.max(this.#openedAt, this.#heardAt) > SILENCE_MS) this.#open();
    else if (this.#heardAt && now - this.#heardAt > LATE_MS) this.#lose();
  }

  /** Reports the loss. Messages that arrive later are accepted. */
  async #lose() {
    this.#isLive = false;
    // an item has a stream only after its first sale has started; the stream itself does not say how it was refused
    const isRefused = this.#stream.readyState === EventSource.CLOSED;
    const isUnsold = isRefused && (await fetch(this.#url, { method: "HEAD" }).catch(() => null))?.status === 404;
    if (!this.#isLive) this.#on.status({ state: "lost", since: this.#heardAt, isUnsold });
  }
}
