//! The calls that are not orders: starting a sale, reading its state and its ledger.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Deserialize;

use crate::checker::{LedgerEntry, StockState};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::endpoint::Endpoint;

/// How often a call is tried while the service is busy or away.
const ATTEMPTS: u32 = 10;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// The page size of the ledger.
const PAGE_ORDERS: usize = 1000;

/// Longer than any ledger that this program could fill.
const LEDGER_LIMIT_ORDERS: usize = 20_000_000;

/// Why a call got no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{call}")]
    Connection { call: String, source: ConnectionError },
    #[error("{call}: the service answered {status}{detail}")]
    Refused { call: String, status: StatusCode, detail: String },
    #[error("{call}: the service's answer is not what its interface promises")]
    Unreadable { call: String, source: serde_json::Error },
    #[error("{call}: page after page came, {what}")]
    Ledger { call: String, what: &'static str },
}

/// The used part of an RFC 9457 problem.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Problem {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
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
    next: Option<u64>,
}

/// Calls one instance, over a connection of its own.
pub(crate) struct Api<'a> {
    endpoint: &'a Endpoint,
    item: Option<&'a str>,
    limit: Duration,
    connection: Option<Connection>,
}

impl<'a> Api<'a> {
    /// Each call may take `limit`; connects with the first call.
    pub(crate) fn new(endpoint: &'a Endpoint, item: Option<&'a str>, limit: Duration) -> Self {
        Self { endpoint, item, limit, connection: None }
    }

    /// Whether the instance can sell now. One without `/readyz` (behind a load balancer, say) is
    /// trusted.
    ///
    /// # Errors
    /// It cannot be reached, or says that it is not ready.
    pub(crate) async fn ready(&mut self) -> Result<(), ApiError> {
        match self.attempt(&Method::GET, "/readyz", None, &Bytes::new()).await {
            Err(ApiError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Starts a new sale.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn start_sale(
        &mut self,
        units: u64,
        token: Option<&HeaderValue>,
    ) -> Result<(), ApiError> {
        let path = format!("/stock{}", self.query(&[]));
        let body = Bytes::from(format!("{{\"stock\":{units}}}"));
        self.call(&Method::PUT, &path, token, &body).await.map(drop)
    }

    /// The state of the item.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn stock(&mut self) -> Result<StockState, ApiError> {
        let path = format!("/stock{}", self.query(&[]));
        let answer = self.call(&Method::GET, &path, None, &Bytes::new()).await?;
        self.read(&Method::GET, &path, &answer)
    }

    /// The whole ledger behind position `after`.
    ///
    /// # Errors
    /// The service cannot be reached or refuses, or its pages do not end.
    pub(crate) async fn ledger(&mut self, mut after: u64) -> Result<Vec<LedgerEntry>, ApiError> {
        let mut orders = Vec::new();
        loop {
            let query = [("after", after.to_string()), ("limit", PAGE_ORDERS.to_string())];
            let path = format!("/orders{}", self.query(&query));
            let answer = self.call(&Method::GET, &path, None, &Bytes::new()).await?;
            let page: Page = self.read(&Method::GET, &path, &answer)?;
            let (empty, next) = (page.orders.is_empty(), page.next);
            orders.extend(page.orders);
            let Some(next) = next else { return Ok(orders) };
            let wrong = if next <= after || empty {
                "and they do not advance"
            } else if orders.len() > LEDGER_LIMIT_ORDERS {
                "more than any run could have filled"
            } else {
                after = next;
                continue;
            };
            return Err(ApiError::Ledger { call: self.name(&Method::GET, &path), what: wrong });
        }
    }

    fn query(&self, parameters: &[(&str, String)]) -> String {
        let item = self.item.map(|item| format!("item={item}"));
        let rest = parameters.iter().map(|(name, value)| format!("{name}={value}"));
        let all: Vec<_> = item.into_iter().chain(rest).collect();
        if all.is_empty() { String::new() } else { format!("?{}", all.join("&")) }
    }

    fn name(&self, method: &Method, path: &str) -> String {
        format!("{method} {}{path}", self.endpoint.url)
    }

    fn read<T: for<'de> Deserialize<'de>>(
        &self,
        method: &Method,
        path: &str,
        answer: &Answer,
    ) -> Result<T, ApiError> {
        serde_json::from_slice(&answer.body)
            .map_err(|source| ApiError::Unreadable { call: self.name(method, path), source })
    }

    /// Retries: every call here is idempotent.
    async fn call(
        &mut self,
        method: &Method,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Bytes,
    ) -> Result<Answer, ApiError> {
        for _ in 1..ATTEMPTS {
            match self.attempt(method, path, token, body).await {
                Err(ApiError::Connection { .. }) => {}
                Err(ApiError::Refused { status, .. }) if is_passing(status) => {}
                settled => return settled,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.attempt(method, path, token, body).await
    }

    async fn attempt(
        &mut self,
        method: &Method,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Bytes,
    ) -> Result<Answer, ApiError> {
        let answer = self
            .exchange(method, path, token, body)
            .await
            .map_err(|source| ApiError::Connection { call: self.name(method, path), source })?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let problem = Problem::read(&answer.body);
        let said = [problem.detail, problem.title, problem.r#type]
            .into_iter()
            .find(|text| !text.is_empty());
        let detail = said.map(|said| format!(": {said}")).unwrap_or_default();
        Err(ApiError::Refused { call: self.name(method, path), status: answer.status, detail })
    }

    async fn exchange(
        &mut self,
        method: &Method,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Bytes,
    ) -> Result<Answer, ConnectionError> {
        // stored again after a whole answer
        let mut connection = match self.connection.take().and_then(Connection::if_open) {
            Some(open) => open,
            None => Connection::open(self.endpoint, self.limit).await?,
        };
        let token = token.map(|token| (header::AUTHORIZATION, token.clone()));
        let answer = connection
            .send(method.clone(), self.endpoint.target(path), token, body.clone(), self.limit)
            .await?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// Whether a retry is worth it.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
