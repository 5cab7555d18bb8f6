//! Access: the port decides which calls exist, a token decides who may make them.
//!
//! | call | who |
//! |---|---|
//! | orders, an order by its id and user, its cancellation, `GET /stock`, `/sales`, `/lock`, `/metrics`, probes | anybody |
//! | confirmations, returns, `GET /orders`, `GET /events` | [`Role::Shop`] |
//! | the start, the change and the deletion of a sale | [`Role::Admin`] |
//!
//! A client with a token names the buyer, even if a gateway names other buyers. `--rate-limit` does not count its calls.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::params;
use super::problem::{Problem, ProblemType};
use super::state::{AppState, HttpOptions};
use crate::inventory::User;
use crate::secret::{Secret, SecretSource};
use crate::throttle::Throttle;

/// How long the tokens are kept after all files could be read: a shop confirms thousands of orders a second.
const KEPT: Duration = Duration::from_secs(1);

/// The rights that a token gives. Each role includes the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// The shop's server.
    Shop,
    /// The operators.
    Admin,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop's",
            Self::Admin => "admin",
        }
    }
}

/// The tokens of an instance.
pub(super) struct Access {
    sources: Vec<(Role, SecretSource)>,
    latest: Mutex<Option<(Instant, Arc<Tokens>)>>,
}

/// The present tokens of all files that could be read.
struct Tokens {
    known: Vec<(Role, Secret)>,
    are_all: bool,
}

impl Access {
    pub(super) fn new(options: &HttpOptions) -> Self {
        let sources = [(Role::Shop, &options.shop_token), (Role::Admin, &options.admin_token)];
        let sources =
            sources.into_iter().filter_map(|(role, source)| Some((role, source.clone()?)));
        Self { sources: sources.collect(), latest: Mutex::default() }
    }

    fn tokens(&self) -> Arc<Tokens> {
        static UNREADABLE: Throttle = Throttle::new(Duration::from_secs(1));
        let mut latest = self.latest.lock();
        if let Some((_, tokens)) = latest.as_ref().filter(|(read_at, _)| read_at.elapsed() < KEPT) {
            return Arc::clone(tokens);
        }
        let mut tokens = Tokens { known: Vec::new(), are_all: true };
        for (role, source) in &self.sources {
            match source.read_tokens() {
                Ok(read) => tokens.known.extend(read.into_iter().map(|token| (*role, token))),
                Err(error) => {
                    tokens.are_all = false;
                    if let Some(suppressed) = UNREADABLE.pass() {
                        tracing::error!(%error, suppressed, "cannot read the {} token", role.name());
                    }
                }
            }
        }
        let tokens = Arc::new(tokens);
        *latest = tokens.are_all.then(|| (Instant::now(), Arc::clone(&tokens)));
        tokens
    }

    /// The role of the token in these headers; `None` if they have no token of this instance.
    ///
    /// # Errors
    /// `internal` if a file that may have the token cannot be read.
    pub(super) fn role(&self, headers: &HeaderMap) -> Result<Option<Role>, Problem> {
        let Some(sent) = bearer(headers) else { return Ok(None) };
        let tokens = self.tokens();
        // each token is compared; a token of both roles has the rights of the lesser one
        let roles = tokens.known.iter().filter(|(_, token)| token.matches(sent));
        match roles.map(|(role, _)| *role).min() {
            None if !tokens.are_all => {
                let detail = "a file with tokens cannot be read: the log has the cause";
                Err(Problem::new(ProblemType::INTERNAL, detail))
            }
            role => Ok(role),
        }
    }

    /// Refuses the request unless its token has at least this role.
    fn check(&self, headers: &HeaderMap, role: Role) -> Result<(), Problem> {
        let name = role.name();
        if !self.sources.iter().any(|(of, _)| *of >= role) {
            let detail = format!(
                "this instance has no {name} token, so the call is off: restart it with --{}-token-file",
                if role == Role::Shop { "shop" } else { "admin" }
            );
            return Err(Problem::new(ProblemType::NOT_ALLOWED, detail));
        }
        match self.role(headers)? {
            Some(sent) if sent >= role => Ok(()),
            Some(sent) => {
                let detail = format!(
                    "the {} token does not permit this call: send the {name} token",
                    sent.name()
                );
                Err(Problem::new(ProblemType::NOT_ALLOWED, detail))
            }
            None => Err(token_required(role)),
        }
    }
}

fn token_required(role: Role) -> Problem {
    let detail = format!(
        "send the {} token of this instance as `Authorization: Bearer <token>`: nothing was done",
        role.name()
    );
    Problem::new(ProblemType::TOKEN_REQUIRED, detail)
}

impl AppState {
    /// Refuses a request without at least this role. In a demo, everybody has every role.
    ///
    /// # Errors
    /// `not-allowed` if the call is off at this instance or the token's role is too low; `token-required`; `internal` if a file
    /// with tokens cannot be read.
    pub(super) fn require(&self, role: Role, headers: &HeaderMap) -> Result<(), Problem> {
        if self.options.extension.is_some() { Ok(()) } else { self.access.check(headers, role) }
    }

    /// Refuses a request to start, change or delete a sale unless an operator sends it, and every such request of a page of
    /// another site.
    ///
    /// # Errors
    /// Those of [`require`](Self::require), `cross-site` and `unintended`.
    pub(super) fn require_admin(&self, head: &Parts) -> Result<(), Problem> {
        if let Some(extension) = &self.options.extension {
            extension.check_start(head)?;
        }
        params::check_intent(head)?;
        self.require(Role::Admin, &head.headers)
    }

    /// The buyer of a call: the one that the gateway names, or the parameter `name`.
    ///
    /// # Errors
    /// Those of [`params::user`]; `token-required` if a token is needed and the sent one is not of this instance.
    pub(super) fn buyer(&self, headers: &HeaderMap, name: Option<&str>) -> Result<User, Problem> {
        let mut gateway = self.options.user_header.as_ref();
        if gateway.is_some() && name.is_some() && bearer(headers).is_some() {
            self.access.role(headers)?.ok_or_else(|| token_required(Role::Shop))?;
            gateway = None;
        }
        params::user(gateway, headers, name)
    }
}

/// The bearer token, if there is exactly one. The case of the scheme's name does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
