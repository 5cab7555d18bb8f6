// The same burst as the load test's, for k6: REQUESTS orders from CONCURRENCY virtual users at once, each order with an
// id of its own. The answers and the stock at the end are the proof. For a verdict order by order, use `loadtest`.
//
//   k6 run loadtest/k6.js
//   k6 run -e URLS=http://127.0.0.1:8080,http://127.0.0.1:8090 -e REQUESTS=500 -e STOCK=300 loadtest/k6.js
//
// k6 ends with an exit code other than 0 if a threshold or a check fails.
//
// | variable           | default                                       | meaning                           |
// |--------------------|-----------------------------------------------|-----------------------------------|
// | URLS               | http://127.0.0.1:8080,http://127.0.0.1:8090   | the instances                     |
// | REQUESTS           | 500                                           | how many orders                   |
// | CONCURRENCY        | as REQUESTS, at most 500                      | how many virtual users            |
// | STOCK              | 300                                           | the sale is started afresh with it |
// | ITEM               | (the default item)                            | what to order                     |
// | USERS, PER_USER    | (none)                                        | so many users, and units for each |
// | HOLD               | (none)                                        | how long a hold lasts, in seconds |
// | PAY, PAY_LATE      | 0                                             | shares that confirm at once, late |
// | CANCEL             | 0                                             | share that cancels at once        |
// | ADMIN_TOKEN_FILE   | (none)                                        | needed unless it is a demo        |

import http from 'k6/http';
import exec from 'k6/execution';
import { check, fail, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const urls = (__ENV.URLS || 'http://127.0.0.1:8080,http://127.0.0.1:8090').split(',');
const requests = Number(__ENV.REQUESTS || 500);
const concurrency = Math.min(Number(__ENV.CONCURRENCY || 500), requests);
const stock = Number(__ENV.STOCK || 300);
const query = __ENV.ITEM ? `?item=${encodeURIComponent(__ENV.ITEM)}` : '';
const users = Number(__ENV.USERS || 0);
const perUser = Number(__ENV.PER_USER || 0);
const hold = Number(__ENV.HOLD || 0);
const [pay, payLate, cancel] = [__ENV.PAY, __ENV.PAY_LATE, __ENV.CANCEL].map((share) => Number(share || 0));
// units come back, or buyers are refused for themselves: then the counts cannot be foretold
const isOpen = hold > 0 || perUser > 0;
// files can be opened only here, before the run
const adminToken = __ENV.ADMIN_TOKEN_FILE ? open(__ENV.ADMIN_TOKEN_FILE).trim() : '';

const RETRIES = 20;
const willBeSold = Math.min(stock, requests);

const reserved = new Counter('orders_reserved');
const soldOut = new Counter('orders_sold_out');
const unsettled = new Counter('attempts_unsettled');

export const options = {
  scenarios: {
    sale: {
      executor: 'shared-iterations',
      vus: concurrency,
      iterations: requests,
      maxDuration: `${120 + 2 * hold}s`,
    },
  },
  thresholds: {
    ...(isOpen ? {} : {
      orders_reserved: [`count==${willBeSold}`],
      orders_sold_out: [`count==${requests - willBeSold}`],
    }),
    checks: ['rate==1'],
  },
  summaryTrendStats: ['min', 'med', 'p(90)', 'p(99)', 'p(99.9)', 'max'],
};

// being told sold out, or to wait, is no failed request
http.setResponseCallback(http.expectedStatuses(200, 409, 410, 429, 503));

export function setup() {
  const headers = { 'Content-Type': 'application/json' };
  if (adminToken) {
    headers.Authorization = `Bearer ${adminToken}`;
  }
  const terms = { stock, per_user: perUser || undefined, hold_seconds: hold || undefined };
  const start = () => http.put(`${urls[0]}/stock${query}`, JSON.stringify(terms), { headers });
  let started = start();
  if (started.status === 428) {
    // in place of a sale with orders
    headers['If-Match'] = '*';
    terms.sale = `k6-${Date.now()}`;
    started = start();
  }
  if (started.status < 200 || started.status > 299) {
    fail(`the sale cannot be started (status ${started.status}): ${started.body}`);
  }
  return { run: `k6-${Date.now()}-${Math.floor(Math.random() * 2 ** 32)}` };
}

// The first answer that is one; asks the next instance if the one before did not answer.
function ask(number, path, headers) {
  for (let attempt = 0; attempt <= RETRIES; attempt += 1) {
    const url = urls[(number + attempt) % urls.length];
    const answer = http.post(`${url}${path}`, null, { headers, timeout: '15s' });
    if (![0, 429, 502, 503, 504].includes(answer.status)) {
      return answer;
    }
    unsettled.add(1);
    const pause = Math.min(0.02 * 2 ** attempt, 1);
    sleep(Math.max(Number(answer.headers['Retry-After']) || 0, pause));
  }
  check(null, { 'every order is answered': () => false });
  return fail(`${path} has no answer`);
}

export default function ({ run }) {
  const number = exec.scenario.iterationInTest;
  const order = `${run}-${number}`;
  const user = users ? `${query ? '&' : '?'}user=${run}-u${number % users}` : '';
  const answer = ask(number, `/stock/reduce${query}${user}`, { 'Idempotency-Key': order });
  reserved.add(answer.status === 200 ? 1 : 0);
  soldOut.add(answer.status === 409 ? 1 : 0);
  check(answer, { 'an order is reserved, refused, or over': (a) => [200, 409, 410].includes(a.status) });
  const lot = Math.random();
  if (!hold || answer.status !== 200 || lot >= pay + payLate + cancel) {
    return;
  }
  if (lot >= pay && lot < pay + payLate) {
    sleep(hold * (0.8 + 0.4 * Math.random()));
  }
  const what = lot < pay + payLate ? 'confirm' : 'cancel';
  const change = ask(number, `/orders/${order}/${what}${query}${user}`, {});
  check(change, { 'an order is confirmed, cancelled, or over': (a) => [200, 410].includes(a.status) });
}

export function teardown() {
  // those who never paid
  sleep(hold ? hold + 2 : 0);
  for (const url of urls) {
    check(http.get(`${url}/stock${query}`).json(), {
      'the sale began with the stock that was set': (s) => s.initial === stock,
      'no unit appeared and none vanished': (s) => s.stock + s.lucky === stock,
      'each unit that can be sold is sold once': (s) => isOpen || (s.lucky === willBeSold && s.orders === willBeSold),
      'every hold has ended': (s) => !hold || s.held === 0,
    });
  }
}
