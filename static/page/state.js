// What is known of the sale: the newest message, and what this page has noticed of its connection.

const MOST_NOTES = 20;

export class State {
  /** The newest message, or null before the first one. */
  now = null;
  /** The connection to the instance: `{ state: "connecting" | "live" | "lost", since }`. */
  link = { state: "connecting" };
  /** Notes that only this page can make: of its connection. */
  #ownNotes = [];
  #offset = 0;

  /** The server's clock. It stands still while the connection is lost: nothing is known of that time. */
  clock() {
    if (this.link.state === "lost") return this.now?.now_ms ?? 0;
    return Date.now() + this.#offset;
  }

  /** All notes, oldest first: those of the instance, of its demo about other instances, and of this page. */
  get allNotes() {
    const ofDemo = (this.now?.demo?.notes ?? []).filter((note) => note.about !== this.now.instance);
    return [...(this.now?.notes ?? []), ...ofDemo, ...this.#ownNotes].sort((one, other) => one.at_ms - other.at_ms);
  }

  /** Takes in the state of the connection. */
  setLink(link) {
    const was = this.link.state;
    const at_ms = Date.now() + this.#offset;
    this.link = link;
    const name = this.now?.instance;
    if (was === "live" && link.state === "lost") {
      this.#note({ at_ms, kind: "link-lost", text: `This page has lost its connection to ${name}.` });
    } else if (was === "lost" && link.state === "live" && this.now) {
      this.#note({ at_ms, kind: "link-back", text: `This page is connected to ${name} again.` });
    }
  }

  #note(note) {
    this.#ownNotes = [...this.#ownNotes, note].slice(-MOST_NOTES);
  }

  /** Takes in a message, which has the whole state. */
  merge(message) {
    this.now = message;
    this.#setClock(message.now_ms);
  }

  /** Ignores small differences: they are the network's, and would make the charts tremble. */
  #setClock(serverNow) {
    const offset = serverNow - Date.now();
    if (Math.abs(offset - this.#offset) > 250) this.#offset = offset;
  }
}
