//! Goal: what stands around every route. Method: small routers with the defaults, called in process.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use flash_sale::http::with_defaults;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

fn router() -> Router {
    async fn fault() {
        panic!("redis://:pw@10.0.0.1")
    }
    with_defaults(Router::new().route("/ok", get(async || "fine")).route("/fault", get(fault)))
}

async fn send(method: &str, path: &str) -> Response {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    router().oneshot(request).await.unwrap()
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn problem(response: Response, status: StatusCode, word: &str) -> Value {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    let problem: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["type"], word);
    problem
}

#[tokio::test]
async fn an_unknown_path_is_a_problem() {
    problem(send("GET", "/nothing").await, StatusCode::NOT_FOUND, "not-found").await;
    problem(send("PUT", "/").await, StatusCode::NOT_FOUND, "not-found").await;
}

#[tokio::test]
async fn a_wrong_method_is_a_problem_that_lists_the_right_ones() {
    for method in ["DELETE", "POST", "OPTIONS", "BREW"] {
        let response = send(method, "/ok").await;
        assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
        problem(response, StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed").await;
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let response = send("HEAD", "/ok").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "4");
    assert_eq!(text(response).await, "");
}

/// Goal: the client does not see the message of a panic.
#[tokio::test]
async fn a_panic_is_a_problem_without_its_message() {
    let response = send("GET", "/fault").await;
    let problem = problem(response, StatusCode::INTERNAL_SERVER_ERROR, "internal").await;
    assert!(!problem.to_string().contains("pw"), "{problem}");
}
