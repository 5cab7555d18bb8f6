// The last run and its verdict, in words.

import { byId, setData, setShown, setText } from "../page/dom.js";
import { count, counted, duration, sentence } from "../page/format.js";
import { guardOf } from "../page/guards.js";

const FAULTS = { pause: "was paused while it held the lock", kill: "was killed while it sold" };
/** What happens during such a run: it takes some seconds. */
const MEANWHILE = {
  pause: (victim) => `${victim} sleeps while it holds the lock, for longer than a lease lasts. Then it wakes up and writes.`,
  kill: (victim) => `${victim} is killed while it holds the lock. No instance can sell until its claim ends.`,
};
const SIGNS = { pass: "✓", fail: "✕", busy: "", quiet: "" };
/** Runs that end without a verdict and without a fault, by the server's sentence. */
const WITHOUT_VERDICT = {
  "The run was stopped.": { title: "Stopped", text: "The run was stopped before its end, so there is no verdict." },
  "Another sale was started meanwhile.": {
    title: "No verdict",
    text: "Another sale was started during the run, so its answers cannot be compared with the stock.",
  },
};

export function showVerdict({ now }) {
  const panel = byId("verdict");
  setShown(panel, Boolean(now?.demo));
  if (!now?.demo) return;
  const { run } = now.demo;
  const { tone, title, text } = reading(run);
  setData(panel, "tone", tone);
  setData(panel, "run", run?.id);
  setText(byId("verdict-sign"), SIGNS[tone]);
  const isEarlier = run?.verdict && now.stock && (run.stock !== now.stock.initial || run.sold > now.sold);
  setText(byId("verdict-title"), isEarlier ? `An earlier sale: ${title}` : title);
  setText(byId("verdict-text"), text);
  setText(byId("verdict-run"), run ? about(run) : "");
}

function reading(run) {
  if (!run) {
    return {
      tone: "quiet",
      title: "No run yet",
      text: "Run a sale. All buyers order at the same moment. Then the answers are compared with the stock and the ledger.",
    };
  }
  if (run.state === "failed") return failure(run);
  if (run.state === "done" && run.verdict) {
    const { pass, text } = run.verdict;
    return { tone: pass ? "pass" : "fail", title: pass ? "Correct" : "Wrong", text };
  }
  if (run.state === "preparing") return { tone: "busy", title: "Preparing", text: "The sale is started." };
  if (run.state === "checking") {
    return { tone: "busy", title: "Checking", text: "The answers are compared with the stock and the ledger." };
  }
  const text = MEANWHILE[run.fault]?.(run.victim ?? "the holder") ?? "All of them at the same moment, at all instances.";
  const title = run.hit_ms === null ? "The buyers are coming" : run.fault === "kill" ? "The holder is dead" : "The holder is asleep";
  return { tone: "busy", title, text };
}

/** A run without a verdict: it was stopped, or it failed. */
function failure({ error, answered }) {
  const text = sentence(error ?? "The cause is not known.");
  if (WITHOUT_VERDICT[text]) return { tone: "quiet", ...WITHOUT_VERDICT[text] };
  return { tone: "fail", title: answered > 0 ? "The run was not completed" : "The run could not begin", text };
}

/** The run and its result, in numbers. */
function about(run) {
  const { words, hasTokens } = guardOf(run);
  const guard = words + (hasTokens && !run.fence ? " without the fence" : "");
  const fault = run.fault && run.victim ? `; instance ${run.victim} ${FAULTS[run.fault] ?? run.fault}` : "";
  const tried = `${counted(run.stock, "unit")}, ${counted(run.requests, "buyer")}, ${guard}${fault}.`;
  if (run.state === "preparing" || (run.state === "failed" && run.answered === 0)) return tried;
  const failed = run.failed > 0 ? `, ${count(run.failed)} without an answer` : "";
  const refused = run.verdict?.stale_batches ? ` Batches that the fence refused: ${count(run.verdict.stale_batches)}.` : "";
  return `${tried} ${count(run.answered)} answered in ${duration(run.elapsed_ms)}: `
    + `${count(run.sold)} reserved, ${count(run.sold_out)} told sold out${failed}.${refused}`;
}
