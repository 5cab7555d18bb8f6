// Has the parts of the page show what is known of the sale.

import { Connection } from "./connection.js";
import { byId, setData } from "./dom.js";
import { showLink } from "../panels/link.js";
import { showLock } from "../panels/lock.js";
import { OwnSale } from "../panels/own.js";
import { showNotes, showSale } from "../panels/sale.js";
import { Stage } from "../stage/stage.js";

const known = {
  /** The newest message, or null before the first one. */
  now: null,
  /** The connection to the instance: `{ state: "connecting" | "live" | "lost", since, isUnsold, needsToken, detail }`. */
  link: { state: "connecting" },
  heardAt: 0,
  /** The server's clock. It stands still while the connection is lost: nothing is known of that time. */
  clock() {
    return this.now.now_ms + (this.link.state === "lost" ? 0 : Date.now() - this.heardAt);
  },
};

/** Without a demo there is nothing to replay: the details are the page. The first messages may not know of the demo yet. */
let messages = 0;
function showDetails({ now, link }) {
  if (document.body.dataset.known || (!now && link.state !== "lost")) return;
  messages += 1;
  if (now && !now.demo && messages < 3) return;
  setData(document.body, "known", true);
  if (!now?.demo) byId("details").open = true;
}

const stage = new Stage();
const own = new OwnSale((run) => stage.watch(run));
const parts = [showLink, showDetails, showSale, showLock, showNotes, (known) => own.show(known), (known) => stage.show(known)];

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
const connection = new Connection(`events${location.search}`, {
  message(now) {
    Object.assign(known, { now, heardAt: Date.now() });
    show();
  },
  status(link) {
    known.link = link;
    show();
  },
});

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  // a pasted text may have invisible characters, which no header can have
  connection.show(byId("token").value.replace(/[^!-~]/g, ""));
  byId("token").value = "";
});
