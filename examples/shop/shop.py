#!/usr/bin/env python3
"""A shop that sells with flash-sale: reserve, authorise, confirm, capture. docs/shop.md explains it.

make demo ARGS=--holds              in another terminal
python3 examples/shop/shop.py
"""
import hashlib, hmac, json, re, secrets, sys, threading, time
from datetime import datetime

import ledger, payments

SCHEMA = ledger.SCHEMA + """
CREATE TABLE IF NOT EXISTS orders(id TEXT PRIMARY KEY, user TEXT, state TEXT DEFAULT 'new', why TEXT DEFAULT '', hold_until TEXT,
                                  payment TEXT, doubts INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS events(id TEXT PRIMARY KEY, order_id TEXT, type TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS outbox(order_id TEXT, step TEXT, due REAL, tries INTEGER DEFAULT 0, PRIMARY KEY(order_id, step));
"""
PRICE, WORKERS, LEASE_SECONDS, ASK_SECONDS = 1900, 4, 60, 2
# the refusals that end a step; every other one, 401 and 403 too, says nothing about the order, so the step is repeated
ENDS = {"confirm": ("unknown-order", "expired", "cancelled", "returned"), "cancel": ("unknown-order", "expired", "cancelled", "returned", "order-final"),
        "return": ("unknown-order", "expired", "cancelled", "returned", "not-confirmed")}
SCREENS = {  # the state of an order, what its buyer reads, and what the buyer may do
    "new": ("We are asking for your unit.", ""), "reserved": ("Your unit is held. The payment opens soon.", ""),
    "paying": ("Your unit is held for you. If you have paid, stay on this page.", ""), "authorised": ("Paid. We are making it final.", ""),
    "confirmed": ("It is yours.", ""), "paid": ("It is yours, and paid.", "return again"), "returning": ("We are taking it back.", ""),
    "refunded": ("You have your money back.", "again"), "no-unit": ("We could not keep the unit. Your money comes back.", ""),
    "voided": ("We could not keep the unit. You were not charged.", "again"), "returned": ("This order was taken back.", "again"),
    "cancelled": ("Nothing was paid in time. The unit is on sale again.", "again"), "refused": ("You have no unit.", "again"),
    "not-captured": ("Your bank refused in the end. The unit is on sale again.", "again")}
WHY = {"sold-out": "Sold out.", "ended": "The sale has ended.", "limit-reached": "You have as many as one buyer may have.",
       "all-held": "Others hold the last units; some may come back. We ask again for you.", "not-started": "The sale has not started yet.",
       "paused": "The sale is paused.", "expired": "Your time to pay is over.", "no-holds": "The shop needs a sale with holds."}
BUTTONS = {"return": "Send it back", "again": "Buy again"}


class Shop(ledger.Database):
    def __init__(self, options):
        super().__init__(options.db, SCHEMA)
        self.sale, self.options = ledger.Sale(options), options
        # each step may be repeated: so are those that another process may not have finished
        self.all("UPDATE outbox SET due = 0")

    def pay(self, method, path, key, body=None):
        return ledger.call(method, self.options.provider + path, body, {"Authorization": "Bearer " + payments.SECRET, "Idempotency-Key": key})

    def order(self, id):
        return self.one("SELECT * FROM orders WHERE id = ?", id)

    def move(self, t, id, state, step=None, of=tuple(SCREENS), due=0, **values):
        """Takes an order from one of the states `of` to another, with the next step (a transactional outbox: microservices.io)."""
        columns = "".join(f", {name} = ?" for name in values)
        moved = t.execute(f"UPDATE orders SET state = ?{columns} WHERE id = ? AND state IN ({', '.join('?' * len(of))})",
                          (state, *values.values(), id, *of)).rowcount
        if moved and step:
            t.execute("INSERT OR IGNORE INTO outbox(order_id, step, due) VALUES (?, ?, ?)", (id, step, due))

    # --- the buyer waits for these: the reservation, and a payment that ends before the hold ---

    def advance(self, id):
        """Returns the seconds until the page asks again."""
        order, wait = self.order(id), 2
        if order["state"] == "new":
            # counts what may have been accepted, before the call: the shop may be killed, and another tab may ask at the same time
            self.all("UPDATE orders SET doubts = doubts + 1 WHERE id = ?", id)
            answer, is_doubtful = self.sale.call("POST", "/stock/reduce", key=id, user=order["user"])
            wait = answer.retry_after or wait
            # anything else is asked again: with Retry-After, without an answer, while the token is refused, and before all instances
            # know a new sale
            is_final = answer.type and 400 <= answer.status < 500 and answer.status not in (401, 403, 404, 408) and not answer.retry_after
            with self.transaction() as t:
                doubts = t.execute("UPDATE orders SET doubts = doubts - ? WHERE id = ? RETURNING doubts", (not is_doubtful, id)).fetchone()[0]
                if answer.status == 200 and "hold_until" in answer.body:
                    self.move(t, id, "reserved", of=["new"], hold_until=answer.body["hold_until"])
                elif answer.status == 200:
                    self.move(t, id, "refused", "return", of=["new"], why="no-holds")
                elif is_final:  # an earlier attempt may still arrive: cancel before giving up
                    self.move(t, id, "refused", "cancel" if doubts else None, of=["new"], why=answer.type)
                else:
                    self.move(t, id, "new", of=["new"], why=answer.type)
            order = self.order(id)
        if order["state"] == "reserved":
            seconds = datetime.fromisoformat(order["hold_until"]).timestamp() - time.time() - self.options.margin
            body = {"order": id, "amount": PRICE, "seconds": seconds, "back": self.options.url + "/order", "hook": self.options.url + "/webhooks"}
            opened = self.pay("POST", "/sessions", f"open-{id}", body) if seconds > 0 else None
            with self.transaction() as t:
                if seconds <= 0:
                    self.move(t, id, "cancelled", "cancel", of=["reserved"])
                elif opened.status == 200:
                    self.move(t, id, "paying", "ask", of=["reserved"], due=time.time() + ASK_SECONDS, payment=opened.body["id"])
        return wait

    # --- the payment: each event once, whether a webhook brings it or the shop asks ---

    def record(self, t, event):
        # webhooks come twice and in any order (docs.stripe.com/webhooks): the id finds the second, the state orders them
        is_new = t.execute("INSERT OR IGNORE INTO events VALUES (:id, :order, :type, :amount)", event).rowcount
        if is_new and event["type"] in ("authorised", "captured"):
            self.move(t, event["order"], "authorised", "confirm", of=["reserved", "paying", "cancelled"], payment=event["payment"])
        elif is_new and event["type"] == "expired":  # only the provider knows that nobody can pay any more
            self.move(t, event["order"], "cancelled", "cancel", of=["reserved", "paying"])

    # --- the worker: each step until there is an answer ---

    def step(self, order, step):
        """Takes a step. Returns when to take it again: None if it is done, 0 for a growing pause."""
        id = order["id"]
        if step in ENDS:
            answer, _ = self.sale.call("POST", f"/order/{step}", order=id, user=order["user"])
            result, is_over = answer.type, answer.status == 200 or answer.type in ENDS[step]
        else:
            path = f"/payments/{order['payment']}"
            answer = self.pay("GET", path, "") if step == "ask" else self.pay("POST", f"{path}/{step}", f"{step}-{id}")
            result = answer.body.get("status")
            is_over = result not in (None, "open")
        with self.transaction() as t:
            for event in answer.body.get("events", []):
                self.record(t, event)
            if not is_over:
                return ASK_SECONDS if step == "ask" else answer.retry_after or 0
            if not t.execute("DELETE FROM outbox WHERE order_id = ? AND step = ?", (id, step)).rowcount:
                return None  # another worker was faster
            captured = t.execute("SELECT 1 FROM events WHERE order_id = ? AND type = 'captured'", (id,)).fetchone()
            # who took an order back has refunded it
            moves = {("confirm", ""): ["paid"] if captured else ["confirmed", "capture"], ("confirm", "returned"): ["returned"],
                     ("capture", "captured"): ["paid"], ("void", "captured"): ["no-unit", "refund"]}
            others = {"confirm": ["no-unit", "refund" if captured else "void"], "capture": ["not-captured", "return"],
                      "void": ["voided"], "refund": ["refunded"], "return": [order["state"], "refund" if order["state"] == "returning" else None]}
            if (step, result) in moves or step in others:
                self.move(t, id, *moves.get((step, result), others.get(step)))

    def work(self):
        while True:
            now = time.time()
            # leaves the step to this worker for a while, and to others if this one is gone
            row = self.one("SELECT 1 FROM outbox WHERE due <= ?", now) and self.one(
                "UPDATE outbox SET due = ?, tries = tries + 1 WHERE rowid = (SELECT rowid FROM outbox WHERE due <= ? "
                "ORDER BY due LIMIT 1) RETURNING *", now + LEASE_SECONDS, now)
            if not row:
                time.sleep(0.05)
                continue
            try:
                wait = self.step(self.order(row["order_id"]), row["step"])
            except Exception as error:
                wait = print(f"{row['step']} of {row['order_id']}: {error!r}", file=sys.stderr) or 0
            if wait is not None:
                due = time.time() + (wait or min(5, 0.1 * 2 ** min(row["tries"], 9)))
                self.all("UPDATE outbox SET due = ? WHERE order_id = ? AND step = ? AND due = ?", due, row["order_id"], row["step"], row["due"])


class Page(payments.Handler):
    def do_GET(self):
        user, nonce, id = self.cookie()
        order = self.shop.one("SELECT * FROM orders WHERE id = ? AND user = ?", id, user)
        if self.path != "/order" or order is None:
            stock, _ = self.shop.sale.call("GET", "/stock", timeout=3)
            left = f"{stock.body['stock']} left" if stock.status == 200 else "How many are left, we cannot say now"
            return self.page(f"<p>{left}.<form method=post action=/buy><button>Buy</button></form>", user, nonce)
        wait = self.shop.advance(id)
        order = self.shop.order(id)
        text, actions = SCREENS[order["state"]]
        text = WHY.get(order["why"], text) if order["state"] in ("new", "refused") else text
        if order["state"] == "paying":
            text += f"<p><a href='{self.shop.options.provider}/pay/{order['payment']}'>Pay {PRICE / 100:.2f}</a>"
        for action in actions.split():
            text += f"<form method=post action=/{action}><button>{BUTTONS[action]}</button></form>"
        self.page(f"{'' if actions else f'<meta http-equiv=refresh content={wait}>'}<p>{text}<p>Order {id}", user, nonce)

    def do_POST(self):
        (user, nonce, id), body = self.cookie(), self.body()
        if self.path == "/webhooks" and not self.is_signed(body):
            return self.answer(400)
        with self.shop.transaction() as t:
            if self.path == "/webhooks":  # without this commit there is no 200, and the provider sends the event again
                self.shop.record(t, json.loads(body))
            elif self.path == "/buy":  # a second click, and a reload, is the same order
                t.execute("INSERT OR IGNORE INTO orders(id, user) VALUES (?, ?)", (id, user))
            elif self.path == "/return" and t.execute("SELECT 1 FROM orders WHERE id = ? AND user = ?", (id, user)).fetchone():
                self.shop.move(t, id, "returning", "return", of=["paid"])
        if self.path == "/webhooks":
            return self.answer(200)
        self.page("", user, secrets.token_urlsafe(16) if self.path == "/again" else nonce, 303, Location="/" if self.path == "/again" else "/order")

    def is_signed(self, body):
        found = re.fullmatch(r"t=(\d{1,12}),v1=([0-9a-f]{64})", self.headers.get("Signature", ""))
        return bool(found) and abs(time.time() - int(found[1])) < 300 and hmac.compare_digest(payments.signature(found[1], body), found[2])

    def cookie(self):
        """The buyer, a nonce, and the id of the order, which a reload keeps. The shop makes the id of both, so that no buyer chooses it."""
        found = re.search(r"\bshop=([\w-]{8,64})\.([\w-]{8,64})(;|$)", self.headers.get("Cookie", ""), re.ASCII)
        user, nonce = found.groups()[:2] if found else (secrets.token_urlsafe(16), secrets.token_urlsafe(16))
        return user, nonce, hashlib.sha256(f"{user}.{nonce}".encode()).hexdigest()[:32]

    def page(self, text, user, nonce, status=200, **headers):
        headers["Set-Cookie"] = f"shop={user}.{nonce}; Path=/; HttpOnly; SameSite=Lax; Max-Age=604800"
        self.answer(status, f"<!doctype html><html lang=en><meta name=viewport content=width=device-width><title>Shop</title><h1>One lamp</h1>{text}", **headers)


def main():
    parser = ledger.options("A shop that sells with flash-sale, and its payment provider.")
    parser.add_argument("--port", type=int, default=8200, help="the shop's port on 127.0.0.1")
    parser.add_argument("--provider", help="a payment provider; none: one is started, on the port behind")
    parser.add_argument("--margin", type=float, default=30, help="seconds from the end of a payment to the end of its hold")
    options = parser.parse_args()
    options.url = f"http://127.0.0.1:{options.port}"
    if not options.provider:
        options.provider = f"http://127.0.0.1:{options.port + 1}"
        threading.Thread(target=payments.server(options.port + 1, options.db + "-payments").serve_forever, daemon=True).start()
    Page.shop = shop = Shop(options)
    for job in [shop.work] * WORKERS + [lambda: ledger.follow(shop, shop.sale)]:
        threading.Thread(target=job, daemon=True).start()
    print(f"the shop is at {options.url}, payments are at {options.provider}", flush=True)
    payments.Server(("127.0.0.1", options.port), Page).serve_forever()


if __name__ == "__main__":
    main()
