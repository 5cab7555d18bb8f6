//! Goal: a door decides which calls exist, and a token decides who may make them, also for hostile clients. Method: calls in process,
//! and over sockets where the bytes matter.

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request};
use flash_sale::http::{OperatorsPort, buyers_router};
use tower::ServiceExt as _;

use super::server::{OPTIONS, Running};
use crate::shop::{ADMIN, SERVER, Shop, ShopOptions};

/// The calls: whether buyers' port has each, and the answers to nobody's token, the shop's and the admin token.
const CALLS: &[(&str, bool, [u16; 3])] = &[
    ("GET /stock/reduce", true, [200; 3]),
    ("POST /stock/reduce", true, [200; 3]),
    ("GET /stock", true, [200; 3]),
    ("GET /orders/none", true, [404; 3]),
    ("GET /order?order=none", true, [404; 3]),
    ("POST /orders/none/cancel", true, [404; 3]),
    ("POST /order/cancel?order=none", true, [404; 3]),
    ("GET /healthz", true, [200; 3]),
    ("POST /orders/none/confirm", true, [401, 404, 404]),
    ("POST /order/confirm?order=none", true, [401, 404, 404]),
    ("POST /orders/none/return", true, [401, 404, 404]),
    ("GET /orders", false, [401, 200, 200]),
    ("GET /orders?sale=none", false, [401, 404, 404]),
    // of an item that cannot be, so that no stream begins
    ("GET /events?item=T", false, [401, 400, 400]),
    ("PUT /stock", false, [401, 403, 400]),
    ("PATCH /stock", false, [401, 403, 400]),
    ("DELETE /sales/none", false, [401, 403, 404]),
    ("GET /sales", false, [200; 3]),
    ("GET /lock", false, [200; 3]),
    ("GET /readyz", false, [200; 3]),
    ("GET /version", false, [200; 3]),
    ("GET /metrics", false, [200; 3]),
    ("GET /openapi.json", false, [200; 3]),
    ("GET /", false, [200; 3]),
];

/// The beginning of the answer where a path does not exist.
const MISSING: &str = "{\"type\":\"not-found\"";

/// The calls that need a token.
fn with_token() -> impl Iterator<Item = &'static str> {
    CALLS.iter().filter(|(_, _, [nobody, ..])| *nobody == 401).map(|(line, ..)| *line)
}

#[tokio::test]
async fn doors_decide_what_exists_and_tokens_who_may() {
    let mut shop = Shop::selling(100, ShopOptions::default()).await;
    shop.until_ready().await;
    let callers = [&[][..], &[SERVER], &[ADMIN]];
    for (line, _, answers) in CALLS {
        for (caller, status) in callers.iter().zip(answers) {
            let reply = shop.call_with(line, caller, "").await;
            assert_eq!(reply.status, *status, "{line} {caller:?}: {reply:?}");
            assert!(!reply.text.contains(MISSING), "{line} {caller:?}: {reply:?}");
        }
    }
    shop.router = buyers_router(shop.state.clone());
    for (line, is_there, answers) in CALLS {
        for (caller, status) in callers.iter().zip(answers) {
            let reply = shop.call_with(line, caller, "").await;
            let is_missing = reply.text.contains(MISSING) || reply.status == 405;
            assert_eq!(is_missing, !is_there, "{line} {caller:?}: {reply:?}");
            assert!(is_missing || reply.status == *status, "{line} {caller:?}: {reply:?}");
        }
    }
}

/// Goal: calls for which the instance has no token are off, for every client.
#[tokio::test]
async fn without_a_token_the_calls_are_off() {
    let shop = Shop::selling(5, ShopOptions::default()).await;
    for (has_shop, has_admin) in [(false, false), (true, false), (false, true)] {
        let mut options = ShopOptions::default();
        options.http.shop_token.take_if(|_| !has_shop);
        options.http.admin_token.take_if(|_| !has_admin);
        let other = shop.with(options);
        for line in with_token() {
            let is_admins =
                ["PUT", "PATCH", "DELETE"].iter().any(|method| line.starts_with(method));
            let is_on = has_admin || has_shop && !is_admins;
            for caller in [&[][..], &[SERVER], &[ADMIN]] {
                let reply = other.call_with(line, caller, "").await;
                let is_known = caller == [SERVER] && has_shop || caller == [ADMIN] && has_admin;
                if !is_on {
                    let detail = reply.problem(403, "not-allowed")["detail"].to_string();
                    let flag = if is_admins { "--admin-token-file" } else { "--shop-token-file" };
                    assert!(detail.contains(flag), "{line}: {detail}");
                } else if !is_known {
                    reply.problem(401, "token-required");
                } else {
                    assert!(![401, 403].contains(&reply.status.as_u16()), "{line}: {reply:?}");
                }
            }
        }
    }
}

/// Goal: if one token becomes both the shop's and the admin token, it gives only the shop's rights.
#[tokio::test]
async fn a_token_of_both_files_is_the_shops() {
    let shop =
        Shop::selling(5, ShopOptions::http(|http| http.shop_token = http.admin_token.clone()));
    let shop = shop.await;
    shop.call_with("GET /orders", &[ADMIN], "").await.json(200);
    shop.call_with("PUT /stock", &[ADMIN], "{}").await.problem(403, "not-allowed");
}

/// Goal: a client without a right token is refused at once: it takes no place among the watchers, and the instance neither reads its
/// body nor takes the lock for it.
#[tokio::test]
async fn hostile_clients_get_nothing_without_a_token() {
    let shop = Shop::selling(5, ShopOptions::http(|http| http.watchers = 0)).await;
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let long = bearer(&"s3cret".repeat(2000));
    let (right, wrong) = (bearer("s3cret"), bearer("wrong"));
    let heads = [
        "",
        "Authorization: \r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Basic s3cret\r\n",
        "Authorization: s3cret\r\n",
        "Authorization: Bearer s3cre\r\n",
        "Authorization: Bearer s3cret1\r\n",
        "Authorization: Bearer S3CRET\r\n",
        "Authorization: Bearer s3cret sh0p\r\n",
        "Authorization: Bearer s3cret, Bearer sh0p\r\n",
        "Authorization: Bearer s3cret\0\r\n",
        "Authorization: Bearer \u{ff}s3cret\r\n",
        "Authorization: Bearer Bearer s3cret\r\n",
        "Cookie: Authorization=Bearer s3cret; token=s3cret\r\n",
        "X-Authorization: Bearer s3cret\r\n",
        "Proxy-Authorization: Bearer s3cret\r\n",
        // which one counts must not depend on a proxy
        &format!("{right}{wrong}"),
        &format!("{wrong}{right}"),
        &format!("{right}{right}"),
        &long,
    ];
    let server = Running::start(shop.router.clone(), OPTIONS);
    // who is let in would wait for the lock
    let (_session, guard) = shop.hold_lock().await;
    for line in with_token() {
        let (method, path) = line.split_once(' ').unwrap();
        for head in heads {
            let mut client = server.connect().await;
            let sign = if path.contains('?') { '&' } else { '?' };
            // the body never comes
            let request = format!(
                "{method} {path}{sign}token=s3cret HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 1073741824\r\n\r\n"
            );
            client.send(request).await;
            let answer = client.answer().await;
            // hyper refuses a NUL
            let status = if head.contains('\0') { 400 } else { 401 };
            assert_eq!(answer.status, status, "{line} {head}: {answer:?}");
            assert_eq!(answer.header("www-authenticate"), (status == 401).then_some("Bearer"));
            assert!(!answer.body.contains("s3cret") && !answer.body.contains("sh0p"), "{answer:?}");
        }
    }
    guard.unlock().await.unwrap();
    assert_eq!(shop.stock().await["entries"], 0);
}

/// Goal: a page of an allowed origin can order and read every answer, problems included; pages of others are refused, with and
/// without the browser's question, and so is a `GET` that sells.
#[tokio::test]
async fn pages_of_an_allowed_origin_can_order() {
    const SHOP: &str = "https://shop.example";
    let allow = ShopOptions::http(|http| http.allow_origins = vec![HeaderValue::from_static(SHOP)]);
    let shop = Shop::selling(4, allow).await;
    let call = async |line: &str, headers: &[(&str, &str)]| shop.call_with(line, headers, "").await;
    for (line, wanted, methods) in [
        ("OPTIONS /stock/reduce", "POST", "POST"),
        ("OPTIONS /stock", "GET", "GET,POST"),
        ("OPTIONS /orders/a/cancel", "POST", "GET,POST"),
    ] {
        let asked = [("origin", SHOP), ("access-control-request-method", wanted)];
        let told = call(line, &asked).await;
        assert_eq!(told.status, 200, "{told:?}");
        let [headers, exposed] = ["access-control-allow-headers", "access-control-expose-headers"];
        for (name, value) in [
            ("access-control-allow-origin", SHOP),
            ("access-control-allow-methods", methods),
            (headers, "idempotency-key,content-type,x-request-id"),
            ("access-control-max-age", "7200"),
            ("vary", "origin"),
        ] {
            assert_eq!(told.headers[name], value, "{line} {name}");
        }
        assert!(!told.headers.contains_key("access-control-allow-credentials"));
        assert!(!told.headers.contains_key(exposed));
    }
    let site = |which| ("sec-fetch-site", which);
    let (cross_site, evil) = (site("cross-site"), ("origin", "https://evil.example"));
    for (line, status) in [
        ("POST /stock/reduce", 200),
        ("GET /stock", 200),
        ("POST /stock/reduce?quantity=9", 409),
        ("POST /stock/reduce?quantity=x", 400),
        ("GET /orders/none", 404),
        ("POST /orders/none/cancel", 404),
        ("POST /orders/none/confirm", 401),
        ("GET /nothing", 404),
        ("POST /stock", 405),
    ] {
        let reply = call(line, &[("origin", SHOP), cross_site]).await;
        assert_eq!(reply.status, status, "{line}: {reply:?}");
        assert_eq!(reply.headers["access-control-allow-origin"], SHOP, "{line}");
        let exposed = "retry-after,idempotency-replayed,x-request-id";
        assert_eq!(reply.headers["access-control-expose-headers"], exposed, "{line}");
        assert_eq!(reply.headers["vary"], "origin", "{line}");
    }
    let host = ("host", "sale.example:8080");
    let ask = |wanted| ("access-control-request-method", wanted);
    for (line, headers) in [
        ("OPTIONS /stock/reduce", &[evil, ask("POST")][..]),
        ("OPTIONS /stock/reduce", &[("origin", "https://shop.example.evil.example"), ask("POST")]),
        ("OPTIONS /stock/reduce", &[("origin", "http://shop.example"), ask("POST")]),
        ("OPTIONS /stock/reduce", &[("origin", "null"), ask("POST")]),
        ("OPTIONS /stock/reduce", &[("origin", SHOP), ask("GET")]),
        ("OPTIONS /stock", &[("origin", SHOP), evil, ask("GET")]),
        ("POST /stock/reduce", &[evil, cross_site]),
        ("POST /stock/reduce", &[evil, site("same-site")]),
        ("POST /stock/reduce", &[evil, host]),
        ("POST /stock/reduce", &[("origin", "null"), host]),
        ("POST /stock/reduce", &[cross_site]),
        ("GET /stock/reduce", &[("origin", SHOP), cross_site]),
        ("GET /stock/reduce", &[("origin", SHOP)]),
        ("GET /stock/reduce", &[cross_site]),
        ("GET /stock", &[evil, cross_site]),
    ] {
        let refused = call(line, headers).await;
        refused.problem(403, "cross-site");
        assert!(!refused.headers.contains_key("access-control-allow-origin"), "{line} {headers:?}");
        assert!(line.contains("GET /stock/") || refused.headers["vary"] == "origin", "{headers:?}");
    }
    for (line, headers, status) in [
        // the instance's own page, as browsers with TLS, and without it or old ones, show it
        ("POST /stock/reduce", &[("origin", "http://x"), site("same-origin")][..], 200),
        ("POST /stock/reduce", &[("origin", "http://sale.example"), host], 200),
        // a program
        ("GET /stock/reduce", &[], 200),
        ("OPTIONS /stock/reduce", &[], 405),
        ("OPTIONS /nothing", &[ask("GET")], 404),
    ] {
        let reply = call(line, headers).await;
        assert_eq!(reply.status, status, "{line} {headers:?}: {reply:?}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
    }
    // at the operators' port there is nothing for pages of others
    let inside = shop.router.clone().layer(axum::Extension(OperatorsPort));
    let request = Request::builder().method(Method::GET).uri("/stock").header("origin", SHOP);
    let answer = inside.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
    assert_eq!(shop.stock().await["stock"], 0);
}
