// The same burst as the load test's, for k6: REQUESTS orders from CONCURRENCY virtual users at once, each order with an
// id of its own. k6's checks and thresholds are the proof. For a verdict order by order, and for payments, use `loadtest`.
//
//   k6 run loadtest/k6.js
//   k6 run -e URLS=http://127.0.0.1:8080,http://127.0.0.1:8090 -e REQUESTS=500 -e STOCK=300 loadtest/k6.js
//
// k6 ends with an exit code other than 0 if a threshold fails.
//
// | variable           | default                                       | meaning                            |
// |--------------------|-----------------------------------------------|------------------------------------|
// | URLS               | http://127.0.0.1:8080,http://127.0.0.1:8090   | the instances                      |
// | REQUESTS           | 500                                           | how many orders                    |
// | CONCURRENCY        | as REQUESTS, at most 500                      | how many virtual users             |
// | STOCK              | 300                                           | the sale is started afresh with it |
// | HOLD_SECONDS       | (none)                                        | units are held so long, not paid   |
// | ITEM               | (the default item)                            | what to order                      |
// | ADMIN_TOKEN_FILE   | (none)                                        | needed unless it is a demo         |
// | SHOP_TOKEN_FILE    | as ADMIN_TOKEN_FILE                           | reads the ledger                   |
//
// Its types: npm install typescript @types/k6 && npx tsc --noEmit --allowJs --checkJs --strict --lib es2022 --module
// es2022 --moduleResolution bundler --types k6 loadtest/k6.js

import http from 'k6/http';
import exec from 'k6/execution';
import { check, fail, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const urls = (__ENV.URLS || 'http://127.0.0.1:8080,http://127.0.0.1:8090').split(',');
const requests = Number(__ENV.REQUESTS || 500);
const stock = Number(__ENV.STOCK || 300);
const holdSeconds = Number(__ENV.HOLD_SECONDS || 0);
const query = __ENV.ITEM ? `?item=${encodeURIComponent(__ENV.ITEM)}` : '';
// files can be opened only here, before the run
const tokenIn = (/** @type {string | undefined} */ file) => (file ? open(file).trim().split('\n')[0].trim() : '');
const adminToken = tokenIn(__ENV.ADMIN_TOKEN_FILE);
const shopToken = tokenIn(__ENV.SHOP_TOKEN_FILE) || adminToken;

const RETRIES = 20;
// how long a buyer waits for units that are held; who gives up then is held out
const PATIENCE_SECONDS = 30;
const heldOut = new Counter('held_out');
const willBeSold = Math.min(stock, requests);

export const options = {
  scenarios: {
    sale: {
      executor: 'shared-iterations',
      vus: Math.min(Number(__ENV.CONCURRENCY || 500), requests),
      iterations: requests,
      maxDuration: '2m',
    },
  },
  thresholds: { checks: ['rate==1'] },
};

// being told sold out, to wait, or that a sale runs already, is no failed request
http.setResponseCallback(http.expectedStatuses(200, 409, 428, 429, 503));

export function setup() {
  /** @type {Record<string, string>} */
  const headers = { 'Content-Type': 'application/json' };
  if (adminToken) {
    headers.Authorization = `Bearer ${adminToken}`;
  }
  const run = `k6-${Date.now()}-${Math.floor(Math.random() * 2 ** 32)}`;
  const start = (/** @type {object} */ terms) =>
    http.put(`${urls[0]}/stock${query}`, JSON.stringify(terms), { headers });
  const terms = holdSeconds > 0 ? { stock, hold_seconds: holdSeconds } : { stock };
  let started = start(terms);
  if (started.status === 428) {
    // in place of a sale with orders
    headers['If-Match'] = '*';
    started = start({ ...terms, sale: run });
  }
  if (started.status < 200 || started.status > 299) {
    fail(`the sale cannot be started (status ${started.status}): ${started.body}`);
  }
  return { run };
}

// The first answer that is one; the next instance is asked if the one before did not answer.
export default function (/** @type {{ run: string }} */ { run }) {
  const number = exec.scenario.iterationInTest;
  const headers = { 'Idempotency-Key': `${run}-${number}` };
  const patientUntil = Date.now() + PATIENCE_SECONDS * 1000;
  for (let attempt = 0; attempt <= RETRIES; ) {
    const url = urls[(number + attempt) % urls.length];
    const answer = http.post(`${url}/stock/reduce${query}`, null, { headers, timeout: '15s' });
    const isHeld = answer.status === 409 && ['all-held', 'paused'].includes(answer.json('type'));
    const wait = Math.max(Number(answer.headers['Retry-After']) || 0, Math.min(0.02 * 2 ** attempt, 1));
    if (isHeld && Date.now() + wait * 1000 >= patientUntil) {
      heldOut.add(1);
      return;
    }
    if (!isHeld && ![0, 429, 502, 503, 504].includes(answer.status)) {
      check(answer, { 'an order is reserved or told sold out': (a) => [200, 409].includes(a.status) });
      return;
    }
    sleep(wait);
    attempt += isHeld ? 0 : 1;
  }
  check(null, { 'every order is answered': () => false });
}

export function teardown() {
  for (const url of urls) {
    const sale = /** @type {Record<string, number>} */ (http.get(`${url}/stock${query}`).json());
    check(sale, {
      'no unit appeared and none vanished': (s) => s.initial === stock && s.stock + s.lucky === stock,
      'each unit that can be sold is sold once': (s) =>
        holdSeconds > 0 || s.lucky === willBeSold && s.orders === willBeSold,
    });
  }
  const headers = shopToken ? { Authorization: `Bearer ${shopToken}` } : {};
  const ids = [];
  for (let next = '0'; next; ) {
    const path = `${urls[0]}/orders${query}${query ? '&' : '?'}limit=1000&after=${next}`;
    const answer = http.get(path, { headers });
    if (answer.status !== 200) {
      fail(`the ledger cannot be read (status ${answer.status}), with SHOP_TOKEN_FILE: ${answer.body}`);
    }
    const page = /** @type {{ orders: { order: string, event: string }[], next: string }} */ (/** @type {unknown} */ (answer.json()));
    ids.push(...page.orders.filter(({ event }) => event === 'reserved').map(({ order }) => order));
    ({ next } = page);
  }
  // units of holds that ended are reserved again
  const isAll = holdSeconds > 0 ? ids.length >= willBeSold : ids.length === willBeSold;
  check(ids, { 'the ledger has each order once': (all) => isAll && new Set(all).size === all.length });
}
