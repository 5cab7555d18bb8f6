//! Goal: buyers, holds and the start of a sale over HTTP. Method: calls in process, over a real etcd and a real Redis.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, Request, Version};
use flash_sale::http::{AppState, router};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::wait::eventually;
use testkit::{Direction, PrivateRedis, RedisOptions};
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::shop::{ADMIN, Reply, SERVER, Shop, ShopOptions};
use crate::support::store::scripts_run;

/// Starts a sale with this body, and these headers beside the token's.
async fn start(shop: &Shop, body: &Value, headers: &[(&str, &str)]) -> Reply {
    shop.call_with("PUT /stock", &[&[ADMIN], headers].concat(), body.to_string()).await
}

fn is_replayed(reply: &Reply) -> bool {
    reply.headers.contains_key("idempotency-replayed")
}

/// Goal: a start that is repeated, late, or meets another one at a second instance is answered as the first time or refused, and
/// no order is lost.
#[tokio::test]
async fn starting_a_sale_is_safe() {
    let shop = Shop::empty(ShopOptions::default()).await;
    let other = shop.beside("b");
    let body = json!({"stock": 5, "sale": "tea-1"});
    let first = start(&shop, &body, &[]).await;
    assert!(!is_replayed(&first));
    // a late start without an id does not replace what somebody prepared
    start(&other, &json!({"stock": 9}), &[]).await.problem(428, "sale-running");
    shop.order("a").await.json(200);
    let again = start(&other, &json!({"stock": 5}), &[("idempotency-key", "\"tea-1\"")]).await;
    assert!(is_replayed(&again));
    assert_eq!(again.json(200), first.json(200));
    for (body, headers, status, word) in [
        (json!({"stock": 6, "sale": "tea-1"}), &[][..], 422, "sale-conflict"),
        (json!({"stock": 5}), &[], 428, "sale-running"),
        (json!({"stock": 5, "sale": "tea-2"}), &[], 428, "sale-running"),
        (json!({"stock": 5, "sale": "tea-2"}), &[("if-match", "\"tea-0\"")], 412, "sale-mismatch"),
    ] {
        let problem = start(&other, &body, headers).await.problem(status, word);
        assert_eq!(problem["sale"], "tea-1", "{problem}");
    }
    start(&other, &body, &[("idempotency-key", "tea-2")]).await.problem(400, "bad-body");
    // without an id, a repetition would replace the sale that the first call started
    start(&other, &json!({"stock": 5}), &[("if-match", "*")]).await.problem(400, "bad-body");
    let unnamed = json!({"stock": 5});
    start(&other, &unnamed, &[("idempotency-key", "a b")]).await.problem(400, "bad-sale-id");
    assert_eq!(shop.stock().await["orders"], 1);

    let second = json!({"stock": 7, "sale": "tea-2"});
    let if_match = [("if-match", "\"tea-0\", \"tea-1\"")];
    start(&other, &second, &if_match).await.json(200);
    shop.order("b").await.json(200);
    assert!(is_replayed(&start(&shop, &second, &if_match).await));
    start(&shop, &body, &[("if-match", "*")]).await.problem(409, "sale-replaced");

    let sales = shop.call("GET /sales").await.json(200);
    assert_eq!([&sales["running"]["id"], &sales["kept"][0]["id"]], ["tea-2", "tea-1"]);
    let kept = shop.ask("GET /orders?sale=tea-1&after=tea-1:0").await.json(200);
    assert_eq!([&kept["orders"][0]["order"], &kept["sale"]], ["a", "tea-1"]);
    let gone = shop.ask("GET /orders?after=tea-1:1").await.problem(409, "sale-replaced");
    assert_eq!(gone["sale"], "tea-2");
    shop.ask("GET /orders?sale=tea-2&after=2").await.problem(409, "sale-replaced");
    shop.call("DELETE /sales/tea-1").await.problem(401, "token-required");
    for (line, status, word) in [
        ("DELETE /sales/tea-2", 409, "not-replaced"),
        ("DELETE /sales/tea-1", 204, ""),
        ("DELETE /sales/tea-1", 404, "unknown-sale"),
        ("GET /orders?sale=tea-1", 404, "unknown-sale"),
    ] {
        let reply = shop.call_with(line, &[ADMIN], "").await;
        assert_eq!(reply.status.as_u16(), status, "{line}: {reply:?}");
        if status != 204 {
            reply.problem(status, word);
        }
    }
    // a reader that waits has one ledger, although it named none
    let empty = json!({"stock": 7});
    start(&shop, &empty, &[("if-match", "\"tea-2\"")]).await.json(200);
    let reader = tokio::spawn(async move { other.ask("GET /orders?wait=30s").await });
    eventually("the reader is told", async || {
        start(&shop, &empty, &[]).await.json(200);
        reader.is_finished()
    })
    .await;
    reader.await.unwrap().problem(409, "sale-replaced");
}

/// Goal: a request that the instance itself repeats after a lost answer counts as new for the client, be it a start, an order,
/// a cancellation or a change, and is done once. Of two requests that the client sent itself, the second is a repetition.
#[tokio::test]
async fn a_lost_answer_is_found_again() {
    let other = Shop::empty(ShopOptions::default()).await;
    let (shop, proxy) = other.behind_proxy("a").await;
    // Redis has the scripts then
    shop.until_ready().await;
    shop.call("GET /stock").await.problem(404, "unknown-item");
    let body = json!({"stock": 5, "sale": "tea-1"});
    proxy.lose_after(Direction::ToClient, 0);
    let started = start(&shop, &body, &[]).await;
    assert!(proxy.has_lost());
    proxy.lose_after(Direction::ToClient, 0);
    let repeated = start(&shop, &body, &[]).await;
    assert!(proxy.has_lost() && is_replayed(&repeated), "{repeated:?}");
    // a read comes before
    proxy.lose_after(Direction::ToClient, 1);
    let ordered = shop.order("a").await;
    assert!(proxy.has_lost());
    assert_eq!(shop.stock().await["stock"], 4);
    // an order that was answered before, here or elsewhere, is not new either
    other.order("b").await.json(200);
    for (id, reads) in [("a", 0), ("b", 1)] {
        proxy.lose_after(Direction::ToClient, reads);
        let again = shop.order(id).await;
        assert!(proxy.has_lost() && is_replayed(&again), "{id}: {again:?}");
    }
    let held = json!({"stock": 5, "sale": "tea-2", "hold_seconds": 60});
    // also where this instance does not know yet that the sale was replaced
    start(&other, &held, &[("if-match", "*")]).await.json(200);
    proxy.lose_after(Direction::ToClient, 1);
    let first = shop.order("a").await;
    assert!(proxy.has_lost() && !is_replayed(&first), "{first:?}");
    proxy.lose_after(Direction::ToServer, 0);
    let (held, same) = tokio::join!(shop.order("b"), shop.order("b"));
    proxy.lose_after(Direction::ToClient, 0);
    let cancel = || shop.call("POST /orders/a/cancel");
    let (cancelled, again) = tokio::join!(cancel(), cancel());
    assert!(proxy.has_lost());
    proxy.lose_answers(1);
    let headers = [ADMIN, ("idempotency-key", "k"), ("if-match", "\"tea-2:0\"")];
    let changed = shop.call_with("PATCH /stock", &headers, r#"{"add":1}"#).await;
    assert!(proxy.has_lost());
    let replies = [started, ordered, held, cancelled, changed, same, again];
    for (number, reply) in replies.into_iter().enumerate() {
        reply.json(200);
        assert_eq!(is_replayed(&reply), number > 4, "{reply:?}");
    }
    let stock = shop.stock().await;
    assert_eq!((&stock["stock"], &stock["version"]), (&json!(5), &json!(1)));
}

/// Goal: a hold is confirmed, cancelled, or ends; each answer says which, and the ledger has each change.
#[tokio::test]
async fn a_unit_is_held_confirmed_and_given_back() {
    let shop = Shop::empty(ShopOptions::http(|http| http.watchers = 1)).await;
    let other = shop.beside("b");
    start(&shop, &json!({"stock": 3, "hold_seconds": 60}), &[]).await.json(200);
    let order = async |id: &str, user: &str| {
        let line = format!("POST /stock/reduce?user={user}");
        shop.call_with(&line, &[("idempotency-key", id)], Body::empty()).await
    };
    for (id, user) in [("a", ""), ("b", ""), ("a", "alice")] {
        assert!(order(id, user).await.json(200)["hold_until"].is_string());
    }
    let stock = shop.stock().await;
    let units = json!({"held": 3, "confirmed": 0});
    let told = [&stock["held"], &stock["units"], &stock["state"]];
    assert_eq!(told, [&json!(3), &units, &json!("all-held")]);
    // the hold's minute, and up to half a minute more
    let retry_after =
        |reply: &Reply| -> u32 { reply.headers["retry-after"].to_str().unwrap().parse().unwrap() };
    let mut waits = BTreeSet::new();
    for _ in 0..9 {
        let reply = order("c", "").await;
        assert_eq!(reply.problem(409, "all-held")["remaining"], 0);
        waits.insert(retry_after(&reply));
    }
    let text = shop.call_with("POST /stock/reduce", &[("accept", "text/plain")], "").await;
    assert_eq!((text.status.as_u16(), &*text.text), (409, "8080 reduce stock held, try again\n"));
    waits.insert(retry_after(&text));
    // as after a write by an instance that does not count held units: a refused order makes a batch count them
    let mut raw = shop.raw().await;
    raw.run_with::<()>("HDEL buyers", "\theld").await;
    order("c", "").await.problem(409, "all-held");
    assert_eq!(shop.stock().await["units"], units);
    assert!(waits.len() > 1 && waits.iter().all(|wait| (50..=90).contains(wait)), "{waits:?}");
    let confirmed = shop.ask("POST /orders/a/confirm?user=alice").await;
    assert!(!is_replayed(&confirmed));
    let confirmed = confirmed.json(200);
    assert_eq!([&confirmed["outcome"], &confirmed["order"]], ["confirmed", "a"]);
    assert!(is_replayed(&other.ask("POST /orders/a/confirm?user=alice").await));
    shop.call("POST /orders/a/cancel?user=alice").await.problem(409, "order-final");
    let back = async |id: &str, token: &[(&str, &str)]| {
        shop.call_with(&format!("POST /orders/{id}/return?user=alice"), token, "").await
    };
    back("a", &[]).await.problem(401, "token-required");
    assert_eq!(back("a", &[SERVER]).await.json(200)["outcome"], "returned");
    assert!(is_replayed(&back("a", &[SERVER]).await));
    other.ask("POST /orders/a/confirm?user=alice").await.problem(410, "returned");
    back("z", &[SERVER]).await.problem(404, "unknown-order");
    let held = other.call_with("POST /order/return?order=b", &[SERVER], "").await;
    held.problem(409, "not-confirmed");
    other.call("POST /orders/a/cancel").await.json(200);
    let gone = shop.ask("POST /orders/a/confirm").await.problem(410, "cancelled");
    assert!(gone["time"].is_string(), "{gone}");
    shop.call("POST /orders/a/cancel?user=eve").await.problem(404, "unknown-order");
    shop.call("GET /orders/a/cancel").await.problem(405, "method-not-allowed");

    // the buyer of `b` never pays
    let record: String = raw.run("HGET orders b").await;
    let mut fields: Vec<_> = record.split('\t').collect();
    fields[7] = "1000000";
    raw.run_with::<()>("HSET orders b", &fields.join("\t")).await;
    raw.run::<()>("ZADD holds 1000000 b").await;
    // the instances remember the record as it was
    let fresh = Shop::beside(&shop, "c");
    let ended = fresh.ask("POST /orders/b/confirm").await.problem(410, "expired");
    assert_eq!(ended["time"], "1970-01-01T00:00:01.000000Z");
    let one = fresh.call("GET /orders/b").await.json(200);
    assert_eq!((&one["event"], &one["position"]), (&json!("expired"), &json!(2)));
    let stock = fresh.stock().await;
    assert_eq!([&stock["stock"], &stock["lucky"], &stock["held"]], [3, 0, 0]);

    let lines = [("accept", "application/x-ndjson"), SERVER];
    let ledger = fresh.call_with("GET /orders?limit=2", &lines, "").await;
    assert_eq!(ledger.headers["content-type"], "application/x-ndjson");
    let entries = ledger.text.lines().map(|line| serde_json::from_str(line).unwrap());
    let entries: Vec<Value> = entries.collect();
    let events: Vec<_> = entries.iter().map(|entry| entry["event"].clone()).collect();
    let ends = ["confirmed", "returned", "cancelled", "expired"];
    assert_eq!(events, [&["reserved"; 3][..], &ends].concat());
    // HTTP/1.0 has no end of a body that could be missed when it breaks off
    let mut request = Request::get("/orders?limit=2").version(Version::HTTP_10);
    for (name, value) in lines {
        request = request.header(name, value);
    }
    let answer = fresh.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let page = answer.into_body().collect().await.unwrap().to_bytes();
    let page: Value = serde_json::from_slice(&page).expect("one page");
    assert_eq!(
        (&page["orders"][1]["order"], &page["next"]),
        (&entries[1]["order"], &entries[1]["cursor"])
    );
    let line = format!("GET /orders?after={}&wait=30s", entries[6]["cursor"].as_str().unwrap());
    let (page, _) = tokio::join!(fresh.ask(&line), async {
        // by its place among the watchers
        eventually("the reader waits", async || fresh.ask("GET /events").await.status == 503).await;
        fresh.order("d").await
    });
    let page = page.json(200);
    assert_eq!((&page["orders"][0]["order"], &page["next"]), (&json!("d"), &Value::Null));
    assert_eq!(page["cursor"].as_str().unwrap().rsplit(':').next(), Some("8"));
}

/// Goal: nobody needs to ask for the units of a hold that ended: a sold-out sale sells them to the next buyer, and an idle one
/// takes them back by itself.
#[tokio::test]
async fn what_is_due_comes_back() {
    let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
    let etcd = testkit::shared::shared_endpoint().await;
    let open = || Shop::at(etcd.clone(), format!("{}/0", redis.url()), ShopOptions::default());
    let shop = open();
    start(&shop, &json!({"stock": 1, "hold_seconds": 1}), &[]).await.json(200);
    for id in ["a", "b"] {
        eventually("the unit is on sale", async || shop.order(id).await.status == 200).await;
    }
    eventually("it is back", async || shop.stock().await["stock"] == 1).await;
    let (before, began_at) = (scripts_run(&redis).await, Instant::now());
    tokio::time::sleep(Duration::from_secs(3)).await; // what an idle sale costs
    let reads = scripts_run(&redis).await - before;
    assert!(u64::from(reads) <= 1 + began_at.elapsed().as_secs(), "{reads} reads");

    // all instances are new, and only a reader of the ledger asks
    shop.order("c").await.json(200);
    let cursor = shop.ask("GET /orders").await.json(200)["cursor"].clone();
    drop(shop);
    let after = cursor.as_str().unwrap();
    let page = open().ask(&format!("GET /orders?after={after}&wait=30s")).await.json(200);
    assert_eq!(page["orders"][0]["event"], "expired", "{page}");
}

/// Goal: the limits and the times of a sale, the gateway's header, and pages of other sites decide who may buy.
#[tokio::test]
async fn a_sale_says_who_may_buy() {
    let shop = Shop::empty(ShopOptions::default()).await;
    start(&shop, &json!({"stock": 5, "per_order": 2, "per_user": 2}), &[]).await.json(200);
    let problem =
        shop.call("POST /stock/reduce?user=a&quantity=9").await.problem(409, "limit-reached");
    assert_eq!([&problem["limit"], &problem["has"]], [2, 0]);
    shop.call("POST /stock/reduce").await.problem(400, "user-required");
    shop.call("POST /stock/reduce?user=a&quantity=2").await.json(200);
    let problem = shop.call("POST /stock/reduce?user=a").await.problem(409, "limit-reached");
    assert_eq!([&problem["limit"], &problem["has"]], [2, 2]);
    let other_site = [("sec-fetch-site", "cross-site"), ADMIN];
    for line in [
        "GET /stock/reduce?user=b",
        "POST /stock/reduce?user=b",
        "POST /orders/a/confirm",
        "POST /orders/a/cancel",
        "POST /orders/a/return",
        "POST /order/confirm?order=a",
        "PUT /stock",
        "PATCH /stock",
        "DELETE /sales/a",
    ] {
        shop.call_with(line, &other_site, "").await.problem(403, "cross-site");
    }
    let same_site = [("sec-fetch-site", "same-origin")];
    shop.call_with("GET /stock/reduce?user=b", &same_site, "").await.json(200);

    let user_header = Some(HeaderName::from_static("x-user-id"));
    let options = ShopOptions::http(|http| http.user_header = user_header).http;
    let mut gateway = shop;
    gateway.router = router(AppState::new(gateway.sale.clone(), options).into());
    let header = |name| [("x-user-id", name), ("idempotency-key", "a-1")];
    let line = "POST /stock/reduce";
    gateway.call_with(line, &header("d"), "").await.json(200);
    gateway.call_with("GET /orders/a-1", &header("d"), "").await.json(200);
    gateway.call_with("GET /orders/a-1", &header("e"), "").await.problem(404, "unknown-order");
    let both = gateway.call_with(&format!("{line}?user=e"), &header("d"), "").await;
    both.problem(400, "bad-parameter");
    // the shop's server speaks for every buyer, whatever header a client sent along
    for (token, status) in [(SERVER, 200), (ADMIN, 200), (("authorization", "Bearer sh0"), 401)] {
        let headers = [token, ("x-user-id", "e")];
        let reply = gateway.call_with("POST /orders/a-1/confirm?user=d", &headers, "").await;
        assert_eq!(reply.status, status, "{token:?}: {reply:?}");
    }
    let unnamed = gateway.call_with("POST /orders/a-1/confirm", &[SERVER], "").await;
    unnamed.problem(400, "user-required");
    gateway.call(line).await.problem(400, "user-required");
    gateway.call_with(line, &header(""), "").await.problem(400, "user-required");

    let times = json!({"stock": 5, "starts_at": "2199-01-01T00:00:00Z", "sale": "later"});
    let if_match = ("if-match", "*");
    let shop = Shop::beside(&gateway, "b");
    start(&shop, &times, &[if_match]).await.json(200);
    let reply = shop.order("early").await;
    assert_eq!(reply.problem(409, "not-started")["time"], "2199-01-01T00:00:00.000000Z");
    assert_eq!(reply.headers["retry-after"], "60");
    let times = |ends_at: &str| json!({"stock": 5, "ends_at": ends_at, "sale": "past"});
    let never = times("9999-12-31T23:59:59.9999999Z");
    start(&shop, &never, &[if_match]).await.problem(400, "bad-body");
    let past = times("2001-01-01T01:00:00+01:00");
    start(&shop, &past, &[if_match]).await.problem(422, "already-ended");
    start(&shop, &times("2199-01-01T00:00:00Z"), &[if_match]).await.json(200);
    let mut raw = shop.raw().await;
    let stored: String = raw.run("GET terms").await;
    // an earlier version accepted it
    let terms = stored.replace("7226582400000000", "253402300799999999");
    let terms = terms.replace("2199-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z");
    raw.run_with::<()>("SET terms", &terms).await;
    assert!(is_replayed(&start(&shop, &never, &[]).await));
    // time passes
    let terms = stored.replace("7226582400000000", "978307200000000").replace("2199", "2001");
    raw.run_with::<()>("SET terms", &terms).await;
    start(&shop, &past, &[]).await.json(200);
    let problem = shop.order("late").await.problem(409, "ended");
    assert_eq!(problem["time"], "2001-01-01T00:00:00.000000Z");
    // also while all units are held
    let end = "2199-01-01T00:00:00Z";
    let held = json!({"stock": 1, "hold_seconds": 60, "ends_at": end, "sale": "held"});
    start(&shop, &held, &[if_match]).await.json(200);
    shop.order("first").await.json(200);
    let stored: String = raw.run("GET terms").await;
    let terms = stored.replace("7226582400000000", "978307200000000").replace("2199", "2001");
    raw.run_with::<()>("SET terms", &terms).await;
    shop.order("late").await.problem(409, "ended");
}
