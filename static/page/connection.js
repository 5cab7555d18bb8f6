// The stream of events. After a break: say so, and reconnect.

/** There are two messages a second. After this much silence the figures count as old. */
const LATE_MS = 1500;
/** After this much silence the connection is replaced. */
const SILENCE_MS = 8000;
const LOOK_MS = 1000;

export class Connection {
  #url;
  #on;
  #source = null;
  #openedAt = 0;
  #heardAt = null;
  #isLive = false;
  #isUnsold = false;

  /** Calls `on.message(message)`, and `on.status(status)` when the connection changes and while it is lost. */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
    this.#open();
    setInterval(() => this.#look(), LOOK_MS);
  }

  #open() {
    this.#openedAt = Date.now();
    this.#source = new EventSource(this.#url);
    const receive = ({ data }) => {
      this.#heardAt = Date.now();
      this.#isUnsold = false;
      if (!this.#isLive) this.#on.status({ state: "live" });
      this.#isLive = true;
      this.#on.message(JSON.parse(data));
    };
    for (const kind of ["snapshot", "change"]) this.#source.addEventListener(kind, receive);
    // EventSource reconnects by itself only after some errors, this page after all of them
    this.#source.onerror = () => this.#close();
  }

  #look() {
    const now = Date.now();
    if (!this.#source) this.#open();
    else if (now - Math.max(this.#openedAt, this.#heardAt) > SILENCE_MS) this.#close();
    else if (this.#heardAt && now - this.#heardAt > LATE_MS) this.#lose();
  }

  /** Reports the loss. Messages that arrive later are accepted. */
  #lose() {
    this.#isLive = false;
    this.#on.status({ state: "lost", since: this.#heardAt, isUnsold: this.#isUnsold });
  }

  async #close() {
    this.#source.close();
    this.#source = null;
    this.#lose();
    // EventSource does not say why it was refused. An item has a stream only after its first sale has started
    const answer = await fetch(this.#url, { method: "HEAD" }).catch(() => null);
    if (this.#isLive) return;
    this.#isUnsold = answer?.status === 404;
    this.#lose();
  }
}
