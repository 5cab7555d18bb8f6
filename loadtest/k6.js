// The same run as the load test's, for k6: REQUESTS orders from CONCURRENCY virtual users at once,
// each order with an id of its own, and a verdict from the stock and the ledger at the end.
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
// | QUANTITY           | 1                                             | units an order takes              |
// | ITEM               | (the default item)                            | what to order                     |
// | RETRIES            | 20                                            | how often to ask again            |
// | ADMIN_TOKEN_FILE   | (none)                                        | needed unless it is a demo        |

import http from 'k6/http';
import exec from 'k6/execution';
import { check, fail, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const urls = (__ENV.URLS || 'http://127.0.0.1:8080,http://127.0.0.1:8090')
  .split(',')
  .map((url) => url.trim().replace(/\/+$/, ''));
const requests = whole('REQUESTS', 500, 1);
const concurrency = Math.min(whole('CONCURRENCY', Math.min(requests, 500), 1), requests);
const stock = whole('STOCK', 300, 0);
const quantity = whole('QUANTITY', 1, 1);
const retries = whole('RETRIES', 20, 0);
const itemQuery = __ENV.ITEM ? `item=${encodeURIComponent(__ENV.ITEM)}&` : '';
// files can be opened only here, before the run
const adminToken = __ENV.ADMIN_TOKEN_FILE ? open(__ENV.ADMIN_TOKEN_FILE).trim() : '';

const willBeSold = Math.min(Math.floor(stock / quantity), requests);

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

function whole(name, otherwise, least) {
  const value = __ENV[name] === undefined ? otherwise : Number(__ENV[name]);
  if (!Number.isSafeInteger(value) || value < least) {
    throw new Error(`${name} must be a whole number of at least ${least}`);
  }
  return value;
}

function json(response) {
  try {
    return response.json() || {};
  } catch (_) {
    return {};
  }
}

// `sold-out` of `sold-out`, `/problems/sold-out` or `urn:problem:sold-out`
function problemKind(response) {
  return String(json(response).type || '').split(/[/:#]/).pop();
}

export function setup() {
  for (const url of urls) {
    const ready = http.get(`${url}/readyz`);
    if (ready.status !== 200) {
      fail(`${url} is not ready (status ${ready.status}): ${ready.body}`);
    }
  }
  const headers = { 'Content-Type': 'application/json' };
  if (adminToken) {
    headers.Authorization = `Bearer ${adminToken}`;
  }
  const started = http.put(`${urls[0]}/stock?${itemQuery}`, JSON.stringify({ stock }), { headers });
  if (started.status < 200 || started.status > 299) {
    fail(`the sale cannot be started (status ${started.status}): ${started.body}`);
  }
  const random = Math.floor(Math.random() * 2 ** 48).toString(36);
  return { run: `k6-${Date.now().toString(36)}-${random}` };
}

export default function (data) {
  const number = exec.scenario.iterationInTest;
  const order = `${data.run}-${number}`;
  for (let attempt = 0; attempt <= retries; attempt += 1) {
    // the next instance if the one before did not answer
    const url = urls[(number + attempt) % urls.length];
    const response = http.post(
      `${url}/stock/reduce?${itemQuery}quantity=${quantity}`,
      null,
      { headers: { 'Idempotency-Key': order }, timeout: '15s', tags: { name: 'reduce' } },
    );
    if (![0, 429, 502, 503, 504].includes(response.status)) {
      settle(order, response);
      return;
    }
    unsettled.add(1);
    const pause = Math.min(0.02 * 2 ** attempt, 1);
    sleep(Math.max(Number(response.headers['Retry-After']) || 0, pause));
  }
  check(null, { 'every order is answered': () => false });
}

function settle(order, response) {
  const answer = json(response);
  if (response.status === 200) {
    reserved.add(1);
    check(answer, {
      'a reserved order is ours': (a) => a.outcome === 'reserved' && a.order === order,
      'a reserved order has its quantity': (a) => a.quantity === quantity,
    });
  } else {
    const refused = response.status === 409 && problemKind(response) === 'sold-out';
    if (refused) {
      soldOut.add(1);
    }
    check(refused, { 'an order is reserved or sold out': (right) => right });
  }
}

// every order of the ledger; `null` if its pages do not end
function ledger() {
  const orders = [];
  let after = 0;
  for (let page = 0; page <= requests; page += 1) {
    const answer = json(http.get(`${urls[0]}/orders?${itemQuery}after=${after}&limit=1000`));
    orders.push(...(answer.orders || []));
    if (answer.next === null || answer.next === undefined) {
      return orders;
    }
    after = answer.next;
  }
  return null;
}

export function teardown(data) {
  const states = urls.map((url) => json(http.get(`${url}/stock?${itemQuery}`)));
  const orders = ledger();
  const ours = (orders || []).filter((entry) => entry.order.startsWith(`${data.run}-`));
  const tokens = ours.map((entry) => entry.token).filter((token) => token !== null);
  const [state] = states;
  const told = (s) => `${s.stock} ${s.lucky} ${s.initial} ${s.orders}`;

  const right = check(state, {
    'the sale began with the stock that was set': (s) => s.initial === stock,
    'stock + lucky = initial': (s) => s.stock + s.lucky === s.initial,
    'all units are sold that can be': (s) => s.stock === stock - willBeSold * quantity,
    'all instances tell the same state': (s) => states.every((other) => told(other) === told(s)),
    'the ledger has every order once': () =>
      orders !== null && new Set(ours.map((entry) => entry.order)).size === ours.length,
    'the ledger has as many orders as were sold': (s) =>
      orders !== null && ours.length === willBeSold && s.orders === orders.length,
    'the tokens in the ledger never go down': () =>
      tokens.every((token, i) => i === 0 || tokens[i - 1] <= token),
  });
  const sums = `stock ${state.stock} + lucky ${state.lucky}, ${ours.length} orders in the ledger`;
  console.log(`${right ? 'the stock is right' : 'THE STOCK IS WRONG'}: ${sums} (began with ${stock})`);
}
