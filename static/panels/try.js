// The controls of a demo, where the server offers them.

import { NO_ANSWER, call } from "../page/api.js";
import { byId, makeSegment, setData, setShown, setText } from "../page/dom.js";
import { count } from "../page/format.js";
import { FENCES, labelOf } from "../page/guards.js";

const FAULTS = [["", "none"], ["pause", "pause"], ["kill", "kill"]];
const RUNNING = new Set(["preparing", "firing", "checking"]);

export class TryIt {
  #demo = null;
  #isCalling = false;
  #isLive = false;
  #hasChosen = false;

  constructor() {
    FAULTS.forEach(([value, text]) => byId("faults").append(makeSegment("fault", value, text, value === "")));
    Object.entries(FENCES).forEach(([value, text]) => byId("fences").append(makeSegment("fence", value, text, value === "lock")));
    byId("run-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const sale = this.#read();
      if (sale) this.#do(() => call("POST", "demo/run", sale));
    });
    byId("run-form").addEventListener("change", () => {
      this.#hasChosen = true;
      this.#limit();
    });
    byId("stop").addEventListener("click", () => this.#do(() => call("DELETE", "demo/run"), { whileRunning: true }));
    byId("start").addEventListener("click", () => {
      const stock = this.#units();
      if (stock !== null) this.#do(() => call("PUT", "stock", { stock }));
    });
    byId("apply").addEventListener("click", () => {
      const { guard, fence } = this.#choice();
      this.#do(async () => {
        await call("PUT", "demo/guard", { guard });
        await call("PUT", "demo/fence", { on: fence });
      });
    });
  }

  /** Shows the state of the demo. */
  show({ now, link }) {
    this.#demo = now?.demo ?? null;
    this.#isLive = link.state === "live";
    setShown(byId("try"), this.#demo !== null);
    setData(document.body, "demo", this.#demo !== null);
    if (!this.#demo) return;
    this.#showGuards();
    this.#showBusy();
  }

  #showGuards() {
    const { guard: now, guards, locks, fence, fence_kind: kind } = this.#demo;
    const box = byId("guards");
    // another demo may have started at this address
    if (box.dataset.guards !== guards.join(" ")) {
      setData(box, "guards", guards.join(" "));
      box.replaceChildren(...guards.map((guard) => makeSegment("guard", guard, labelOf(guard), guard === now)));
      this.#hasChosen = false;
    }
    const other = { lock: "store", store: locks[0] !== "redlock" && "lock" }[kind];
    const [words, flag] = byId("other-fence").children;
    setText(words, other ? `For ${FENCES[other]}, start the demo with` : "");
    setText(flag, other ? `--fence ${other}` : "");
    // follows the changes of other pages until the visitor chooses something here
    if (!this.#hasChosen) {
      this.#check("guard", now);
      this.#check("fence", this.#fence(fence));
    }
    this.#limit();
  }

  #showBusy() {
    const isRunning = this.#isRunning();
    setData(byId("try"), "busy", isRunning || this.#isCalling);
    setShown(byId("stop"), isRunning);
    // not `disabled`: a button that has just been pressed would lose the focus
    for (const button of byId("try").querySelectorAll("button")) {
      const isOff = !this.#isLive || this.#isCalling
        || (isRunning && (button.type === "submit" || button.id === "start" || button.id === "apply"));
      if (button.getAttribute("aria-disabled") !== String(isOff)) button.setAttribute("aria-disabled", String(isOff));
    }
    setText(byId("run"), isRunning ? "Running" : "Run the sale");
  }

  #isRunning() {
    return RUNNING.has(this.#demo?.run?.state);
  }

  /** The server accepts a fault only under the lock, so the form offers it only there. Of the fences it has one. */
  #limit() {
    const isLock = Boolean(this.#demo?.locks.includes(this.#choice().guard));
    for (const [value] of FAULTS) {
      const radio = this.#radio("fault", value);
      radio.disabled = value !== "" && !isLock;
      if (radio.disabled && radio.checked) this.#radio("fault", "").checked = true;
    }
    for (const value of Object.keys(FENCES)) {
      this.#radio("fence", value).disabled = !isLock || (value !== "none" && value !== this.#demo.fence_kind);
    }
  }

  #radio(name, value) {
    return byId("run-form").querySelector(`input[name="${name}"][value="${value}"]`);
  }

  #check(name, value) {
    const radio = this.#radio(name, value);
    if (radio) radio.checked = true;
  }

  /** The name of the fence of this demo, if it is on. */
  #fence(isOn) {
    return isOn ? (this.#demo.fence_kind ?? "lock") : "none";
  }

  #choice() {
    const chosen = (name) => byId("run-form").querySelector(`input[name="${name}"]:checked`)?.value;
    return { guard: chosen("guard") ?? this.#demo?.guard ?? "etcd", fence: chosen("fence") !== "none", fault: chosen("fault") || null };
  }

  #units() {
    return this.#whole(byId("units"), 0, this.#demo.max_stock, "units");
  }

  #whole(field, least, most, what) {
    const number = field.value.trim() === "" ? NaN : Number(field.value);
    const isRight = Number.isInteger(number) && number >= least && number <= most;
    field.setAttribute("aria-invalid", String(!isRight));
    this.#complain(isRight ? "" : `The number of ${what} must be a whole number from ${count(least)} to ${count(most)}.`);
    if (isRight) return number;
    field.focus();
    return null;
  }

  #read() {
    const stock = this.#units();
    if (stock === null) return null;
    const requests = this.#whole(byId("buyers"), 1, this.#demo.max_requests, "buyers");
    if (requests === null) return null;
    return { stock, requests, ...this.#choice() };
  }

  async #do(action, { whileRunning = false } = {}) {
    if (this.#isCalling || (!whileRunning && this.#isRunning())) return;
    if (!this.#isLive) {
      this.#complain(NO_ANSWER);
      return;
    }
    this.#isCalling = true;
    this.#complain("");
    this.#showBusy();
    try {
      await action();
    } catch (error) {
      this.#complain(error.message);
    } finally {
      this.#isCalling = false;
      this.#showBusy();
    }
  }

  #complain(text) {
    setText(byId("form-error"), text);
  }
}
