// Calls of the demo's API. A failure is an Error with a sentence for the visitor.

/** What a visitor reads when the instance is away. */
export const NO_ANSWER = "The instance does not answer. Try again when this page is live.";
/** The limit for each call. A run answers at once and goes on by itself. */
const TIMEOUT_MS = 10_000;

/** Sends `body` as JSON and returns the body of the answer. */
export async function call(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new Error(NO_ANSWER);
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.detail ?? answer?.title ?? `The instance answered ${response.status}.`);
  return answer;
}

/** Whether this run of the demo is not over yet. */
export const isRunning = (run) => ["preparing", "firing", "checking"].includes(run?.state);
