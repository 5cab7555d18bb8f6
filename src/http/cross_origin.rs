//! Orders from pages of other origins: `--allow-origin`.
//!
//! The headers of CORS tell the browser what such a page may send and read. Calls of such a page have no credentials: the page of
//! a shop names its buyer itself, and no gateway can know the buyer by a cookie.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::problem::{Problem, ProblemType};
use super::requests::{X_REQUEST_ID, refused_or};

/// How long a browser may remember the answer about an origin: the longest time that Chromium allows.
const MAX_AGE: Duration = Duration::from_hours(2);

/// The path whose `GET` sells. A page orders by `POST`: a browser sends a `GET` without asking first, and may send it again.
const ORDERS: &str = "/stock/reduce";

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The origins whose pages may order.
pub(super) struct CrossOrigin {
    origins: Arc<[HeaderValue]>,
    orders: CorsLayer,
    others: CorsLayer,
}

/// Marks a request from a page whose origin may send it.
#[derive(Clone, Copy)]
pub(super) struct Allowed;

impl CrossOrigin {
    /// `None` for an empty list.
    pub(super) fn new(origins: &[HeaderValue]) -> Option<Self> {
        let origins: Arc<[_]> = (!origins.is_empty()).then(|| origins.into())?;
        let known = Arc::clone(&origins);
        let others = CorsLayer::new()
            .allow_origin(AllowOrigin::predicate(move |origin, _| known.contains(origin)))
            .allow_methods([Method::GET, Method::POST])
            .allow_headers([IDEMPOTENCY_KEY, header::CONTENT_TYPE, X_REQUEST_ID])
            .expose_headers([header::RETRY_AFTER, IDEMPOTENCY_REPLAYED, X_REQUEST_ID])
            .max_age(MAX_AGE)
            .vary([header::ORIGIN]);
        let orders = others.clone().allow_methods([Method::POST]);
        Some(Self { origins, orders, others })
    }

    /// Answers the request, with the headers of CORS. Refuses every request from a page of any other origin.
    pub(super) async fn call(&self, mut request: Request, next: Next) -> Response {
        let headers = request.headers();
        let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD);
        let wanted = wanted.filter(|_| *request.method() == Method::OPTIONS);
        if let Some(origin) = headers.get(header::ORIGIN) {
            let is_orders = request.uri().path() == ORDERS;
            let method = wanted.map_or(request.method().as_str().as_bytes(), HeaderValue::as_bytes);
            let is_one = headers.get_all(header::ORIGIN).iter().count() == 1;
            if is_one && self.origins.contains(origin) && !(is_orders && method == b"GET") {
                request.extensions_mut().insert(Allowed);
            } else if !is_own(&request, origin) {
                let detail = "pages of this origin may not call this instance: nothing was done";
                let mut answer = Problem::new(ProblemType::CROSS_SITE, detail).into_response();
                answer.headers_mut().insert(header::VARY, header::ORIGIN.into());
                return answer;
            }
        } else if *request.method() == Method::OPTIONS {
            // this is no browser's question, and CORS would answer for paths that do not exist
            return refused_or(request, next).await;
        }
        let layer = if request.uri().path() == ORDERS { &self.orders } else { &self.others };
        let answered = service_fn(|request| {
            let next = next.clone();
            async { Ok::<_, Infallible>(refused_or(request, next).await) }
        });
        let Ok(answer) = layer.layer(answered).oneshot(request).await;
        answer
    }
}

/// Whether the request comes from the instance's own page. Browsers say so in `Sec-Fetch-Site`. Old browsers, and all browsers
/// without TLS, send only `Origin`: its host is compared with `Host`, without the port, which a proxy may change.
fn is_own(request: &Request, origin: &HeaderValue) -> bool {
    let headers = request.headers();
    let mut sites = headers.get_all("sec-fetch-site").iter().peekable();
    if sites.peek().is_some() {
        return sites.all(|site| site == "same-origin");
    }
    let host =
        |value: &HeaderValue| value.to_str().ok()?.parse::<Uri>().ok()?.host().map(str::to_owned);
    let of = headers.get(header::HOST).and_then(host);
    of.is_some() && host(origin) == of
}
