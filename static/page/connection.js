// The stream of events. After a break: say so, and reconnect.
// `fetch` reads it, since an EventSource does not say which answer it got.

/** There are two messages a second. After this much silence the figures count as old. */
const LATE_MS = 1500;
/** After this much silence the connection is replaced. */
const SILENCE_MS = 8000;
const LOOK_MS = 1000;

export class Connection {
  #url;
  #on;
  /** Ends the stream; null while there is none. */
  #stream = null;
  #openedAt = 0;
  #heardAt = null;
  #isLive = false;
  /** The status of the last refusal. */
  #refused = null;

  /** Calls `on.message(message)`, and `on.status(status)` when the connection changes and while it is lost. */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
    this.#open();
    setInterval(() => this.#look(), LOOK_MS);
  }

  async #open() {
    this.#openedAt = Date.now();
    const stream = new AbortController();
    this.#stream = stream;
    try {
      const answer = await fetch(this.#url, { cache: "no-store", signal: stream.signal });
      this.#refused = answer.ok ? null : answer.status;
      if (answer.ok) await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // it broke, or it was silent
    } finally {
      stream.abort();
    }
    this.#stream = null;
    this.#lose();
  }

  /** Reads messages, which end with an empty line each, to the end of the stream. */
  async #read(stream) {
    let text = "";
    for (;;) {
      const { value, done } = await stream.read();
      if (done) return;
      const messages = (text + value).split("\n\n");
      text = messages.pop();
      for (const message of messages) {
        const data = message.split("\n").find((line) => line.startsWith("data: "));
        if (data) this.#receive(JSON.parse(data.slice("data: ".length)));
      }
    }
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
    if (!this.#stream) this.#open();
    else if (now - Math.max(this.#openedAt, this.#heardAt) > SILENCE_MS) this.#stream.abort();
    else if (this.#heardAt && now - this.#heardAt > LATE_MS) this.#lose();
  }

  /** Reports the loss. Messages that arrive later are accepted. */
  #lose() {
    this.#isLive = false;
    // an item has a stream only after its first sale has started
    const isUnsold = this.#refused === 404;
    this.#on.status({ state: "lost", since: this.#heardAt, isUnsold });
  }
}
