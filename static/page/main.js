// Has the parts of the page show what is known of the sale.

import { Connection } from "./connection.js";
import { setData } from "./dom.js";
import { showLink } from "../panels/link.js";
import { showLock } from "../panels/lock.js";
import { OwnSale } from "../panels/own.js";
import { showNotes, showSale } from "../panels/sale.js";
import { Stage } from "../stage/stage.js";

const known = {
  /** The newest message, or null before the first one. */
  now: null,
  /** The connection to the instance: `{ state: "connecting" | "live" | "lost", since, isUnsold }`. */
  link: { state: "connecting" },
  heardAt: 0,
  /** The server's clock. It stands still while the connection is lost: nothing is known of that time. */
  clock() {
    return this.now.now_ms + (this.link.state === "lost" ? 0 : Date.now() - this.heardAt);
  },
};

/** The first messages may not know of the demo yet. */
function showMain({ now, link }) {
  if (now?.demo || link.state === "lost") setData(document.body, "known", true);
}

const stage = new Stage();
const own = new OwnSale((run) => stage.watch(run));
const parts = [showLink, showMain, showSale, showLock, showNotes, (known) => own.show(known), (known) => stage.show(known)];

/** Shows what is known in the next frame. A part that fails must not stop the others. */
let frame = null;
function show() {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    for (const part of parts) {
      try {
        part(known);
      } catch (error) {
        console.error(error);
      }
    }
  });
}

show();
new Connection(`events${location.search}`, {
  message(now) {
    Object.assign(known, { now, heardAt: Date.now() });
    show();
  },
  status(link) {
    known.link = link;
    show();
  },
});
