//! One instance in process, over a real etcd and a real Redis, and calls to its router.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use fenced_lock::{Guard, Session};
use flash_sale::http::{AppState, HttpOptions, router};
use flash_sale::inventory::{Inventory, Item, Replicas};
use flash_sale::peers::Peers;
use flash_sale::sale::{Sale, SaleOptions};
use flash_sale::secret::{Secret, SecretSource};
use http_body_util::BodyExt;
use serde_json::Value;
use testkit::shared::{Raw, fresh_database, fresh_lock_name, shared_endpoint};
use testkit::wait::eventually;
use testkit::{PrivateRedis, Proxy, RedisOptions};
use tower::ServiceExt;

use crate::support::etcd::{backend, session, sessions};
use crate::support::store::both;

/// One instance.
pub(crate) struct Shop {
    pub(crate) sale: Sale,
    pub(crate) state: Arc<AppState>,
    pub(crate) redis: String,
    pub(crate) etcd: String,
    pub(crate) lock_name: String,
    pub(crate) router: Router,
    options: ShopOptions,
}

/// The header that permits the start of a sale in most shops.
pub(crate) const ADMIN: (&str, &str) = ("authorization", "Bearer s3cret");

/// The header of the shop's server in most shops.
pub(crate) const SERVER: (&str, &str) = ("authorization", "Bearer sh0p");

/// The settings of a shop. The default is that of most tests.
#[derive(Clone)]
pub(crate) struct ShopOptions {
    pub(crate) http: HttpOptions,
    pub(crate) queue_length: usize,
    pub(crate) wait_timeout: Duration,
    pub(crate) store_timeout: Duration,
    /// How many replicas an order waits for, 300 ms at the most.
    pub(crate) replicas: u32,
}

impl Default for ShopOptions {
    fn default() -> Self {
        let token = |text| Some(SecretSource::Text(Secret::from(text)));
        let (shop_token, admin_token) = (token("sh0p"), token("s3cret"));
        Self {
            http: HttpOptions { shop_token, admin_token, watchers: 64, ..HttpOptions::default() },
            queue_length: 100,
            wait_timeout: Duration::from_secs(30),
            // short, so that the store's absence is soon noticed
            store_timeout: Duration::from_millis(300),
            replicas: 0,
        }
    }
}

impl ShopOptions {
    /// The default settings, with these HTTP options changed.
    pub(crate) fn http(change: impl FnOnce(&mut HttpOptions)) -> Self {
        let mut options = Self::default();
        change(&mut options.http);
        options
    }
}

impl Shop {
    /// A shop in the shared etcd and the shared Redis, with a sale of `stock` units.
    pub(crate) async fn selling(stock: u64, options: ShopOptions) -> Self {
        let shop = Self::empty(options).await;
        shop.start(stock).await;
        shop
    }

    /// The same without a sale.
    pub(crate) async fn empty(options: ShopOptions) -> Self {
        Self::at(shared_endpoint().await, fresh_database().await, options)
    }

    /// A shop with a Redis of its own.
    pub(crate) async fn with_own_redis(options: ShopOptions) -> (PrivateRedis, Self) {
        let redis = PrivateRedis::start(RedisOptions::default()).await.unwrap();
        let url = format!("{}/0", redis.url());
        (redis, Self::at(shared_endpoint().await, url, options))
    }

    /// A shop over these servers.
    pub(crate) fn at(etcd: String, redis: String, options: ShopOptions) -> Self {
        Self::named("8080", [fresh_lock_name(), etcd, redis], options, None)
    }

    /// Another instance of the same sale.
    pub(crate) fn beside(&self, instance: &str) -> Self {
        self.over(instance, self.redis.clone(), None)
    }

    /// Another instance of the same sale, with peers.
    pub(crate) fn with_peers(&self, instance: &str, peers: Arc<Peers>) -> Self {
        self.over(instance, self.redis.clone(), Some(peers))
    }

    /// Another instance of the same sale, which sees the store through a proxy.
    pub(crate) async fn behind_proxy(&self, instance: &str) -> (Self, Proxy) {
        let address = self.redis.strip_prefix("redis://127.0.0.1:").unwrap();
        let (port, database) = address.split_once('/').unwrap();
        let proxy = Proxy::to(port.parse().unwrap()).await.unwrap();
        let redis = format!("redis://127.0.0.1:{}/{database}", proxy.port());
        (self.over(instance, redis, None), proxy)
    }

    /// The same instance with other options.
    pub(crate) fn with(&self, options: ShopOptions) -> Self {
        let servers = [&self.lock_name, &self.etcd, &self.redis].map(Clone::clone);
        Self::named("8080", servers, options, None)
    }

    fn over(&self, instance: &str, redis: String, peers: Option<Arc<Peers>>) -> Self {
        let servers = [self.lock_name.clone(), self.etcd.clone(), redis];
        Self::named(instance, servers, self.options.clone(), peers)
    }

    fn named(
        instance: &str,
        [lock_name, etcd, redis]: [String; 3],
        options: ShopOptions,
        peers: Option<Arc<Peers>>,
    ) -> Self {
        let timeouts = both(options.store_timeout);
        let replicas = Replicas { count: options.replicas, timeout: Duration::from_millis(300) };
        let inventory = Inventory::new(&redis, timeouts).unwrap().with_replicas(replicas);
        let locks = backend(&etcd);
        let sale_options = SaleOptions {
            lock_name: lock_name.clone(),
            instance: instance.into(),
            batch_size: 100,
            tenure: Duration::from_millis(5),
            queue_length: options.queue_length,
            wait_timeout: options.wait_timeout,
            etcd: Some(Arc::clone(&locks)),
            peers,
        };
        let sale = Sale::guarded(inventory, sessions(locks, instance), sale_options);
        let state = Arc::new(AppState::new(sale.clone(), options.http.clone()));
        let router = router(Arc::clone(&state));
        Self { sale, state, redis, etcd, lock_name, router, options }
    }

    /// Starts a sale of the default item, past the access check.
    pub(crate) async fn start(&self, stock: u64) {
        self.sale.start(&Item::DEFAULT, stock).await.unwrap();
    }

    /// Sends `method path`, such as `GET /stock`, with these headers.
    pub(crate) async fn call_with(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Reply { status: head.status, headers: head.headers, text }
    }

    /// Sends `method path` and nothing else.
    pub(crate) async fn call(&self, line: &str) -> Reply {
        self.call_with(line, &[], Body::empty()).await
    }

    /// Sends `method path` and the token of the shop's server.
    pub(crate) async fn ask(&self, line: &str) -> Reply {
        self.call_with(line, &[SERVER], Body::empty()).await
    }

    /// Starts a sale of `item` over HTTP.
    pub(crate) async fn put(&self, item: &str, body: &str) -> Reply {
        self.call_with(&format!("PUT /stock?item={item}"), &[ADMIN], body.to_owned()).await
    }

    /// Sends an order for one unit under this id.
    pub(crate) async fn order(&self, id: &str) -> Reply {
        self.call_with("POST /stock/reduce", &[("idempotency-key", id)], Body::empty()).await
    }

    /// The whole state of the default item.
    pub(crate) async fn stock(&self) -> Value {
        self.call("GET /stock").await.json(200)
    }

    pub(crate) async fn until_ready(&self) {
        eventually("it is ready", async || self.call("GET /readyz").await.status == 200).await;
    }

    /// A connection to the shop's database, past the service.
    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.redis).await
    }

    /// Holds the shop's lock as another instance would.
    pub(crate) async fn hold_lock(&self) -> (Session, Guard) {
        let session = session(&self.etcd, "other").await;
        let guard = session.mutex(&self.lock_name).unwrap().lock().await.unwrap();
        (session, guard)
    }

    /// Waits until this many claims, the holder's included, are in the queue for the lock.
    pub(crate) async fn until_queued(&self, claims: usize) {
        eventually("the claims are in the queue", async || {
            let queue = self.call("GET /lock").await.json(200);
            queue["queue"].as_array().unwrap().len() == claims
        })
        .await;
    }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    /// The JSON body of an answer with this status.
    #[track_caller]
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers["cache-control"], "no-store");
        serde_json::from_str(&self.text).unwrap()
    }

    /// Asserts that it says when to retry, in its head and its body: after one to three seconds.
    #[track_caller]
    pub(crate) fn assert_retry_after(&self) {
        let problem: Value = serde_json::from_str(&self.text).unwrap();
        let seconds = problem["retry_after_seconds"].as_u64().expect("a number");
        assert!((1..=3).contains(&seconds), "{problem}");
        assert_eq!(self.headers["retry-after"], seconds.to_string());
    }

    /// The problem of this status and type.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, word: &str) -> Value {
        let problem = self.json(status);
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(problem["type"], word, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["title"].is_string(), "{problem}");
        assert_eq!(self.headers["x-request-id"], problem["request_id"].as_str().unwrap());
        let detail = problem["detail"].as_str().unwrap();
        for secret in ["redis://", "127.0.0.1", "os error", ".rs", "etcdserver", "WRONGTYPE"] {
            assert!(!detail.contains(secret), "an internal detail in {problem}");
        }
        problem
    }
}
