//! Goal: neither calls that cost the servers more than an order nor clients that ask too often slow an order. Method: calls in
//! process, over servers of the test's own where they are counted or stopped.

use std::time::Duration;

use axum::http::HeaderName;
use flash_sale::http::rate_limit::Rate;
use serde_json::json;
use testkit::client::Connection;
use testkit::shared::fresh_database;
use testkit::wait::eventually;
use testkit::{EtcdOptions, PrivateEtcd};
use tokio::net::TcpSocket;

use super::server::{OPTIONS, Running};
use crate::shop::{Shop, ShopOptions};
use crate::support::store::scripts_run;

/// For servers that answer, however busy the machine is.
pub(super) fn patient() -> ShopOptions {
    ShopOptions { store_timeout: Duration::from_secs(20), ..ShopOptions::default() }
}

/// Goal: a made-up item costs one cheap command a second, whatever is asked of it, and leaves no key. An instance sees a sale of
/// it at once if it started that sale, and soon otherwise; that sale takes nothing from another item.
#[tokio::test]
async fn a_made_up_item_is_looked_up_once() {
    let (redis, shop) = Shop::with_own_redis(patient()).await;
    shop.start(1).await;
    let other = shop.beside("8090");
    let scripts = scripts_run(&redis).await;
    for line in ["POST /stock/reduce", "GET /stock", "GET /orders", "GET /orders/a-1"] {
        for shop in [&shop, &other] {
            let problem = shop.ask(&format!("{line}?item=tea")).await.problem(404, "unknown-item");
            assert_eq!(problem["item"], "tea", "{line}");
        }
    }
    assert_eq!(scripts_run(&redis).await, scripts);
    assert!(shop.raw().await.run::<Vec<String>>("KEYS *tea*").await.is_empty());
    shop.put("tea", r#"{"stock":3}"#).await.json(200);
    shop.call("POST /stock/reduce?item=tea").await.json(200);
    let is_seen = async || other.call("POST /stock/reduce?item=tea").await.status == 200;
    eventually("the other instance sees it", is_seen).await;
    assert_eq!(shop.stock().await["stock"], 1);
}

/// Goal: pages of the ledger are read one at a time, over a connection of their own, and lists of sales too. A call that would wait
/// too long is refused.
#[tokio::test]
async fn pages_wait_for_each_other() {
    let (mut redis, shop) = Shop::with_own_redis(patient()).await;
    shop.start(1).await;
    shop.order("a-1").await.json(200);
    let connections =
        async || redis.run::<String>("CLIENT LIST TYPE normal").await.unwrap().lines().count();
    let before = connections().await;
    shop.ask("GET /orders").await.json(200);
    assert_eq!(connections().await, before + 1);
    for line in ["GET /orders", "GET /sales"] {
        redis.child().pause().unwrap();
        let (first, second) = tokio::join!(shop.ask(line), async {
            let refused = shop.ask(line).await;
            redis.child().resume().unwrap();
            refused
        });
        first.json(200);
        second.problem(503, "too-many-watchers");
        second.assert_retry_after();
    }
}

/// Goal: `GET /lock` shows the holder and who waits. For a lock in use it needs no request to etcd; a lock that is not watched is
/// read from etcd, by one call at a time. Method: an etcd that stands still.
#[tokio::test]
async fn the_lock_is_shown_from_its_watch() {
    let mut etcd = PrivateEtcd::start(EtcdOptions::default()).await.unwrap();
    let shop = Shop::at(etcd.endpoint(), fresh_database().await, ShopOptions::default());
    shop.start(5).await;
    shop.until_queued(0).await;
    let empty = shop.call("GET /lock").await.json(200);
    assert_eq!(empty, json!({"name": shop.lock_name, "holder": null, "queue": []}));
    let (session, guard) = shop.hold_lock().await;
    let (bought, ()) = tokio::join!(shop.order("waits"), async {
        shop.until_queued(2).await;
        etcd.child().pause().unwrap();
        let lock = shop.call("GET /lock").await.json(200);
        let read = || shop.call("GET /lock?item=tea");
        let (first, second) = tokio::join!(read(), read());
        etcd.child().resume().unwrap();
        let holder = &lock["holder"];
        assert_eq!(*holder, lock["queue"][0]);
        assert_eq!(holder["token"], guard.token().revision());
        assert_eq!(holder["lease"], format!("{:x}", session.lease().id));
        assert_eq!(holder["instance"], "other");
        assert!(holder["key"].as_str().unwrap().starts_with(&shop.lock_name), "{lock}");
        assert!(holder["age_ms"].is_u64());
        assert_eq!(lock["queue"][1]["instance"], "8080");
        first.problem(503, "lock-unavailable");
        second.problem(503, "too-many-watchers");
        second.assert_retry_after();
        guard.unlock().await.unwrap();
    });
    bought.json(200);
    eventually("there is room again", async || shop.call("GET /lock?item=tea").await.status == 200)
        .await;
    let of_an_item = shop.call("GET /lock?item=tea").await.json(200);
    assert_eq!(of_an_item["name"], format!("{}:tea", shop.lock_name), "a lock of its own");
}

/// Goal: each address has its own limit, on orders alone, and a refused client learns when there is room. Where the
/// gateway names the user, each user has one, and confirmations count as well.
#[tokio::test]
async fn orders_of_one_client_are_limited() {
    let rate_limit = Some(Rate { count: 2, per: Duration::from_hours(1) });
    let shop = Shop::selling(9, ShopOptions::http(|http| http.rate_limit = rate_limit)).await;
    let server = Running::start(shop.router.clone(), OPTIONS);
    for address in ["127.0.0.1", "127.0.0.2"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        let mut client = Connection::over(socket.connect(server.address).await.unwrap());
        for status in [200, 200, 429, 429] {
            assert_eq!(client.get("/stock/reduce").await.status, status, "{address}");
        }
        assert_eq!(client.get("/stock").await.status, 200);
    }
    assert_eq!(shop.stock().await["lucky"], 4);

    // behind a proxy, each client has its own limit, whatever it claims; the shop's server has none
    let behind_proxy = ShopOptions::http(|http| {
        http.rate_limit = rate_limit;
        http.proxies.trusted = vec!["127.0.0.1/32".parse().unwrap()];
        http.proxies.header = Some(HeaderName::from_static("x-forwarded-for"));
    });
    let shop = Shop::selling(99, behind_proxy).await;
    let server = Running::start(shop.router.clone(), OPTIONS);
    let mut proxy = server.connect().await;
    for (header, statuses) in [
        ("X-Forwarded-For: 198.51.100.1", [200, 200, 429]),
        ("X-Forwarded-For: 203.0.113.7, 198.51.100.1", [429; 3]),
        ("X-Forwarded-For: 198.51.100.1, 198.51.100.2", [200, 200, 429]),
        ("Forwarded: for=203.0.113.7", [200, 200, 429]),
        ("Authorization: Bearer sh0", [429; 3]),
        ("Authorization: Bearer sh0p", [200; 3]),
    ] {
        for status in statuses {
            proxy.send(format!("POST /stock/reduce HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n")).await;
            assert_eq!(proxy.answer().await.status, status, "{header}");
        }
    }

    let of_users = ShopOptions::http(|http| {
        (http.rate_limit, http.user_header) =
            (rate_limit, Some(HeaderName::from_static("x-user-id")));
    });
    let shop = Shop::selling(9, of_users).await;
    for user in ["ann", "bob"] {
        let order = async |line| shop.call_with(line, &[("x-user-id", user)], "").await;
        let bought = order("POST /stock/reduce").await.json(200);
        let line = format!("POST /orders/{}/confirm", bought["order"].as_str().unwrap());
        order(&line).await.problem(401, "token-required");
        let cancel = line.replace("confirm", "cancel");
        for line in ["POST /stock/reduce", &line, &cancel] {
            let refused = order(line).await;
            // one more is due after half of the time; a crowd does not return at once
            let problem = refused.problem(429, "rate-limited");
            let seconds = problem["retry_after_seconds"].as_u64().unwrap();
            assert!((900..=1802).contains(&seconds), "{problem}");
            assert_eq!(refused.headers["retry-after"], seconds.to_string());
        }
        order("GET /stock").await.json(200);
    }
}
