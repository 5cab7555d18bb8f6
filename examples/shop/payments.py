#!/usr/bin/env python3
"""A payment provider for the shop's tests: takes no money, and is as unpleasant as real ones.

Its webhooks come once, twice, late, out of order, before the buyer is sent back, or never. Some means of payment are captured at
once, and some cannot be captured. The same Idempotency-Key repeats a call safely; under another key it is another call.
"""
import hashlib, hmac, html, json, os, random, secrets, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ledger import Database, call

SCHEMA = """
CREATE TABLE IF NOT EXISTS payments(id TEXT PRIMARY KEY, order_id TEXT, amount INTEGER, ends REAL, back TEXT, hook TEXT,
                                    status TEXT DEFAULT 'open', means TEXT, delivery TEXT DEFAULT 'once');
CREATE TABLE IF NOT EXISTS events(id TEXT PRIMARY KEY, payment TEXT, type TEXT, amount INTEGER, due REAL, copies INTEGER);
CREATE TABLE IF NOT EXISTS calls(key TEXT PRIMARY KEY, payment TEXT);
"""
SECRET = os.environ.get("SHOP_PAYMENTS_SECRET", "only-for-the-demo")  # of the shop's calls, and of the signatures
LATE_SECONDS = float(os.environ.get("SHOP_LATE_SECONDS", "4"))
MEANS, DELIVERIES = ("card", "at-once", "fails-later"), ("once", "twice", "late", "mixed", "before", "never")


def signature(at, body):
    return hmac.new(SECRET.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()


class Provider(Database):
    def note(self, t, id, kind, amount=0):
        """Changes a payment, and has webhooks tell it."""
        payment = t.execute("UPDATE payments SET status = ? WHERE id = ? RETURNING *", (kind, id)).fetchone()
        # mixed: the authorisation comes behind what follows it
        is_late = payment["delivery"] == "late" or payment["delivery"] == "mixed" and kind == "authorised"
        t.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
                  ("evt_" + secrets.token_hex(8), id, kind, amount, time.time() + LATE_SECONDS * is_late, {"twice": 2, "never": 0}.get(payment["delivery"], 1)))

    def view(self, id):
        events = self.all("SELECT e.id, type, e.amount, payment, order_id AS 'order' FROM events e JOIN payments p ON p.id = payment "
                          "WHERE payment = ? ORDER BY e.rowid", id)
        return {**dict(self.one("SELECT id, order_id AS 'order', status FROM payments WHERE id = ?", id)), "events": [dict(event) for event in events]}

    def once(self, key, carry_out, *values, **named):
        """Carries a call out once for each key, which begins with the path. The answer is the payment as it is now."""
        with self.transaction() as t:
            known = t.execute("SELECT payment FROM calls WHERE key = ?", (key,)).fetchone()
            id = known["payment"] if known else carry_out(t, *values, **named)
            t.execute("INSERT OR IGNORE INTO calls VALUES (?, ?)", (key, id))
            return self.view(id)

    def open(self, t, order, amount, seconds, back, hook):
        row = ("pay_" + secrets.token_hex(8), order, amount, time.time() + seconds, back, hook)
        return t.execute("INSERT INTO payments(id, order_id, amount, ends, back, hook) VALUES (?, ?, ?, ?, ?, ?) RETURNING id", row).fetchone()[0]

    def change(self, t, id, what):
        """Captures, voids or refunds, where that is possible: `status` tells. A refund under a second key is a second refund."""
        payment = t.execute("SELECT * FROM payments WHERE id = ?", (id,)).fetchone()
        match what, payment["status"], payment["means"]:
            case ("void", "authorised", _) | ("capture", "authorised", "fails-later"):
                self.note(t, id, "voided")
            case ("capture", "authorised", _):
                self.note(t, id, "captured", payment["amount"])
            case ("refund", "captured" | "refunded", _):
                self.note(t, id, "refunded", -payment["amount"])
        return id

    def pay(self, id, means, delivery):
        """The buyer pays, or leaves without, if there is time yet."""
        with self.transaction() as t:
            paid = t.execute("UPDATE payments SET means = ?, delivery = ? WHERE id = ? AND status = 'open' AND ends > ? RETURNING *",
                             (means, delivery, id, time.time())).fetchone()
            kinds = {"leave": ["expired"], "at-once": ["authorised", "captured"]}.get(means, ["authorised"])
            for kind in kinds if paid else []:
                self.note(t, id, kind, paid["amount"] if kind == "captured" else 0)
        if delivery == "before":
            self.deliver()

    def deliver(self):
        """Ends payments that nobody made, and sends the webhooks that are due, each until the shop answers 200."""
        with self.transaction() as t:
            for row in t.execute("SELECT id FROM payments WHERE status = 'open' AND ends <= ?", (time.time(),)).fetchall():
                self.note(t, row["id"], "expired")
        for due in self.all("SELECT e.*, order_id, hook FROM events e JOIN payments p ON p.id = payment WHERE copies > 0 AND due <= ?", time.time()):
            body, at = {"order": due["order_id"], **{name: due[name] for name in ("id", "type", "amount", "payment")}}, int(time.time())
            answer = call("POST", due["hook"], body, {"Signature": f"t={at},v1={signature(at, json.dumps(body))}"}, timeout=3)
            with self.transaction() as t:
                t.execute("UPDATE events SET copies = copies - ?, due = ? WHERE id = ?", (answer.status == 200, time.time() + 1, due["id"]))

    def run(self):
        while not time.sleep(0.05):
            try:
                self.deliver()
            except Exception as error:  # the disk is full: what is due stays so
                print(f"the webhooks: {error!r}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    log_message = lambda *_: None

    def body(self):
        return self.rfile.read(min(int(self.headers.get("Content-Length") or 0), 65536)).decode()

    def answer(self, status, body="", **headers):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), "Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Door(Handler):
    def do_GET(self):
        _, room, id = (self.path.split("/") + ["", ""])[:3]
        payment = self.provider.one("SELECT * FROM payments WHERE id = ?", id)
        if room == "payments" and payment and self.is_shop():
            return self.answer(200, self.provider.view(id))
        if room != "pay" or not payment:
            return self.answer(404)
        means, webhooks = ("".join(f"<option>{name}" for name in names) for names in (MEANS, ("any",) + DELIVERIES))
        self.answer(200, f"<!doctype html><html lang=en><meta name=viewport content=width=device-width><title>Payment</title><h1>Pay {payment['amount'] / 100:.2f}</h1>"
                    f"<p>Order {html.escape(payment['order_id'])}: {payment['status']}. No money is taken.<form method=post>"
                    f"<label>Means <select name=means>{means}</select></label> <label>Webhooks <select name=delivery>{webhooks}</select>"
                    "</label> <button>Pay</button> <button name=means value=leave>Leave</button></form>")

    def do_POST(self):
        body, key = self.body(), f"{self.path} {self.headers.get('Idempotency-Key') or secrets.token_hex(8)}"
        _, room, id, what = (self.path.split("/") + ["", "", ""])[:4]
        payment = self.provider.one("SELECT * FROM payments WHERE id = ?", id)
        if room == "sessions" and self.is_shop():
            self.answer(200, self.provider.once(key, self.provider.open, **json.loads(body)))
        elif room == "payments" and payment and self.is_shop():
            self.answer(200, self.provider.once(key, self.provider.change, id, what))
        elif room == "pay" and payment:
            form = dict(urllib.parse.parse_qsl(body))
            delivery = form.get("delivery") if form.get("delivery") in DELIVERIES else random.choice(DELIVERIES)
            self.provider.pay(id, form.get("means", "card"), delivery)
            self.answer(303, Location=payment["back"])
        else:
            self.answer(404)

    def is_shop(self):
        return hmac.compare_digest(self.headers.get("Authorization", ""), "Bearer " + SECRET)


class Server(ThreadingHTTPServer):
    request_queue_size, daemon_threads = 512, True

    def handle_error(self, *request):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may go away
            super().handle_error(*request)


def server(port, path):
    """Binds the port, or raises: then the shop does not start, and sends its secret to nobody else there."""
    Door.provider, bound = Provider(path, SCHEMA), Server(("127.0.0.1", port), Door)
    threading.Thread(target=Door.provider.run, daemon=True).start()
    return bound


if __name__ == "__main__":
    server(int(sys.argv[1]), sys.argv[2]).serve_forever()
