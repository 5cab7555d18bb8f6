// What the laboratory adds to the page: two locks side by side, and the scoreboard.

import { make } from "../../static/page/dom.js";
import { Beside } from "./beside.js";
import { Scoreboard } from "./scoreboard.js";

const sheet = make("link");
Object.assign(sheet, { rel: "stylesheet", href: new URL("panels.css", import.meta.url) });
// before the panels are there: without it, they are too wide for a phone
await new Promise((done) => {
  sheet.onload = done;
  sheet.onerror = done;
  document.head.append(sheet);
});

export class Panels {
  #scoreboard = new Scoreboard();
  #beside = null;

  constructor() {
    // rows that are added there move nothing else
    document.querySelector(".side").append(this.#scoreboard.panel);
  }

  /** Shows the state of the page. */
  show(state) {
    const { demo } = state.now;
    if (demo.beside && !this.#beside) {
      this.#beside = new Beside(this.#scoreboard);
      document.querySelector(".stage").before(this.#beside.panel, this.#scoreboard.panel);
    }
    this.#beside?.show(state);
    this.#scoreboard.take(demo.run, demo.fence_kind);
  }
}
