//! Goal: `/openapi.json` describes this interface: each route and method, each status, each member of an answer, and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use flash_sale::http::problem::ProblemType;
use flash_sale::inventory::Timestamp;
use serde_json::Value;
use tower::ServiceExt;

use super::events::Watcher;
use crate::shop::{ADMIN, SERVER, Shop, ShopOptions};

/// The paths of the routes in the source, as the document writes them.
fn routes() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources =
        files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let paths = sources.flat_map(|source| {
        let paths = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        paths.map(|path| path.replace("{*", "{")).collect::<Vec<_>>()
    });
    paths.collect()
}

/// The paths of the document with their methods.
fn documented(document: &Value) -> BTreeMap<String, BTreeMap<String, Value>> {
    serde_json::from_value(document["paths"].clone()).unwrap()
}

/// A path that names something: the order `a`, a file of the page.
fn example(path: &str) -> String {
    path.replace("{id}", "a").replace("{name}", "page/dom.js")
}

async fn answer(shop: &Shop, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    shop.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn it_has_every_route_and_no_other() {
    let shop = Shop::selling(2, ShopOptions::default()).await;
    shop.order("a").await.json(200);
    let document = shop.call("GET /openapi.json").await;
    assert_eq!(document.headers["content-type"], "application/json");
    let document: Value = serde_json::from_str(&document.text).unwrap();
    let paths = documented(&document);
    assert_eq!(paths.keys().cloned().collect::<BTreeSet<_>>(), routes());
    for (path, operations) in &paths {
        let path = example(path);
        let refused = answer(&shop, "TRACE", &path, &[]).await;
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let allowed = refused.headers()["allow"].to_str().unwrap().to_lowercase();
        // GET brings HEAD along
        let allowed: BTreeSet<_> = allowed.split(',').filter(|method| *method != "head").collect();
        let described: BTreeSet<_> = operations.keys().map(String::as_str).collect();
        assert_eq!(described, allowed, "{path}");
        for (method, operation) in operations {
            // a generated client leaves out a call whose answer has a range of types; with two types, the answer is of neither
            assert!(!operation.to_string().contains("*/*"), "{method} {path}");
            let answers = operation["responses"].as_object().unwrap().values();
            let most = answers.filter_map(|one| Some(one["content"].as_object()?.len())).max();
            assert!(most <= Some(1) || path.starts_with("/static/"), "{method} {path}");
            let status = answer(&shop, &method.to_uppercase(), &path, &[]).await.status();
            assert!(status != StatusCode::NOT_FOUND, "{method} {path}");
            let described = &operation["responses"][status.as_str()];
            assert!(described.is_object(), "{method} {path} answers {status}");
            let schemes = operation["security"].as_array().into_iter().flatten();
            let schemes: Vec<_> =
                schemes.flat_map(|scheme| scheme.as_object().unwrap().keys()).collect();
            let by_shop = answer(&shop, &method.to_uppercase(), &path, &[SERVER]).await;
            let needed: &[_] = match (status.as_u16(), by_shop.status().as_u16()) {
                (401, 403) => &["admin"],
                (401, _) => &["shop", "admin"],
                _ => &[],
            };
            assert_eq!(schemes, needed, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn it_has_every_member_and_problem() {
    let shop = Shop::selling(2, ShopOptions::default()).await;
    let document: Value = serde_json::from_str(&shop.call("GET /openapi.json").await.text).unwrap();
    let schemas = &document["components"]["schemas"];
    let members = |schema: &Value| {
        schema["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>()
    };
    let keys =
        |answer: &Value| answer.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let started = shop.call_with("PUT /stock", &[ADMIN], r#"{"stock":2}"#).await;
    let reserved = shop.order("a").await.json(200);
    shop.order("b").await.json(200);
    let orders = shop.ask("GET /orders").await.json(200);
    let lock = shop.call("GET /lock").await.json(200);
    let mut watcher = Watcher::open(&shop.router, "/events").await;
    watcher.until("the holder is shown", |view| view["lock"]["holder"].is_object()).await;
    for (schema, answer) in [
        ("Reserved", &reserved),
        ("Stock", &started.json(200)),
        ("Stock", &shop.stock().await),
        ("Orders", &orders),
        ("Sales", &shop.call("GET /sales").await.json(200)),
        ("Entry", &orders["orders"][0]),
        ("Entry", &shop.call("GET /orders/a").await.json(200)),
        ("Lock", &lock),
        ("Claim", &lock["holder"]),
        ("Event", &watcher.view),
    ] {
        let (schema, keys) = (&schemas[schema], keys(answer));
        let required: BTreeSet<String> =
            serde_json::from_value(schema["required"].clone()).unwrap();
        assert!(required.is_subset(&keys) && keys.is_subset(&members(schema)), "{answer}");
        for (name, value) in answer.as_object().unwrap() {
            let is_time = value.as_str().is_some_and(|text| text.parse::<Timestamp>().is_ok());
            let described = &schema["properties"][name];
            assert!(!is_time || described["format"] == "date-time", "{name}: {described}");
        }
    }
    let version = &document["paths"]["/version"]["get"]["responses"]["200"];
    let version = &version["content"]["application/json"]["schema"];
    assert_eq!(keys(&shop.call("GET /version").await.json(200)), members(version));

    let problem = &schemas["Problem"];
    for (line, status, word) in [
        ("GET /orders/none", 404, "unknown-order"),
        ("GET /stock/reduce?quantity=9", 409, "limit-reached"),
        ("GET /stock/reduce", 409, "sold-out"),
    ] {
        let sent = shop.call(line).await.problem(status, word);
        assert!(keys(&sent).is_subset(&members(problem)), "{sent}");
    }
    let words = problem["properties"]["type"]["enum"].as_array().unwrap();
    let words: Vec<_> = words.iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words, ProblemType::ALL.iter().map(|kind| kind.word).collect::<Vec<_>>());
    let titles = problem["properties"]["type"]["x-enum-descriptions"].as_array().unwrap();
    assert!(titles.iter().eq(ProblemType::ALL.iter().map(|kind| kind.title)));
    let operations: Vec<_> =
        documented(&document).into_values().flat_map(BTreeMap::into_values).collect();
    // none of these is in the calls above
    for (method, path, status) in [("patch", "/stock", 404), ("delete", "/sales/{id}", 504)] {
        let described = &document["paths"][path][method]["responses"][status.to_string()];
        assert!(described.is_object(), "{method} {path} can answer {status}");
    }
    for kind in ProblemType::ALL.iter().filter(|kind| **kind != ProblemType::METHOD_NOT_ALLOWED) {
        let has = |operation: &Value| operation["responses"].get(kind.status.as_str()).is_some();
        assert!(operations.iter().any(has), "no call answers {}", kind.status);
    }
}
