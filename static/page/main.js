// Connects the parts: messages go into the state, and the panels show the state.

import { Connection } from "./connection.js";
import { State } from "./state.js";
import { Renderer } from "./renderer.js";
import { showLink } from "../panels/link.js";
import { showTroubles } from "../panels/troubles.js";
import { showSum } from "../panels/sum.js";
import { showVerdict } from "../panels/verdict.js";
import { showLock } from "../panels/lock.js";
import { Timeline } from "../panels/timeline.js";
import { showTenures } from "../panels/tenures.js";
import { StockChart } from "../panels/stock-chart.js";
import { RateChart } from "../panels/rate-chart.js";
import { showLatency } from "../panels/latency.js";
import { showOrders } from "../panels/orders.js";
import { showNotes } from "../panels/notes.js";
import { TryIt } from "../panels/try.js";
import { showWords } from "../panels/words.js";

const state = new State();
const [timeline, stockChart, rateChart] = [new Timeline(), new StockChart(), new RateChart()];
const tryIt = new TryIt();

/** Further panels, which the instances of the laboratory name and serve. */
let panels = null;
function showPanels(state) {
  const path = state.now?.demo?.panels;
  if (!path) return;
  panels ??= import(new URL(path, document.baseURI)).then(({ Panels }) => new Panels());
  panels.then((panels) => panels.show(state));
}

const renderer = new Renderer(state, {
  // once for each message
  onNews: [
    showLink, showTroubles, showSum, showVerdict, showLock, showTenures, showLatency, showOrders, showNotes,
    showWords, (state) => tryIt.show(state), showPanels,
  ],
  // once for each frame, while something moves
  onFrame: [timeline, stockChart, rateChart],
});

const connection = new Connection(`events${location.search}`, {
  message: (message, isSnapshot) => {
    state.merge(message, isSnapshot);
    renderer.news();
  },
  status: (status) => {
    state.setLink(status);
    renderer.news();
  },
});
// the age of the figures grows without news
setInterval(() => state.link.state === "lost" && renderer.news(), 1000);
renderer.news();
connection.open();
