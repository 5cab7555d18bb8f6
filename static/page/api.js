// Calls of the demo's API. A failure is an Error with a sentence for the visitor.

/** No call takes longer than this: those that do much answer at once and go on by themselves. */
const TIMEOUT_MS = 10_000;

/** Sends `body` as JSON and returns the answer's. */
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
    throw new Error("The instance does not answer. Try again when this page is live.");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.detail ?? answer?.title ?? `The instance answered ${response.status}.`);
  return answer;
}
