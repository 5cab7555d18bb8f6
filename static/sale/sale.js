// The page of one item's sale, for operators. What it shows comes from `GET /stock`, `/orders`, `/metrics`, `/readyz` and `/lock`.

import { byId, list, say, setData } from "../page/dom.js";
import { count, counted, duration, moments, sentence, when } from "../page/format.js";

/** A change may take longer: the instance waits for the lock, and then for the store. */
const [POLL_MS, READ_MS, CHANGE_MS] = [2000, 5000, 15_000];
/** How often a change is sent that may have been done; how many entries are shown; the time of the recent figures. */
const [ATTEMPTS, ENTRIES, WINDOW_MS] = [30, 10, 30_000];
/** Outcomes of orders that are no refusals. */
const DONE = ["reserved", "confirmed", "cancelled", "returned"];
const STATES = {
  running: ["Running.", "Buyers can order.", "good"],
  paused: ["Paused.", "New orders are refused until the sale is resumed. What is held can still be paid.", "warn"],
  scheduled: ["Scheduled.", "Orders are refused until it starts."],
  "all-held": ["All held.", "No unit is left, and some are held: buyers are told to try again.", "warn"],
  "sold-out": ["Sold out.", "No unit is left, and none is held."],
  ended: ["Ended.", "New orders are refused. What is held can still be paid."],
};

let item = new URLSearchParams(location.search).get("item") ?? "";
/** In memory alone. */
let token = null;
/** `new`: it is not known yet whether a token is needed; `locked`: one is; `open`. */
let mode = "new";
/** Grows with each item and token: later answers to earlier questions are dropped. */
let view = 0;
/** The newest state of the sale and when it was read, the figures of this instance, and what each part says of itself. */
let stock, readAt, samples, health;
/** Why this instance shows no ledger, if it has no token; the change that is proposed, or was sent. */
let isOff, asked;

const rows = (id, shown) => list(byId(id), shown);
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
const both = (at) => moments(at).join(", UTC ");
/** A value of an answer, a time in both forms. */
const valueOf = (name, value) => (/(_at|_until|time|changed)$/.test(name) && Date.parse(value) ? both(value) : value);
const units = (number) => counted(number, "unit");
const reason = ({ status, body }) => sentence(body?.detail ?? body?.title ?? `the instance answered ${status}`);
const isDown = ({ status }) => status === 0 || status >= 500;
const ofItem = () => (item ? { item } : {});
const named = () => (item ? `of item ${item}` : "of the default item");

/** Calls the instance. The status 0 means that no whole answer came. */
async function call(path, query, { method = "GET", headers, body, ms = READ_MS } = {}) {
  const authorization = token === null ? {} : { authorization: `Bearer ${token}` };
  const options = { method, body, signal: AbortSignal.timeout(ms), cache: "no-store", headers: { ...headers, ...authorization } };
  try {
    const answer = await fetch(`${path}?${new URLSearchParams(query)}`, options);
    const isJson = answer.headers.get("content-type")?.includes("json");
    return { status: answer.status, isRepeated: answer.headers.has("idempotency-replayed"), body: isJson ? await answer.json() : await answer.text() };
  } catch {
    return { status: 0, body: { detail: `the instance gave no answer within ${duration(ms)}` } };
  }
}

/** The answer is for an earlier view: nobody waits for it. */
const EARLIER = new Error("this is the answer for an earlier view");
const complain = (error) => error !== EARLIER && console.error(error);

/** The same for what is shown. */
async function read(path, query = {}) {
  const of = view;
  const answer = await call(path, query);
  if (of === view && answer.status === 401) begin("locked", reason(answer));
  if (of !== view) throw EARLIER;
  return answer;
}

/** Shows nothing, until it is known that no token is needed, or this one permits it. */
function begin(to, notice = "") {
  view += 1;
  [mode, stock, readAt, samples, health] = [to, null, null, [], {}];
  byId("shown").hidden = true;
  byId("token-form").hidden = to !== "locked";
  byId("item").value = item;
  for (const id of ["entries", "found", "refusals"]) rows(id, []);
  say({ notice: token !== null && notice ? `This token is not accepted: ${notice}` : "", "order-none": "", done: "" });
  if (to === "locked") token = null;
  else enter();
}

/** Asks whether this token, or none, may read the ledger: with the limit 0 nobody gets a page, and the status tells. */
async function enter() {
  const of = view;
  const answer = await call("orders", { limit: 0 });
  if (of !== view) return;
  if ([401, 431].includes(answer.status)) return begin("locked", reason(answer));
  isOff = answer.status === 403 && reason(answer);
  if (isDown(answer)) return say({ notice: `Not known: ${reason(answer)} This page keeps trying.` });
  say({ notice: isOff || "" });
  mode = "open";
  looks.forEach((look) => look().catch(complain));
}

const note = (name, isGood, text) => {
  health[name] = `${isGood === null ? "" : isGood ? "✓ " : "✕ "}${text}`;
  rows("health", ["this instance", "Redis", "lock", "instances at the lock"].map((name) => [name, health[name] ?? "not known yet"]));
};

async function lookAtSale() {
  const answer = await read("stock", ofItem());
  const isKnown = [200, 404].includes(answer.status);
  if (isKnown) [stock, readAt] = [answer.status === 200 ? answer.body : null, new Date()];
  note("Redis", !isDown(answer), isDown(answer) ? reason(answer) : "answers");
  showSale(isKnown ? null : reason(answer));
  byId("shown").hidden = false;
  if (!isKnown || !stock || isOff) return say({ "entries-none": isOff || (stock ? "These are the last known ones." : "None.") });
  const query = { ...ofItem(), limit: 2 * ENTRIES };
  let page = await read("orders", query);
  // a position needs the ledger's name, which is not the sale's once a loss was accepted
  const [, name] = page.body?.next?.match(/^(.+):\d+$/) ?? [];
  if (name) page = await read("orders", { ...query, after: `${name}:${Math.max(0, stock.entries - ENTRIES)}` });
  if (page.status !== 200) return rows("entries", []), say({ "entries-none": reason(page) });
  const said = ({ change = {}, note }) => [...Object.entries(change).map(([field, value]) => `${field}: ${valueOf(field, value)}`), note ?? []].flat().join("; ");
  rows("entries", page.body.orders.slice(-ENTRIES).reverse().map((entry) => [entry.time ? when(entry.time) : "–",
    entry.event, count(entry.quantity), entry.user ?? "–", entry.order ?? said(entry), count(entry.remaining)]));
  say({ "entries-none": page.body.orders.length > 0 ? "" : "None yet." });
}

function showSale(failure) {
  const { state, id: saleId } = stock ?? {};
  const [name, text, tone] = failure ? ["Not known now:", `${failure}${readAt ? ` The figures are those of ${when(readAt)}.` : ""}`, "bad"]
    : stock ? STATES[state] ?? [state, ""] : ["No sale.", `No sale ${named()} was started.`];
  setData(byId("state"), "tone", tone);
  say({ "state-name": name, "state-text": stock && !saleId ? `${text} It was set up without an id, so it cannot be changed, only replaced.` : text, "read-at": readAt ? `as of ${when(readAt)}` : "", initial: count(stock?.initial),
    "sale-title": stock ? `Sale ${stock.id ?? "without an id"} ${named()}` : `The sale ${named()}` });
  const shown = { sale: stock, change: saleId, pause: saleId && !["paused", "ended"].includes(state), resume: saleId && state === "paused", end: saleId && state !== "ended" };
  for (const [id, isShown] of Object.entries(shown)) byId(id).hidden = !isShown;
  if (!stock) return;
  const { initial, lucky, units, sale, starts_at: starts, ends_at: ends } = stock;
  const parts = { left: stock.stock, held: units?.held ?? NaN, confirmed: units?.confirmed ?? NaN };
  for (const [part, value] of Object.entries(parts)) {
    say({ [part]: count(value) });
    byId(`bar-${part}`).style.flexGrow = Math.max(0, Number.isNaN(value) ? (part === "held" ? 0 : lucky) : value);
  }
  rows("times", [["set up", sale ? sale / 1000 : null, "–"], ["starts", starts, "at once"], ["ends", ends, "never"]]
    .map(([name, at, none]) => [name, ...(at ? moments(at) : [none, ""])]));
  const sum = stock.balanced ? `✓ ${count(initial)}` : `✕ ${count(stock.stock + lucky)}, not ${count(initial)}: units were lost or sold twice`;
  rows("terms", [["left, held and sold", sum], ["orders with a hold", count(stock.held)], ["changes so far", count(stock.version ?? 0)],
    ...Object.entries({ per_order: "units an order", per_user: "units a user", hold_seconds: "seconds of a hold" }).map(([field, name]) => [name, count(stock[field] ?? NaN)])]);
  for (const field of ["per_user", "hold_seconds"]) byId("change-form").elements[field].disabled = stock[field] === undefined;
}

async function lookAtInstance() {
  const { status, body } = await read("metrics");
  if (status !== 200) return say({ rate: "–", p99: "–", waiting: "–" });
  const now = { at: performance.now(), total: 0, outcomes: new Map(), within: new Map() };
  for (const [, metric, labels, text] of body.matchAll(/^flash_sale_(\w+)(?:\{(.*)\})? (\S+)$/gm)) {
    const label = (name) => labels.match(new RegExp(`${name}="([^"]*)"`))?.[1];
    if (metric === "info") now.name = label("name");
    if (metric === "orders_waiting") now.waiting = Number(text);
    if (metric === "orders_total") now.outcomes.set(label("outcome"), Number(text)), now.total += Number(text);
    if (metric === "order_seconds_bucket") now.within.set(label("le"), (now.within.get(label("le")) ?? 0) + Number(text));
  }
  const last = samples.at(-1) ?? now;
  const isMixed = last.name !== now.name;
  if (isMixed || last.total > now.total) samples = [];
  const [first] = (samples = [...samples.filter(({ at }) => now.at - at <= WINDOW_MS), now]);
  const grown = (of, key) => now[of].get(key) - (first[of].get(key) ?? 0);
  const [total, elapsed] = [now.total - first.total, now.at - first.at];
  const p99 = [...now.within.keys()].find((bound) => grown("within", bound) >= 0.99 * total);
  const refusals = [...now.outcomes].filter(([outcome, value]) => value > 0 && !DONE.includes(outcome)).sort(([, one], [, other]) => other - one);
  rows("refusals", refusals.map(([outcome, value]) => [outcome, count(grown("outcomes", outcome)), count(value)]));
  say({ instance: `${now.name ?? "no name"}${isMixed ? ", and others in turn: open one by its own address" : ""}`, waiting: count(now.waiting), elapsed: duration(elapsed),
    rate: count((1000 * total) / elapsed), p99: total === 0 ? "–" : p99 === "+Inf" ? "over 30 s" : duration(1000 * p99) });
}

async function lookAtHealth() {
  const [ready, lock] = await Promise.all([read("readyz"), read("lock", ofItem())]);
  note("this instance", ready.status === 200, ready.status === 200 ? "ready to sell" : `Not ready. ${reason(ready)}`);
  const who = ({ instance, key }) => instance ?? key;
  const { holder, queue = [] } = lock.body;
  const held = holder ? `held by ${who(holder)} for ${duration(holder.age_ms ?? NaN)}, token ${holder.token ?? "–"}` : "answers; nobody holds it";
  note("lock", lock.status === 200, lock.status === 200 ? held : reason(lock));
  note("instances at the lock", null, [...new Set(queue.map(who))].join(", ") || "none: they come with orders");
}

const looks = [lookAtSale, lookAtInstance, lookAtHealth];

/** Says what a change will do, and asks. */
function propose(change) {
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  asked = { method: "PATCH", key, match: stock?.id && `"${stock.id}:${stock.version ?? 0}"`, isUnknown: false, ...change };
  say({ done: "", "ask-title": `${asked.title}?`, "ask-text": asked.text });
  Object.assign(byId("note"), { value: "", readOnly: false });
  byId("note-label").hidden = asked.method !== "PATCH";
  show("", asked.yes, "Do nothing");
  byId("ask").showModal();
  byId("no").focus();
}

const show = (state, yes, no) => (say({ "ask-state": state, yes, no }), (byId("yes").hidden = !yes));

/** Sends it, and as long as it may have been done, again under the same key. */
async function send() {
  const change = asked;
  const { method, key, match, title, fields } = change;
  const note = method === "PATCH" && byId("note").value;
  const headers = { "idempotency-key": key, "content-type": "application/json", ...(match && { "if-match": match }) };
  const body = JSON.stringify({ ...fields, ...(note && { note }) });
  byId("note").readOnly = true;
  let known = "Sent. Waiting for the answer.";
  for (let attempt = 1; attempt <= ATTEMPTS && asked === change; attempt += 1) {
    const wasUnknown = change.isUnknown;
    change.isUnknown = true;
    show(known, "", "Stop asking");
    const answer = await call("stock", ofItem(), { method, headers, body, ms: CHANGE_MS });
    if (asked !== change) return;
    const [{ status }, type] = [answer, answer.body?.type];
    const isDone = status >= 200 && status < 300;
    // a refusal does not say what became of an earlier attempt, and the 503 of a proxy has no type
    change.isUnknown = !isDone && (wasUnknown || !((status >= 300 && status < 500) || type === "damaged" || (status === 503 && type)));
    if (isDone) {
      tell(`Done${answer.isRepeated && !wasUnknown ? " before" : ""}: ${title}.`, "good");
      byId("ask").close();
      emptyForms();
      return lookAtSale();
    }
    const hint = status === 412 ? " The sale has changed since this page read it: look again, and begin anew." : "";
    if (!change.isUnknown) return show(`Not done: ${reason(answer)}${hint}`, status === 429 || status >= 500 ? "Try again" : "", "Close");
    show((known = `It is unknown whether this was done. The page asks again under the same key, which does it once at most (${attempt} of ${ATTEMPTS}). Last answer: ${reason(answer)}`), "", "Stop asking");
    await sleep(POLL_MS);
  }
  if (asked === change) show(known, "Ask again", "Stop asking");
}

/** So that a second click does not do the same once more. */
function emptyForms() {
  for (const id of ["change-form", "start-form"]) byId(id).reset();
  byId("start-form").elements.sale.value = moments(Date.now())[1].replace(/\D+/g, "-");
}

const tell = (text, tone) => (say({ done: text }), setData(byId("done"), "tone", tone));

const holds = () => `${counted(stock.held, "order")} with an open hold`;
const of = () => `sale ${stock.id ?? "without an id"} ${named()}`;
const goesOn = () => `What is held (${holds()}) can still be confirmed and cancelled, and holds still expire.`;

/** What each field of a change or a start does. */
const WORDS = {
  add: (more) => more < 0 ? `Takes ${units(-more)} off sale, if so many are left then (now ${count(stock.stock)}), else none. Held and sold units stay.`
    : `Puts ${units(more)} more on sale: ${count(stock.stock + more)} with those that are left now. Who was told sold out must order again.`,
  starts_at: (at) => `Orders are accepted from ${both(at)} on.`,
  ends_at: (at) => `Orders are refused from ${both(at)} on.`,
  per_order: (most) => `An order takes ${units(most)} at most.`,
  per_user: (most) => `A user gets ${units(most)} at most.`,
  hold_seconds: (time) => `An order is held for ${counted(time, "second")} until it is paid.`,
};
const effects = (fields) => Object.entries(fields).flatMap(([name, value]) => WORDS[name]?.(value) ?? []).join(" ");

const READ = { number: Number, "datetime-local": (text) => new Date(text).toISOString() };
const fieldsOf = (form) => Object.fromEntries([...form.elements].filter(({ name, value, disabled }) => name && value && !disabled)
  .map(({ name, type, value }) => [name, READ[type]?.(value) ?? value]));

const actions = {
  pause: () => propose({ title: `Pause ${of()}`, yes: "Pause it", fields: { paused: true },
    text: `Buyers are told to try again later, until you resume the sale: ${units(stock.stock)} wait. ${goesOn()}` }),
  resume: () => propose({ title: `Resume ${of()}`, yes: "Resume it", fields: { paused: false },
    text: `Buyers can order again at once, if it has started and not ended: ${counted(stock.stock, "unit is", "units are")} left.` }),
  end: () => propose({ title: `End ${of()}`, yes: "End it now", fields: { ends_at: "now" },
    text: `Buyers are told from now on that the sale has ended, and ${units(stock.stock)} stay unsold. ${goesOn()} A later end, under “Units, times, limits”, opens it again.` }),
  change: (form) => {
    const fields = fieldsOf(form);
    if (Object.keys(fields).length === 0) return tell("There is nothing to change: fill in a field.", "bad");
    propose({ title: `Change ${of()}`, yes: "Change it", fields, text: `${effects(fields)} What buyers have, they keep, and holds that are open keep their end.` });
  },
  start: (form) => {
    const fields = fieldsOf(form);
    if (fields.sale === stock?.id) return tell("This sale runs already.", "bad");
    const replaced = stock ? `It replaces ${of()}, which has sold ${units(stock.lucky)}: its ledger is kept, but its holds end (${holds()}), and nobody can confirm them.` : "";
    propose({ title: `Start sale ${fields.sale} ${named()}`, yes: stock ? "Replace and start it" : "Start it", method: "PUT", key: fields.sale, match: stock?.id && `"${stock.id}"`, fields,
      text: [`Puts ${units(fields.stock)} on sale${fields.starts_at ? "" : " at once"}.`, effects(fields), replaced].filter(Boolean).join(" ") });
  },
  item: () => {
    item = byId("item").value;
    history.replaceState(null, "", item ? `?item=${item}` : location.pathname);
    begin("new");
  },
  token: () => {
    // a pasted text may have invisible characters, which no header can have
    token = byId("token").value.replace(/[^!-~]/g, "");
    byId("token-form").reset();
    begin("new");
  },
  order: async () => {
    const { value: user } = byId("user");
    const answer = await read("order", { ...ofItem(), order: byId("order").value, ...(user && { user }) });
    const found = answer.status === 200 ? Object.entries(answer.body) : [];
    rows("found", found.map(([name, value]) => [name, valueOf(name, value)]));
    say({ "order-none": answer.status === 200 ? "" : reason(answer) });
  },
};

for (const id of ["change", "start"]) byId(`${id}-form`).lastElementChild.before(byId("limits").content.cloneNode(true));
for (const [name, act] of Object.entries(actions)) {
  const form = document.getElementById(`${name}-form`);
  (form ?? byId(name)).addEventListener(form ? "submit" : "click", (event) => (event.preventDefault(), act(form)));
}
byId("yes").addEventListener("click", send);
byId("no").addEventListener("click", () => byId("ask").close());
byId("ask").addEventListener("close", () => {
  if (asked?.isUnknown) tell(`It is unknown whether this was done: ${asked.title}, under the key ${asked.key}. Look at the sale and its entries before you do it again.`, "bad");
  asked = null;
});
addEventListener("beforeunload", (event) => asked?.isUnknown && event.preventDefault());
emptyForms();

begin("new");
for (const look of looks) (async () => {
  for (;;) {
    await sleep(POLL_MS);
    if (mode === "open" && !document.hidden) await look().catch(complain);
    else if (mode === "new" && look === lookAtSale) await enter();
  }
})();
