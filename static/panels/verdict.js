// How the last run went, in words.

import { byId, setData, setShown, setText } from "../page/dom.js";
import { count, counted, duration } from "../page/format.js";

const GUARDS = { etcd: "the etcd lock", local: "a lock in each process", "no-lock": "no lock" };
const FAULTS = { pause: "was paused while it held the lock", kill: "was killed while it sold" };
/** What there is to see while it happens: it takes some seconds. */
const MEANWHILE = {
  pause: (victim) => `${victim} stops in the middle of its turn. Its lease runs out, and the next one gets the lock. Then ${victim} wakes up.`,
  kill: (victim) => `${victim} is killed in the middle of its turn. Nobody can sell until its lease has run out.`,
};
const SIGNS = { pass: "✓", fail: "✕", busy: "", quiet: "" };
/** The server's words for a run that has no verdict, and is no fault. */
const WITHOUT_VERDICT = {
  "The run was stopped.": { title: "Stopped", text: "It was stopped before its end, so there is no verdict." },
  "Another sale was started meanwhile.": {
    title: "No verdict",
    text: "Another sale was started meanwhile, so what the buyers were told cannot be compared with what was sold.",
  },
};

export function showVerdict({ now }) {
  const panel = byId("verdict");
  setShown(panel, Boolean(now?.demo));
  if (!now?.demo) return;
  const { run } = now.demo;
  const { tone, title, text } = reading(run);
  setData(panel, "tone", tone);
  setText(byId("verdict-sign"), SIGNS[tone]);
  setText(byId("verdict-title"), title);
  setText(byId("verdict-text"), text);
  setText(byId("verdict-run"), run ? about(run) : "");
  const share = run ? Math.min(1, run.answered / Math.max(1, run.requests)) : 0;
  byId("progress-done").style.transform = `scaleX(${share})`;
}

function reading(run) {
  if (!run) {
    return {
      tone: "quiet",
      title: "Nothing was tried from this page yet",
      text: "Choose something to try. All buyers come at the same moment, and the result is checked to the last unit.",
    };
  }
  if (run.state === "failed") return failure(run);
  if (run.state === "done" && run.verdict) {
    const { pass, text } = run.verdict;
    return { tone: pass ? "pass" : "fail", title: pass ? "Correct" : "Wrong", text };
  }
  if (run.state === "preparing") return { tone: "busy", title: "Getting ready", text: "The units are put on sale." };
  if (run.state === "checking") {
    return { tone: "busy", title: "Counting", text: "What the buyers were told is compared with the stock and the orders." };
  }
  const text = MEANWHILE[run.fault]?.(run.victim ?? "the holder") ?? "All of them at the same moment, at all instances.";
  return { tone: "busy", title: "The buyers are coming", text };
}

/** A run without a verdict: somebody stopped it, or it could not be carried out. */
function failure({ error, answered }) {
  const text = sentence(error ?? "It is not known why.");
  if (WITHOUT_VERDICT[text]) return { tone: "quiet", ...WITHOUT_VERDICT[text] };
  return { tone: "fail", title: answered > 0 ? "The run did not get to its end" : "The run could not begin", text };
}

/** With a capital at its start and a full stop at its end. */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** What was tried, and what came of it, in numbers. */
function about(run) {
  const guard = run.guard === "etcd" && !run.fence ? "the etcd lock without the fence" : (GUARDS[run.guard] ?? run.guard);
  const fault = run.fault && run.victim ? `; instance ${run.victim} ${FAULTS[run.fault] ?? run.fault}` : "";
  const tried = `${counted(run.stock, "unit")}, ${counted(run.requests, "buyer")}, ${guard}${fault}.`;
  if (run.state === "preparing" || (run.state === "failed" && run.answered === 0)) return tried;
  const failed = run.failed > 0 ? `, ${count(run.failed)} without an answer` : "";
  const refused = run.verdict?.stale_batches ? ` Batches that the fence refused: ${count(run.verdict.stale_batches)}.` : "";
  return `${tried} ${count(run.answered)} answered in ${duration(run.elapsed_ms)}: `
    + `${count(run.sold)} reserved, ${count(run.sold_out)} told sold out${failed}.${refused}`;
}
