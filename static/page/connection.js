// The stream of events. After a break: say so, and reconnect.

/** The server sends two messages a second. After this much silence the figures count as old. */
const LATE_MS = 1500;
/** After this much silence the connection is replaced. */
const SILENCE_MS = 8000;
/** The pause before a new attempt, the first time and at most. */
const RETRY_MS = 500;
const RETRY_MAX_MS = 4000;

export class Connection {
  #url;
  #on;
  #source = null;
  #timers = [];
  #heardAt = null;
  #retry = RETRY_MS;
  #lostAt = null;
  #isUnsold = false;

  /** Calls `on.message(message)` for each message, and `on.status(status)` when the connection changes. */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
  }

  open() {
    const source = new EventSource(this.#url);
    this.#source = source;
    this.#listen();
    const receive = (isSnapshot) => (event) => {
      this.#heardAt = Date.now();
      this.#listen();
      this.#receive(event.data, isSnapshot);
    };
    source.addEventListener("snapshot", receive(true));
    source.addEventListener("change", receive(false));
    // EventSource reconnects by itself only after some errors, this page after all of them
    source.onerror = () => this.#broke();
  }

  #receive(text, isSnapshot) {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      this.#broke();
      return;
    }
    if (this.#lostAt !== null || isSnapshot) {
      this.#lostAt = null;
      this.#isUnsold = false;
      this.#retry = RETRY_MS;
      this.#on.status({ state: "live" });
    }
    this.#on.message(message);
  }

  #listen() {
    this.#timers.forEach(clearTimeout);
    this.#timers = [setTimeout(() => this.#broke(), SILENCE_MS)];
    if (this.#heardAt !== null) this.#timers.push(setTimeout(() => this.#lost(), LATE_MS));
  }

  /** Reports the loss. Messages that arrive later are accepted. */
  #lost() {
    this.#lostAt ??= this.#heardAt ?? Date.now();
    this.#on.status({ state: "lost", since: this.#lostAt, isUnsold: this.#isUnsold });
  }

  /** EventSource does not say why it was refused. An item has a stream only after its first sale has started. */
  async #askWhy() {
    const answer = await fetch(this.#url, { method: "HEAD" }).catch(() => null);
    this.#isUnsold = answer?.status === 404;
    if (this.#lostAt !== null) this.#lost();
  }

  #broke() {
    this.#timers.forEach(clearTimeout);
    this.#source.onerror = null;
    this.#source.close();
    this.#lost();
    this.#askWhy();
    setTimeout(() => this.open(), this.#retry);
    this.#retry = Math.min(this.#retry * 1.6, RETRY_MAX_MS);
  }
}
