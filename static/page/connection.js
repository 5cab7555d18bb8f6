// The stream of events, and what to do when it breaks: say so, try again, catch up.

/** The server sends two messages a second, so after this much silence what is shown is old. */
const LATE_MS = 1500;
/** After this much the line is taken for dead, and another one is tried. */
const SILENCE_MS = 8000;
/** How long to wait before trying again, the first time and at most. */
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

  /** Calls `on.message(message, isSnapshot)` for each message, and `on.status(status)` when the line changes. */
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
    // EventSource tries again by itself only after some errors; doing it here is the same after all of them
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
    this.#on.message(message, isSnapshot);
  }

  #listen() {
    this.#timers.forEach(clearTimeout);
    this.#timers = [setTimeout(() => this.#broke(), SILENCE_MS)];
    if (this.#heardAt !== null) this.#timers.push(setTimeout(() => this.#lost(), LATE_MS));
  }

  /** Says so; what comes all the same is taken. */
  #lost() {
    this.#lostAt ??= this.#heardAt ?? Date.now();
    this.#on.status({ state: "lost", since: this.#lostAt, isUnsold: this.#isUnsold });
  }

  /** EventSource does not tell why it was refused: an item has a stream once a sale of it was started. */
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
