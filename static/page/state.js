// What is known of the sale: the newest message, and the lists that grow, each with a bound.

const MOST = { tenures: 1000, points: 600, orders: 50, notes: 20 };
const POINTS_MS = 60_000;

export class State {
  /** The newest message, or null before the first one. */
  now = null;
  /** Whether this page hears from its instance: `{ state: "connecting" | "live" | "lost", since }`. */
  link = { state: "connecting" };
  /** Tenures by token, oldest first. */
  tenures = [];
  points = [];
  orders = [];
  notes = [];
  /** When the queue last moved, by the server's clock. */
  movedAt = 0;
  #offset = 0;

  /** The server's clock. It stands still while the connection is lost: nothing is known of that time. */
  clock() {
    if (this.link.state === "lost") return this.now?.now_ms ?? 0;
    return Date.now() + this.#offset;
  }

  /** Takes in a message. A snapshot replaces everything, a change adds to it. */
  merge(message, isSnapshot) {
    if (isSnapshot) {
      const isSameFeed = this.now?.instance === message.instance && this.now?.sale === message.sale;
      // a snapshot has fewer tenures than the page may still be showing
      if (!isSameFeed) this.tenures = [];
      this.points = [];
      this.orders = [];
      this.notes = [];
    } else if (this.now && this.now.sale !== message.sale) {
      this.points = [];
      this.orders = [];
    }
    this.now = message;
    this.#setClock(message.now_ms);
    this.#mergeTenures(message.tenures, message.now_ms);
    this.points = appended(this.points, message.points, MOST.points);
    this.points = this.points.filter((point) => point.at_ms > message.now_ms - POINTS_MS);
    this.orders = appended(this.orders, message.orders, MOST.orders);
    this.notes = appended(this.notes, message.notes, MOST.notes);
  }

  /** Small differences are the network's; following them would make the charts tremble. */
  #setClock(serverNow) {
    const offset = serverNow - Date.now();
    if (Math.abs(offset - this.#offset) > 250) this.#offset = offset;
  }

  #mergeTenures(news, now) {
    if (news.length === 0) return;
    const byToken = new Map(this.tenures.map((tenure) => [tenure.token, tenure]));
    for (const tenure of news) {
      const known = byToken.get(tenure.token);
      const grew = known && known.end_ms === null && known.orders !== tenure.orders;
      this.movedAt = Math.max(this.movedAt, tenure.end_ms ?? (grew ? now : tenure.start_ms));
      byToken.set(tenure.token, tenure);
    }
    const sorted = [...byToken.values()].sort((one, other) => one.start_ms - other.start_ms);
    this.tenures = sorted.slice(-MOST.tenures);
  }
}

function appended(list, news, most) {
  return news.length === 0 ? list : [...list, ...news].slice(-most);
}
