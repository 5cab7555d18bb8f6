//! The calls that are not orders: starting a sale, reading its state and its ledger.

use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::checker::{LedgerEntry, StockState};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::endpoint::{Endpoint, JSON};

/// How often a call is tried while the service is busy or unreachable.
const ATTEMPTS: u32 = 10;

/// The time limit of one attempt to connect, and of one attempt to get an answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(300);

const PAGE_ORDERS: usize = 1000;

/// A hint at the usual mistake.
const WRONG_PORT: &str = "is it the port of an instance?";

/// The used part of an RFC 9457 problem.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    r#type: String,
    title: String,
    detail: String,
}

impl Problem {
    /// Reads an answer's body; another document becomes a problem without a type.
    pub(crate) fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// The type's last part: `sold-out` of `sold-out`, `/problems/sold-out` or
    /// `urn:problem:sold-out`.
    pub(crate) fn kind(&self) -> &str {
        self.r#type.rsplit(['/', ':', '#']).next().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Page {
    orders: Vec<LedgerEntry>,
    next: Option<String>,
    cursor: String,
}

/// Calls one instance about one item.
pub(crate) struct Api<'a> {
    endpoint: &'a Endpoint,
    item: Option<&'a str>,
    /// The token with which it reads the ledger.
    token: Option<&'a HeaderValue>,
}

/// An answer other than success.
#[derive(Debug, thiserror::Error)]
#[error("{status}")]
struct Refused {
    status: StatusCode,
    /// The problem's type; empty if the answer is no problem of the service.
    kind: String,
}

impl<'a> Api<'a> {
    /// `None` as item means the default item. `token` is the token of the shop's server.
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        item: Option<&'a str>,
        token: Option<&'a HeaderValue>,
    ) -> Self {
        Self { endpoint, item, token }
    }

    /// Whether the instance can sell now. An instance without `/readyz` (behind a load balancer, say) is trusted.
    ///
    /// # Errors
    /// The instance cannot be reached, or says that it is not ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        let request = self.endpoint.request(Method::GET, "/readyz");
        match self.call(&request, 1).await {
            Err(error) if status(&error) == Some(StatusCode::NOT_FOUND) => Ok(()),
            Err(error) if matches!(error.downcast_ref(), Some(ConnectionError::Broken(_))) => {
                Err(error.context(format!(
                    "{} does not speak HTTP/1.1: {WRONG_PORT}",
                    self.endpoint.url
                )))
            }
            ready => ready.map(drop).context("an instance is not ready"),
        }
    }

    /// Starts a new sale with this body.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn start_sale(&self, sale: &Value, token: Option<&HeaderValue>) -> Result<()> {
        let mut request = self.endpoint.request(Method::PUT, &path_of("/stock", self.item, ""));
        *request.body_mut() = sale.to_string().into();
        request.headers_mut().insert(header::CONTENT_TYPE, JSON);
        let token = token.map(|token| (header::AUTHORIZATION, token.clone()));
        request.headers_mut().extend(token);
        match self.call(&request, ATTEMPTS).await {
            // another sale has orders, and the caller replaces it
            Err(error) if status(&error) == Some(StatusCode::PRECONDITION_REQUIRED) => {
                let mut named = sale.clone();
                named["sale"] = uuid::Uuid::new_v4().to_string().into();
                *request.body_mut() = named.to_string().into();
                request.headers_mut().insert(header::IF_MATCH, HeaderValue::from_static("*"));
                self.call(&request, ATTEMPTS).await.map(drop)
            }
            started => started.map(drop),
        }
        .map_err(|error| self.explained(error, "starts a sale", "--admin-token-file"))
    }

    /// Adds to a refusal what its status says about the port and about the token of this flag.
    fn explained(&self, error: Error, does: &str, flag: &str) -> Error {
        let url = &self.endpoint.url;
        let Some(Refused { status, kind }) = error.downcast_ref() else { return error };
        let why = match (status.as_u16(), &**kind) {
            // the answer is no problem of the service
            (401 | 403 | 404 | 405, "") => format!("nobody {does} at {url}: {WRONG_PORT}"),
            (401 | 403, _) => {
                format!("who {does} at {url} needs a token: is {flag} missing or wrong?")
            }
            (_, "not-found" | "method-not-allowed") => {
                let other = "give the one of --admin-listen";
                format!("nobody {does} at {url}, the port for buyers: {other}")
            }
            _ => return error,
        };
        error.context(why)
    }

    /// The state of the item; `None` if it is not on sale.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn stock(&self) -> Result<Option<StockState>> {
        match self.get(&path_of("/stock", self.item, "")).await {
            Err(error) if kind(&error) == Some("unknown-item") => Ok(None),
            stock => stock.map(Some).map_err(|error| self.explained(error, "sells", "a token")),
        }
    }

    /// Checks that there is a ledger, and that it can be read.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn has_ledger(&self) -> Result<()> {
        let page = self.get::<Page>(&path_of("/orders", self.item, "limit=1")).await;
        let hint = "--shop-token-file";
        page.map(drop).map_err(|error| self.explained(error, "reads the ledger", hint))
    }

    /// The whole ledger after position `after`.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn ledger(&self, mut position: u64) -> Result<Vec<LedgerEntry>> {
        let page =
            async |query: String| self.get::<Page>(&path_of("/orders", self.item, &query)).await;
        let mut orders = Vec::new();
        let mut after = "0".to_owned();
        if position > 0 {
            // the service takes a position only together with the ledger's name, so read the name first
            let cursor = page("limit=1".to_owned()).await?.cursor;
            let name = cursor.rsplit_once(':').map_or("", |(name, _)| name);
            after = format!("{name}:{position}");
        }
        loop {
            let page = page(format!("after={after}&limit={PAGE_ORDERS}")).await?;
            orders.extend(page.orders);
            // the number after the sale's name
            let number = |next: &str| next.rsplit(':').next().and_then(|text| text.parse().ok());
            match page.next.and_then(|next| Some((number(&next)?, next))) {
                Some((number, next)) if number > position => {
                    (position, after) = (number, next);
                }
                // if the pages go back, the ledger is not whole; then it does not add up
                _ => return Ok(orders),
            }
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let mut request = self.endpoint.request(Method::GET, path);
        let token = self.token.map(|token| (header::AUTHORIZATION, token.clone()));
        request.headers_mut().extend(token);
        let body = self.call(&request, ATTEMPTS).await?;
        let strange = "the service's answer is not what its interface promises";
        serde_json::from_slice(&body)
            .with_context(|| format!("GET {path} at {}: {strange}", self.endpoint.url))
    }

    /// Makes a call, and returns the body. Every call here is idempotent, and is tried up to `attempts` times.
    async fn call(&self, request: &Request<Full<Bytes>>, attempts: u32) -> Result<Bytes> {
        let mut attempt = 1;
        let answer = loop {
            let answer = self.attempt(request).await;
            let refused = answer.as_ref().err().and_then(status);
            let is_over = answer.is_ok() || refused.is_some_and(|status| !is_passing(status));
            if is_over || attempt == attempts {
                break answer;
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        };
        let (method, path, url) = (request.method(), request.uri(), &self.endpoint.url);
        answer.with_context(|| format!("{method} {path} at {url}"))
    }

    async fn attempt(&self, request: &Request<Full<Bytes>>) -> Result<Bytes> {
        let mut connection = Connection::open(self.endpoint, CALL_LIMIT).await?;
        let Answer { status, body, .. } = connection.send(request.clone(), CALL_LIMIT).await?;
        if status.is_success() {
            return Ok(body);
        }
        let problem = Problem::read(&body);
        let kind = problem.kind().to_owned();
        let Problem { r#type, title, detail } = problem;
        let said = [detail, title, r#type].into_iter().find(|text| !text.is_empty());
        let said = Error::msg(said.unwrap_or("no reason given".to_owned()));
        Err(said.context(Refused { status, kind }))
    }
}

/// A path with its query. `None` as item means the default item.
pub(crate) fn path_of(path: &str, item: Option<&str>, query: &str) -> String {
    let item = item.map(|item| format!("item={item}&")).unwrap_or_default();
    format!("{path}?{item}{query}").trim_end_matches(['?', '&']).to_owned()
}

/// The status of the answer, if there was one.
fn status(error: &Error) -> Option<StatusCode> {
    error.downcast_ref().map(|Refused { status, .. }| *status)
}

/// The type of the problem, if there was an answer.
fn kind(error: &Error) -> Option<&str> {
    error.downcast_ref().map(|Refused { kind, .. }| &**kind)
}

pub(crate) fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
