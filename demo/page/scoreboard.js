// What was tried on this page: one row for each run, until the tab is closed.

import { children, make, setData, setText } from "../../static/page/dom.js";
import { count, duration } from "../../static/page/format.js";
import { fenceOf, labelOf } from "../../static/page/guards.js";

const KEY = "flash-sale-scoreboard";
const MOST = 50;
const COLUMNS = ["lock", "fence", "fault", "sold", "oversold", "takeover", "verdict"];
const NUMBERS = new Set(["sold", "oversold", "takeover"]);
const FAULTS = { pause: "holder paused", kill: "holder killed" };

export class Scoreboard {
  /** Newest first. */
  #rows = stored();
  #body = make("tbody");
  #none = make("p", "none");
  panel = make("section", "panel scoreboard");

  constructor() {
    const title = make("h2", "", "Scoreboard");
    title.id = "scoreboard-title";
    this.panel.id = "scoreboard";
    this.panel.setAttribute("aria-labelledby", title.id);
    const table = make("table", "table");
    // on a phone the cells of a row stand in lines, and the roles are no longer those of the elements
    table.role = "table";
    const head = make("tr");
    head.role = "row";
    for (const column of COLUMNS) {
      const cell = make("th", NUMBERS.has(column) ? "n" : "", column);
      Object.assign(cell, { scope: "col", role: "columnheader" });
      head.append(cell);
    }
    table.append(make("thead"), this.#body);
    table.tHead.append(head);
    const note = make("p", "note", `Each run of this tab, newest first. It keeps the last ${MOST} rows, also when the page is loaded again.`);
    this.panel.append(title, note, table, this.#none);
    this.#show();
  }

  /** Adds the run if it is over and not there yet; `fenceKind` is the fence of its demo. */
  take(run, fenceKind) {
    if (run?.state !== "done" && run?.state !== "failed") return;
    const id = `${run.guard} ${run.id}`;
    if (this.#rows.some((row) => row.id === id)) return;
    this.#rows = [{
      id,
      lock: run.guard,
      fault: FAULTS[run.fault] ?? "none",
      ...figures(run, fenceKind),
      ...(run.verdict ? {} : { oversold: "–" }),
      verdict: run.verdict ? (run.verdict.pass ? "PASS" : "FAIL") : "no verdict",
    }, ...this.#rows].slice(0, MOST);
    this.#store();
    this.#show();
  }

  #show() {
    const rows = children(this.#body, this.#rows.length, makeRow);
    this.#rows.forEach((row, index) => {
      COLUMNS.forEach((column, at) => {
        setText(rows[index].children[at], column === "lock" ? labelOf(row.lock) : row[column]);
      });
      setData(rows[index], "verdict", row.verdict);
    });
    setText(this.#none, this.#rows.length === 0 ? "No run yet." : "");
  }

  #store() {
    try {
      sessionStorage.setItem(KEY, JSON.stringify(this.#rows));
    } catch {
      // without storage, the rows stay until the page is loaded again
    }
  }
}

/** What a run has come to so far; `fenceKind` is the fence of its demo. */
export function figures(run, fenceKind) {
  const { verdict } = run;
  return {
    sold: `${count(run.sold)} of ${count(run.stock)}`,
    oversold: count(verdict?.oversold ?? Math.max(0, run.sold - run.stock)),
    takeover: run.fault && verdict ? (verdict.takeover_ms === null ? "none" : duration(verdict.takeover_ms)) : "–",
    fence: fenceOf(run, run.fence, fenceKind) ?? "–",
  };
}

/** The rows of this tab, from before the page was loaded. */
function stored() {
  try {
    const rows = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    const isRow = (row) => ["id", ...COLUMNS].every((column) => typeof row?.[column] === "string");
    return rows.filter(isRow).slice(0, MOST);
  } catch {
    return [];
  }
}

function makeRow() {
  const row = make("tr");
  row.role = "row";
  for (const column of COLUMNS) {
    const cell = make("td", NUMBERS.has(column) ? "n" : "");
    cell.role = "cell";
    setData(cell, "column", column);
    row.append(cell);
  }
  return row;
}
