#!/usr/bin/env python3
"""Copies the ledger of flash-sale into SQLite, each entry exactly once.

python3 examples/shop/ledger.py copies what there is, and compares the copy with the sale. The shop does it all the time.
"""
import argparse, collections, json, random, sqlite3, sys, threading, time, urllib.parse, urllib.request
from contextlib import contextmanager

SCHEMA = """
CREATE TABLE IF NOT EXISTS ledger(sale TEXT, position INTEGER, event TEXT, order_id TEXT, user TEXT, quantity INTEGER,
                                  hold_until TEXT, entry TEXT, PRIMARY KEY(sale, position));
CREATE TABLE IF NOT EXISTS cursor(sale TEXT PRIMARY KEY, after TEXT, is_over INTEGER DEFAULT 0, is_copied INTEGER DEFAULT 0);
"""
FIELDS = ("sale", "position", "event", "order", "user", "quantity", "hold_until")
Answer = collections.namedtuple("Answer", "status body type retry_after")
OPENER = urllib.request.OpenerDirector()  # without proxies and redirects; each status is an answer
OPENER.add_handler(urllib.request.HTTPHandler())
OPENER.add_handler(urllib.request.HTTPSHandler())


class Database:
    """A file of SQLite. Each thread has a connection of its own."""

    def __init__(self, path, schema):
        self.path, self.local = path, threading.local()
        self.connection().executescript("PRAGMA journal_mode = WAL;" + schema)

    def connection(self):
        if not hasattr(self.local, "connection"):
            self.local.connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self.local.connection.row_factory = sqlite3.Row
        return self.local.connection

    def all(self, sql, *values):
        return self.connection().execute(sql, values).fetchall()

    def one(self, sql, *values):
        return next(iter(self.all(sql, *values)), None)

    @contextmanager
    def transaction(self):
        with self.connection() as connection:  # ends in a commit, or after an exception in a roll-back
            connection.execute("BEGIN IMMEDIATE")
            yield connection


def call(method, url, body=None, headers={}, timeout=15):
    """Returns the answer. Its status is 0 where none came: then nobody knows whether the call was carried out."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), dict(headers), method=method)
    try:
        with OPENER.open(request, timeout=timeout) as reply:
            text, status, after = reply.read(), reply.status, reply.headers.get("Retry-After", "")
    except Exception:  # refused, broken off, too late, or no HTTP
        return Answer(0, {}, "", None)
    try:
        body = dict(json.loads(text))
    except (ValueError, TypeError):
        body = {}
    return Answer(status, body, body.get("type", ""), int(after) if after.isdigit() else None)


class Sale:
    """The calls to flash-sale: at any instance, and at the next one where an instance did nothing, or does not say."""

    def __init__(self, options):
        self.urls, self.item, self.file = options.sale.split(","), options.item, options.token_file

    def call(self, method, path, key=None, timeout=15, **query):
        """Returns the last answer, and whether the call may have been carried out without one."""
        headers, is_doubtful = {"Idempotency-Key": key} if key else {}, False
        if self.file:
            with open(self.file) as file:  # for each call, since the token may be replaced
                headers["Authorization"] = "Bearer " + file.readline().strip()
        query = {name: value for name, value in {"item": self.item, **query}.items() if value is not None}
        for url in random.sample(self.urls, len(self.urls)):
            answer = call(method, f"{url}{path}?{urllib.parse.urlencode(query)}", None, headers, timeout)
            is_doubtful = is_doubtful or answer.status in (0, 500, 502, 504)
            if answer.status not in (0, 429, 502, 503):
                break
        if answer.status in (401, 403):
            print(f"the sale refuses the shop's token ({answer.type}): repair it. Nothing was done: refund nothing", file=sys.stderr)
        return answer, is_doubtful


def copy(db, sale, wait="0s"):
    """Copies a page, or goes on to the next sale. Returns whether there may be more; None without an answer."""
    sales, _ = sale.call("GET", "/sales")
    if sales.status != 200:
        return None
    running = (sales.body["running"] or {}).get("id")
    with db.transaction() as t:
        for id in [kept["id"] for kept in sales.body["kept"]] + [running] * bool(running):
            t.execute("INSERT OR IGNORE INTO cursor(sale, after) VALUES (?, '0')", (id,))
        # a sale runs on where the one that replaced it was lost
        t.execute("UPDATE cursor SET is_over = sale IS NOT ?, is_copied = is_copied AND sale IS NOT ?", (running, running))
    at = db.one("SELECT * FROM cursor WHERE NOT is_copied ORDER BY rowid LIMIT 1")
    if at is None:
        return False
    # by its name, the ledger of a sale is found also after the sale was replaced
    page, _ = sale.call("GET", "/orders", sale=at["sale"], after=at["after"], limit=1000, wait=None if at["is_over"] else wait, timeout=30)
    if page.status != 200 and page.type not in ("sale-replaced", "unknown-sale"):
        return None
    entries = page.body.get("orders", [])
    is_copied = page.type == "unknown-sale" or at["is_over"] and page.status == 200 and not entries
    # entries and cursor in one transaction: after a crash both are there, or neither
    with db.transaction() as t:
        if not t.execute("UPDATE cursor SET after = ?, is_copied = ? WHERE sale = ? AND after = ?",
                         (page.body.get("cursor", "0"), is_copied, at["sale"], at["after"])).rowcount:
            return True  # another process has copied them
        if page.type == "sale-replaced":  # the store lost entries, and an operator accepted that: the copy begins anew
            t.execute("DELETE FROM ledger WHERE sale = ?", (at["sale"],))
        for entry in entries:  # also those of a later version, which may have other events, and no order
            t.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*map(entry.get, FIELDS), json.dumps(entry)))
    return bool(entries or is_copied or page.status != 200)


def follow(db, sale):
    while True:
        try:
            more = copy(db, sale, "5s")
        except Exception as error:  # the disk is full, or the token is being replaced
            more = print(f"the ledger: {error!r}", file=sys.stderr)
        time.sleep(0 if more else 1)


def counts(db, sale):
    """What the copy says of a sale: entries, and units held and confirmed."""
    units = collections.Counter(dict(db.all(
        "SELECT CASE WHEN event = 'reserved' AND hold_until IS NULL THEN 'sold' ELSE event END, IFNULL(SUM(quantity), 0) "
        "FROM ledger WHERE sale = ? GROUP BY 1", sale)))
    return {"entries": db.one("SELECT COUNT(*) FROM ledger WHERE sale = ?", sale)[0],
            "held": units["reserved"] - units["confirmed"] - units["cancelled"] - units["expired"],
            "confirmed": units["sold"] + units["confirmed"] - units["returned"]}


def options(about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--sale", default="http://127.0.0.1:8080,http://127.0.0.1:8090", help="instances of flash-sale")
    parser.add_argument("--token-file", help="the shop's token; the demo needs none")
    parser.add_argument("--item", help="the item for sale; none: the default item")
    parser.add_argument("--db", default="shop.db", help="the shop's file of SQLite")
    return parser


if __name__ == "__main__":
    chosen = options("Copies the ledger, and compares the copy with the sale.").parse_args()
    db, sale = Database(chosen.db, SCHEMA), Sale(chosen)
    while (more := copy(db, sale)):
        pass
    stock, _ = sale.call("GET", "/stock")
    if more is None or stock.status != 200:
        sys.exit(f"no ledger at {chosen.sale}: if the sale runs, is this the operators' port, and the token right?")
    copied, told = counts(db, stock.body["id"]), {"entries": stock.body["entries"], **stock.body["units"]}
    print(f"the copy has {copied}, the sale {told}")
    sys.exit(copied != told)
