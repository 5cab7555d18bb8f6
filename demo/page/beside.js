// Two locks side by side: the same buyers and the same fault, at the same time.

import { call } from "../../static/page/api.js";
import { children, make, makeSegment, setData, setShown, setText } from "../../static/page/dom.js";
import { count, duration, sentence } from "../../static/page/format.js";
import { labelOf } from "../../static/page/guards.js";
import { colour, makeTag, place, setTag } from "../../static/page/instances.js";
import { figures } from "./scoreboard.js";

const FAULTS = [["", "none"], ["kill", "kill the holder"], ["pause", "pause the holder"]];
const FIGURES = ["sold", "oversold", "takeover", "fence"];
const SALE = { stock: 300, requests: 500 };
const RUNNING = new Set(["preparing", "firing", "checking"]);
/** How often both sales are read while they run, and otherwise. */
const [LOOK_MS, IDLE_MS] = [400, 2000];
/** A sale shorter than this is drawn as if it took so long. */
const SHORTEST_MS = 20;

export class Beside {
  #scoreboard;
  #sides;
  #isLive = false;
  #isCalling = false;
  #timer = null;
  #isLooking = false;
  panel = make("section", "panel beside");

  constructor(scoreboard) {
    this.#scoreboard = scoreboard;
    this.panel.id = "beside";
    this.panel.setAttribute("aria-labelledby", "beside-title");
    this.panel.innerHTML = MARKUP;
    // its words are read out here, for both sales
    document.getElementById("verdict-text").removeAttribute("role");
    this.#sides = [new Side("left", "demo", this.panel), new Side("right", "demo/beside", this.panel)];
    for (const [value, text] of FAULTS) {
      this.#find("#both-faults").append(makeSegment("both-fault", value, text, value === ""));
    }
    this.#find("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    this.#find("form").addEventListener("change", () => this.#limit());
    this.#find("#both-stop").addEventListener("click", () => this.#each((side) => call("DELETE", `${side.path}/run`)));
    document.addEventListener("visibilitychange", () => this.#look());
    this.#look();
  }

  /** Takes in whether the page is connected. The rest it reads itself: the other sale has other events. */
  show({ link }) {
    this.#isLive = link.state === "live";
    this.#showButtons();
  }

  #find(selector) {
    return this.panel.querySelector(selector);
  }

  /** Reads both sales, shows them, and does so again after a while. */
  async #look() {
    clearTimeout(this.#timer);
    if (this.#isLooking || document.hidden) return;
    this.#isLooking = true;
    await Promise.all(this.#sides.map((side) => side.read()));
    this.#isLooking = false;
    for (const { news } of this.#sides) this.#scoreboard.take(news?.run, news?.fence_kind);
    this.#show();
    this.#timer = setTimeout(() => this.#look(), this.#isRunning() ? LOOK_MS : IDLE_MS);
  }

  #isRunning() {
    return this.#sides.some((side) => side.isRunning());
  }

  #show() {
    const span = Math.max(SHORTEST_MS, ...this.#sides.map((side) => side.length()));
    for (const side of this.#sides) side.show(span);
    this.#limit();
    this.#showButtons();
    const ends = this.#sides.map((side) => side.ending());
    setText(this.#find("#both-status"), ends.every(Boolean) ? ends.join(" ") : "");
  }

  /** A fault needs a holder under both guards, and a fence a token. */
  #limit() {
    const [left, right] = this.#sides;
    const haveHolders = left.isLock() && right.isLock();
    for (const radio of this.panel.querySelectorAll("input[name=both-fault]")) {
      radio.disabled = radio.value !== "" && !haveHolders;
      if (radio.disabled && radio.checked) this.#find("input[name=both-fault]").checked = true;
    }
    this.#find("#both-fence").disabled = !left.isLock() && !right.isLock();
  }

  #showButtons() {
    const isRunning = this.#isRunning();
    const run = this.#find("#both-run");
    setText(run, isRunning ? "Running" : "Run both");
    run.setAttribute("aria-disabled", String(!this.#isLive || isRunning || this.#isCalling));
    setShown(this.#find("#both-stop"), isRunning);
  }

  #run() {
    if (!this.#isLive || this.#isCalling || this.#isRunning()) return;
    const fault = this.#find("input[name=both-fault]:checked").value || null;
    const fence = this.#find("#both-fence").checked;
    this.#each((side) => call("POST", `${side.path}/run`, { ...SALE, guard: side.guard(), fence, fault }));
  }

  /** Calls both at the same time; each shows its own failure. */
  async #each(action) {
    this.#isCalling = true;
    this.#showButtons();
    await Promise.all(this.#sides.map(async (side) => {
      side.refusal = null;
      try {
        await action(side);
      } catch (error) {
        side.refusal = error.message;
      }
    }));
    this.#isCalling = false;
    this.#look();
  }
}

/** One lock and its sale. */
class Side {
  /** Its last answer. */
  news = null;
  /** Why there was none later. */
  #silence = null;
  /** Why it did not carry out the last call. */
  refusal = null;
  #name;
  #panel;

  constructor(name, path, panel) {
    this.#name = name;
    this.path = path;
    this.#panel = panel;
  }

  #find(what) {
    return this.#panel.querySelector(`#${this.#name}-${what}`);
  }

  async read() {
    try {
      this.news = await call("GET", `${this.path}/lanes`);
      // what failed while it was away is no news any more
      if (this.#silence !== null) this.refusal = null;
      this.#silence = null;
    } catch (error) {
      this.#silence = error.message;
    }
  }

  isRunning() {
    return this.#silence === null && RUNNING.has(this.news?.run?.state);
  }

  /** The guard that the visitor has chosen. */
  guard() {
    return this.#find("guards").querySelector("input:checked")?.value;
  }

  isLock() {
    return Boolean(this.news?.locks.includes(this.guard()));
  }

  /** How long the run has taken up to its last answer, in milliseconds. */
  length() {
    const { run, lanes, now_ms: now } = this.news ?? {};
    if (!run?.began_ms) return 0;
    if (this.isRunning()) return now - run.began_ms;
    // it was measured from the first order, which comes a little later
    const begun = lanes.flatMap((lane) => lane.tenures).map((tenure) => tenure.from_ms - run.began_ms);
    return Math.max(run.elapsed_ms, ...begun);
  }

  /** The end of the run in a few words; empty before it. */
  ending() {
    const { run } = this.news ?? {};
    if (!run?.verdict) return "";
    return `${labelOf(run.guard)}: ${run.verdict.pass ? "PASS" : "FAIL"}.`;
  }

  /** Shows all of it. The lanes are `span` milliseconds long. */
  show(span) {
    const { news } = this;
    const guards = this.#find("guards");
    if (news && guards.dataset.guards !== news.guards.join(" ")) {
      setData(guards, "guards", news.guards.join(" "));
      guards.replaceChildren(...news.guards.map((guard, index) =>
        makeSegment(`${this.#name}-guard`, guard, labelOf(guard), index === 0)));
    }
    const run = news?.run ?? null;
    const shown = run?.guard ?? news?.guards[0];
    setText(this.#find("name"), shown ? labelOf(shown) : "not known yet");
    setText(this.#find("promises"), !news ? "" : news.locks.includes(shown)
      ? news.promises.join(" · ") : "no promise: nothing excludes the other instances");
    const shownFigures = run ? figures(run, news.fence_kind) : {};
    for (const name of FIGURES) setText(this.#find(name), shownFigures[name] ?? "–");
    setData(this.#find("oversold"), "tone", (run?.verdict?.oversold ?? 0) > 0 && "bad");
    const { tone, title, text } = this.#reading(run);
    setData(this.#find("verdict"), "tone", tone);
    setText(this.#find("title"), title);
    setText(this.#find("text"), text);
    this.#showLanes(span);
  }

  #reading(run) {
    if (this.refusal) return { tone: "fail", title: "Not carried out", text: sentence(this.refusal) };
    if (this.#silence !== null) return { tone: "fail", title: "No answer", text: `${sentence(this.#silence)} This page keeps asking.` };
    if (!run) return { tone: "quiet", title: "No run yet", text: "Choose a fault and press Run both." };
    if (run.verdict) return { tone: run.verdict.pass ? "pass" : "fail", title: run.verdict.pass ? "✓ PASS" : "✕ FAIL", text: run.verdict.text };
    if (run.state === "failed") return { tone: "quiet", title: "No verdict", text: sentence(run.error) };
    return { tone: "quiet", title: "Running", text: `${count(run.sold + run.sold_out)} of ${count(run.requests)} buyers have their answer.` };
  }

  #showLanes(span) {
    const { run, lanes = [], locks = [] } = this.news ?? {};
    const names = lanes.map((lane) => ({ name: lane.instance }));
    const rows = children(this.#find("lanes"), lanes.length, makeLane);
    const hasTenures = Boolean(run) && locks.includes(run.guard);
    lanes.forEach((lane, index) => {
      const [tag, track, words] = rows[index].children;
      setTag(tag, names, lane.instance);
      const { blocks, text } = hasTenures ? this.#read(lane) : { blocks: [], text: run ? "no tenures: it takes no lock that the instances share" : "" };
      const parts = children(track, blocks.length, () => make("span"));
      blocks.forEach(({ kind, from, to, label = "" }, at) => {
        const part = parts[at];
        part.className = `block ${kind}`;
        part.style.left = `${(100 * from) / span}%`;
        part.style.width = to === undefined ? "" : `${(100 * Math.max(0, to - from)) / span}%`;
        part.style.background = kind === "tenure" ? `var(${colour(place(names, lane.instance))})` : "";
        setData(part, "end", from > span / 2);
        setText(part, label);
      });
      setText(words, lane.up ? text : [text, "does not answer"].filter(Boolean).join("; "));
    });
    setText(this.#find("end"), run?.began_ms ? duration(span) : "");
  }

  /** The blocks of a lane, in milliseconds since the buyers came, and the same in words. */
  #read(lane) {
    const { run, lanes } = this.news;
    const since = (ms) => ms - run.began_ms;
    const end = this.length();
    // a holder without rivals keeps the lock for a while after the last answer
    const tenures = lane.tenures.map((tenure) =>
      ({ ...tenure, from: since(tenure.from_ms), to: Math.min(end, tenure.to_ms === null ? end : since(tenure.to_ms)) }));
    const blocks = tenures.map(({ from, to }) => ({ kind: "tenure", from, to }));
    const words = [`${count(tenures.length)} ${tenures.length === 1 ? "tenure" : "tenures"}`];
    const others = lanes.filter((other) => other !== lane).flatMap((other) => other.tenures).map((tenure) => since(tenure.from_ms));
    if (run.victim === lane.instance && run.hit_ms !== null) {
      const hit = since(run.hit_ms);
      if (run.fault === "kill") {
        // its memory is gone, and so are its tenures
        const next = Math.min(end, ...others.filter((from) => from >= hit));
        blocks.push({ kind: "held", from: hit, to: next }, { kind: "mark", from: hit, label: "killed" });
        words.splice(0, 1, `killed at ${duration(hit)} while it held the lock`);
      } else {
        const { from, to, to_ms: wroteAt = null, refused = false } = tenures.find((tenure) => tenure.from <= hit && tenure.to > hit) ?? { from: hit, to: end };
        blocks.push({ kind: "held", from, to }, { kind: "mark", from, label: "paused" });
        words.push(`paused from ${duration(from)} to ${duration(to)}`);
        const isLate = !refused && wroteAt !== null && others.some((other) => other > from && other < to);
        if (isLate) blocks.push({ kind: "mark", from: to, label: "wrote late" });
        if (isLate) words.push("then it wrote, although another instance had held the lock since");
      }
    }
    for (const { to, refused } of tenures) {
      if (refused) blocks.push({ kind: "mark", from: to, label: "refused" });
    }
    if (tenures.some((tenure) => tenure.refused)) words.push("its stale write was refused");
    return { blocks, text: words.join("; ") };
  }
}

function makeLane() {
  const row = make("li", "lane");
  const track = make("div", "lane-track");
  // the words below say the same
  track.setAttribute("aria-hidden", "true");
  row.append(makeTag(), track, make("p", "lane-words"));
  return row;
}

const column = (name, title) => `
  <article class="column" aria-labelledby="${name}-name">
    <h3 class="column-name" id="${name}-name">${title}</h3>
    <p class="promises" id="${name}-promises"></p>
    <ol class="lanes" id="${name}-lanes"></ol>
    <p class="lane-axis" aria-hidden="true"><span>the buyers come</span><span id="${name}-end"></span></p>
    <dl class="scores-of">
      ${FIGURES.map((figure) => `<div><dt>${figure}</dt><dd id="${name}-${figure}">–</dd></div>`).join("")}
    </dl>
    <div class="verdict" id="${name}-verdict" data-tone="quiet">
      <p class="verdict-head"><b id="${name}-title">No run yet</b></p>
      <p class="verdict-text" id="${name}-text"></p>
    </div>
  </article>`;

// fixed text only: what comes from outside goes in as text
const MARKUP = `
  <div class="panel-head"><h2 id="beside-title">Two locks under the same fault</h2></div>
  <p class="note">${count(SALE.requests)} buyers come to each of two sales of ${count(SALE.stock)} units at the same moment. Each sale has its own
    instances, its own stock and its own lock. The fault hits the holder of both, between reading and writing.</p>
  <form class="both" novalidate>
    <fieldset><legend>Left</legend><div class="segments" id="left-guards"></div></fieldset>
    <fieldset><legend>Right</legend><div class="segments" id="right-guards"></div></fieldset>
    <fieldset><legend>Fault</legend><div class="segments" id="both-faults"></div></fieldset>
    <label class="check"><input type="checkbox" id="both-fence" checked> <span>Fence: the store refuses a holder that has lost the lock</span></label>
    <div class="buttons">
      <button type="submit" class="primary" id="both-run">Run both</button>
      <button type="button" id="both-stop" hidden>Stop</button>
    </div>
  </form>
  <div class="columns">${column("left", "Left")}${column("right", "Right")}</div>
  <p class="note">A coloured block is a tenure, as its instance sees it; hatched, its holder is paused or dead. If the
    blocks of two instances overlap, both take themselves for the holder. Below, the left sale in detail.</p>
  <p class="hidden" id="both-status" role="status"></p>`;
