//! The calls that are not orders: starting a sale, reading its state and its ledger.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::checker::{LedgerEntry, StockState};
use crate::connection::{Answer, Connection, ConnectionError};
use crate::endpoint::{Endpoint, JSON};

/// How often a call is tried while the service is busy or away.
const ATTEMPTS: u32 = 10;

/// The time limit of one attempt to connect, and of one attempt to get an answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// The page size of the ledger, and more orders than this program could send.
const PAGE_ORDERS: usize = 1000;
const LONGEST_LEDGER: usize = 20_000_000;

/// Why a call got no usable answer.
#[derive(Debug, thiserror::Error)]
#[error("{call}")]
pub(crate) struct ApiError {
    /// The method and the URL.
    call: String,
    source: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the service answered {status}{detail}")]
    Refused { status: StatusCode, detail: String },
    #[error("the service's answer is not what its interface promises")]
    Unreadable(#[from] serde_json::Error),
}

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
    next: Option<u64>,
}

/// Calls one instance about one item, over a connection of its own.
pub(crate) struct Api<'a> {
    endpoint: &'a Endpoint,
    item: Option<&'a str>,
    connection: Option<Connection>,
}

impl<'a> Api<'a> {
    /// Connects with the first call. No item is the default item.
    pub(crate) fn new(endpoint: &'a Endpoint, item: Option<&'a str>) -> Self {
        Self { endpoint, item, connection: None }
    }

    /// Whether the instance can sell now. One without `/readyz` (behind a load balancer, say) is
    /// trusted.
    ///
    /// # Errors
    /// It cannot be reached, or says that it is not ready.
    pub(crate) async fn ready(&mut self) -> Result<(), ApiError> {
        let request = self.endpoint.request(Method::GET, "/readyz");
        match self.attempt(&request).await {
            Err(Cause::Refused { status: StatusCode::NOT_FOUND, .. }) | Ok(_) => Ok(()),
            Err(cause) => Err(self.error(&request, cause)),
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
        let mut request = self.endpoint.request(Method::PUT, &self.path("/stock", ""));
        *request.body_mut() = format!("{{\"stock\":{units}}}").into();
        request.headers_mut().insert(header::CONTENT_TYPE, JSON);
        let token = token.map(|token| (header::AUTHORIZATION, token.clone()));
        request.headers_mut().extend(token);
        self.call(&request).await.map(drop)
    }

    /// The state of the item; `None` if it is not on sale.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn stock(&mut self) -> Result<Option<StockState>, ApiError> {
        match self.get(&self.path("/stock", "")).await {
            Err(ApiError {
                source: Cause::Refused { status: StatusCode::NOT_FOUND, .. }, ..
            }) => Ok(None),
            stock => stock.map(Some),
        }
    }

    /// The whole ledger behind position `after`.
    ///
    /// # Errors
    /// The service cannot be reached or refuses.
    pub(crate) async fn ledger(&mut self, mut after: u64) -> Result<Vec<LedgerEntry>, ApiError> {
        let mut orders = Vec::new();
        loop {
            let path = self.path("/orders", &format!("after={after}&limit={PAGE_ORDERS}"));
            let page: Page = self.get(&path).await?;
            orders.extend(page.orders);
            match page.next {
                Some(next) if next > after && orders.len() < LONGEST_LEDGER => after = next,
                // where the pages go back or do not end, the ledger is not whole, and does not add up
                _ => return Ok(orders),
            }
        }
    }

    fn path(&self, path: &str, query: &str) -> String {
        let item = self.item.map(|item| format!("item={item}&")).unwrap_or_default();
        format!("{path}?{item}{query}").trim_end_matches(['?', '&']).to_owned()
    }

    fn error(&self, request: &Request<Full<Bytes>>, source: Cause) -> ApiError {
        let (method, at, path) = (request.method(), &self.endpoint.url.authority, request.uri());
        ApiError { call: format!("{method} http://{at}{path}"), source }
    }

    async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ApiError> {
        let request = self.endpoint.request(Method::GET, path);
        let answer = self.call(&request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| self.error(&request, error.into()))
    }

    /// Retries: every call here is idempotent.
    async fn call(&mut self, request: &Request<Full<Bytes>>) -> Result<Answer, ApiError> {
        let mut attempts = 1;
        loop {
            let cause = match self.attempt(request).await {
                Ok(answer) => return Ok(answer),
                Err(cause) => cause,
            };
            let is_passing = match &cause {
                Cause::Connection(_) => true,
                Cause::Refused { status, .. } => is_passing(*status),
                Cause::Unreadable(_) => false,
            };
            if !is_passing || attempts == ATTEMPTS {
                return Err(self.error(request, cause));
            }
            attempts += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn attempt(&mut self, request: &Request<Full<Bytes>>) -> Result<Answer, Cause> {
        let idle = self.connection.take();
        let mut connection = Connection::reuse_or_open(idle, self.endpoint, CALL_LIMIT).await?;
        let answer = connection.send(request.clone(), CALL_LIMIT).await?;
        self.connection = Some(connection);
        if answer.status.is_success() {
            return Ok(answer);
        }
        let Problem { r#type, title, detail } = Problem::read(&answer.body);
        let said = [detail, title, r#type].into_iter().find(|text| !text.is_empty());
        let detail = said.map(|said| format!(": {said}")).unwrap_or_default();
        Err(Cause::Refused { status: answer.status, detail })
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
