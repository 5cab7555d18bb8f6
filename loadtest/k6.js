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
      maxDuration: '2m',
    },
  },
  thresholds: {
    orders_reserved: [`count==${willBeSold}`],
    orders_sold_out: [`count==${requests - willBeSold}`],
    checks: ['rate==1'],
  },
  summaryTrendStats: ['min', 'med', 'p(90)', 'p(99)', 'p(99.9)', 'max'],
};

// being told sold out, or to wait, is no failed request
http.setResponseCallback(http.expectedStatuses(200, 409, 429, 503));

export function setup() {
  const headers = { 'Content-Type': 'application/json' };
  if (adminToken) {
    headers.Authorization = `Bearer ${adminToken}`;
  }
  const start = () => http.put(`${urls[0]}/stock${query}`, JSON.stringify({ stock }), { headers });
  let started = start();
  if (started.status === 428) {
    // in place of a sale with orders
    headers['If-Match'] = '*';
    started = start();
  }
  if (started.status < 200 || started.status > 299) {
    fail(`the sale cannot be started (status ${started.status}): ${started.body}`);
  }
  return { run: `k6-${Date.now()}-${Math.floor(Math.random() * 2 ** 32)}` };
}

export default function ({ run }) {
  const number = exec.scenario.iterationInTest;
  const headers = { 'Idempotency-Key': `${run}-${number}` };
  for (let attempt = 0; attempt <= RETRIES; attempt += 1) {
    // the next instance if the one before did not answer
    const url = urls[(number + attempt) % urls.length];
    const answer = http.post(`${url}/stock/reduce${query}`, null, { headers, timeout: '15s' });
    if (![0, 429, 502, 503, 504].includes(answer.status)) {
      reserved.add(answer.status === 200 ? 1 : 0);
      soldOut.add(answer.status === 409 ? 1 : 0);
      check(answer, { 'an order is reserved or sold out': (a) => [200, 409].includes(a.status) });
      return;
    }
    unsettled.add(1);
    const pause = Math.min(0.02 * 2 ** attempt, 1);
    sleep(Math.max(Number(answer.headers['Retry-After']) || 0, pause));
  }
  check(null, { 'every order is answered': () => false });
}

export function teardown() {
  for (const url of urls) {
    check(http.get(`${url}/stock${query}`).json(), {
      'the sale began with the stock that was set': (s) => s.initial === stock,
      'all units are sold that can be': (s) => s.stock === stock - willBeSold,
      'each unit is sold once': (s) => s.lucky === willBeSold && s.orders === willBeSold,
    });
  }
}
