// Connects the parts: messages go into the state, and the panels show the state.

import { Connection } from "./connection.js";
import { State } from "./state.js";
import { Stage } from "../stage/stage.js";
import { byId, setData } from "./dom.js";
import { showLink } from "../panels/link.js";
import { showTroubles } from "../panels/troubles.js";
import { showSum } from "../panels/sum.js";
import { showVerdict } from "../panels/verdict.js";
import { showLock } from "../panels/lock.js";
import { showLatency } from "../panels/latency.js";
import { showOrders } from "../panels/orders.js";
import { showNotes } from "../panels/notes.js";
import { TryIt } from "../panels/try.js";

const state = new State();
const [tryIt, stage] = [new TryIt(), new Stage()];

/** Without a demo there is nothing to replay: the details are the page. The first messages may not know of the demo yet. */
let messages = 0;
function showDetails({ now, link }) {
  if (document.body.dataset.known || (!now && link.state !== "lost")) return;
  messages += 1;
  if (now && !now.demo && messages < 3) return;
  setData(document.body, "known", true);
  if (!now?.demo) byId("details").open = true;
}

const parts = [
  showLink, showTroubles, showDetails, showSum, showVerdict, showLock, showLatency, showOrders, showNotes,
  (state) => tryIt.show(state), (state) => stage.show(state),
];

/** Shows the state in the next frame. A panel that fails must not stop the others. */
let frame = null;
function show() {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    for (const part of parts) {
      try {
        part(state);
      } catch (error) {
        console.error(error);
      }
    }
  });
}
const connection = new Connection(`events${location.search}`, {
  message: (message) => {
    state.merge(message);
    show();
  },
  status: (status) => {
    state.setLink(status);
    show();
  },
});
// the age of the figures grows without news
setInterval(() => state.link.state === "lost" && show(), 1000);
show();
connection.open();
