// A sale of the visitor's own, and what the last run came to. Only a demo has it.

import { NO_ANSWER, call, isRunning } from "../page/api.js";
import { byId, children, say, setData } from "../page/dom.js";
import { count, counted, duration, sentence } from "../page/format.js";
import { guardOf } from "../page/guards.js";

const FAULTS = { pause: "was paused while it held the lock", kill: "was killed while it sold" };
const STATES = { preparing: "The sale is started.", firing: "The buyers are coming.", checking: "The answers are compared with the stock." };

export class OwnSale {
  #demo = null;
  #isLive = false;
  #isCalling = false;
  #hasChosen = false;

  /** Tells `onRun` of each run that it starts. */
  constructor(onRun) {
    const form = byId("run-form");
    form.addEventListener("change", () => {
      this.#hasChosen = true;
      this.#limit();
    });
    const stock = () => byId("units").valueAsNumber;
    const choice = () => ({ guard: byId("guard").value, fence: byId("fence").checked });
    const actions = {
      run: async () => {
        onRun(await call("POST", "demo/run", { stock: stock(), requests: byId("buyers").valueAsNumber, fault: byId("fault").value || null, ...choice() }));
      },
      start: () => call("PUT", "stock", { stock: stock() }),
      apply: async () => {
        const { guard, fence } = choice();
        await call("PUT", "demo/guard", { guard });
        await call("PUT", "demo/fence", { on: fence });
      },
      stop: () => call("DELETE", "demo/run"),
    };
    // the browser says which number is wrong before it submits
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#do(event.submitter?.id ?? "run", actions);
    });
  }

  show({ now, link }) {
    this.#demo = now?.demo ?? null;
    this.#isLive = link.state === "live";
    byId("try").hidden = !this.#demo;
    if (!this.#demo) return;
    const { guards, guard, fence, max_stock: most, max_requests: mostBuyers } = this.#demo;
    byId("units").max = most;
    byId("buyers").max = mostBuyers;
    const options = children(byId("guard"), guards.length, () => document.createElement("option"));
    guards.forEach((name, index) => {
      if (options[index].value !== name) Object.assign(options[index], { value: name, text: guardOf(name).words });
    });
    // follows the changes of other pages until the visitor chooses something here
    if (!this.#hasChosen && byId("guard").value !== guard) byId("guard").value = guard;
    if (!this.#hasChosen) byId("fence").checked = fence;
    this.#limit();
    this.#showBusy();
    this.#showResult(now);
  }

  /** A fault and the fence need a lock with tokens. */
  #limit() {
    const isLock = guardOf(byId("guard").value).hasTokens;
    if (!isLock) byId("fault").value = "";
    for (const id of ["fault", "fence"]) byId(id).disabled = !isLock;
  }

  #showBusy() {
    const isBusy = isRunning(this.#demo.run);
    byId("stop").hidden = !isBusy;
    // not `disabled`: a button that has just been pressed would lose the focus
    for (const id of ["run", "start", "apply", "stop"]) {
      byId(id).ariaDisabled = !this.#isLive || this.#isCalling || (isBusy && id !== "stop");
    }
    say({ run: isBusy ? "Running" : "Run the sale" });
  }

  async #do(name, actions) {
    if (this.#isLive && byId(name).ariaDisabled === "true") return;
    say({ "form-error": "" });
    this.#isCalling = true;
    this.#showBusy();
    try {
      if (!this.#isLive) throw new Error(NO_ANSWER);
      await actions[name]();
    } catch (error) {
      say({ "form-error": sentence(error.message) });
    }
    this.#isCalling = false;
    this.#showBusy();
  }

  #showResult({ stock }) {
    const { run } = this.#demo;
    const panel = byId("verdict");
    panel.hidden = !run;
    if (!run) return;
    const [tone, title, text] = reading(run);
    setData(panel, "tone", tone);
    setData(panel, "run", run.id);
    const isEarlier = run.verdict && stock && run.sale !== stock.sale;
    say({
      "verdict-sign": { good: "✓", bad: "✕" }[tone] ?? "",
      "verdict-title": isEarlier ? `An earlier sale: ${title}` : title,
      "verdict-text": text,
      "verdict-run": about(run),
    });
  }
}

function reading({ state, verdict, error, fault, hit_ms: hit }) {
  if (verdict) return verdict.pass ? ["good", "Correct", verdict.text] : ["bad", "Wrong", verdict.text];
  if (state === "failed") return ["quiet", "No verdict", sentence(error ?? "The cause is not known.")];
  if (state !== "firing" || hit === null) return ["quiet", "Running", STATES[state]];
  return fault === "kill"
    ? ["quiet", "The holder is dead", "No instance can sell until its claim ends."]
    : ["quiet", "The holder is asleep", "It sleeps for longer than its lease lasts. Then it wakes up and writes."];
}

function about(run) {
  const { words, hasTokens } = guardOf(run.guard);
  const fault = run.fault && run.hit_ms !== null ? `; instance ${run.victim} ${FAULTS[run.fault]}` : "";
  const failed = run.failed > 0 ? `, ${count(run.failed)} without an answer` : "";
  const refused = run.verdict?.stale_batches ? ` Batches that the fence refused: ${count(run.verdict.stale_batches)}.` : "";
  return `${counted(run.stock, "unit")}, ${counted(run.requests, "buyer")}, ${words}${hasTokens && !run.fence ? " without the fence" : ""}${fault}. `
    + `${count(run.answered)} answered in ${duration(run.elapsed_ms)}: ${count(run.sold)} reserved, ${count(run.sold_out)} told sold out${failed}.${refused}`;
}
