//! The limit on the orders of one client: `--rate-limit`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::config::Rate;

/// The most clients that are remembered. Who has more addresses than this cannot be limited by address.
const MAX_CLIENTS: usize = 100_000;

/// Longer users are refused where they are read.
const MAX_USER: usize = 128;

/// Counts for each client until when it has used up what the rate allows: each request moves that time on by one step,
/// and nobody may be ahead by more than one burst (the generic cell rate algorithm).
pub(super) struct RateLimit {
    rate: Rate,
    /// And when those that have rested were forgotten last.
    clients: Mutex<(HashMap<String, Instant>, Instant)>,
}

impl RateLimit {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, clients: Mutex::new((HashMap::new(), Instant::now())) }
    }

    /// Whether the client may send one more request now.
    fn admits(&self, client: String) -> bool {
        let Rate { count, per } = self.rate;
        let now = Instant::now();
        let (used_until, cleaned_at) = &mut *self.clients.lock();
        if now >= *cleaned_at + per {
            used_until.retain(|_, until| *until > now);
            *cleaned_at = now;
        }
        let until = used_until.get(&client).map_or(now, |until| now.max(*until)) + per / count;
        if until > now + per {
            return false;
        }
        if used_until.len() < MAX_CLIENTS {
            used_until.insert(client, until);
        }
        true
    }
}

/// On requests at the operators' door, which has no limit: the shop's server confirms there for all buyers.
#[derive(Clone)]
pub struct Unlimited;

/// Who orders: the user whom the gateway names, else the address of the connection.
fn client_of(app: &AppState, request: &Request) -> String {
    let user = app.options.user_header.as_ref().and_then(|name| request.headers().get(name));
    if let Some(user) = user.filter(|user| user.len() <= MAX_USER) {
        return format!("user {}", String::from_utf8_lossy(user.as_bytes()));
    }
    let peer = request.extensions().get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
    match peer.map(|peer| peer.to_canonical()) {
        // a host has all addresses of its network
        Some(IpAddr::V6(host)) => Ipv6Addr::from_bits(host.to_bits() >> 64 << 64).to_string(),
        Some(IpAddr::V4(host)) => host.to_string(),
        None => String::new(),
    }
}

/// The routes, with the limit if there is one.
pub(super) fn limited(
    routes: Router<Arc<AppState>>,
    state: &Arc<AppState>,
) -> Router<Arc<AppState>> {
    if state.rate_limit.is_none() {
        return routes;
    }
    routes.route_layer(from_fn_with_state(Arc::clone(state), check))
}

async fn check(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let is_limited = request.extensions().get::<Unlimited>().is_none();
    let limit = app.rate_limit.as_ref().filter(|_| is_limited);
    if limit.is_some_and(|limit| !limit.admits(client_of(&app, &request))) {
        let detail = "this client sends too many orders: nothing was taken, retry later";
        return Problem::new(ProblemType::RATE_LIMITED, detail).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Goal: a burst passes, then the rate; each client has its own; those that rest are forgotten, and there is a bound.
    #[tokio::test(start_paused = true)]
    async fn each_client_has_its_rate() {
        let limit = RateLimit::new(Rate { count: 3, per: Duration::from_secs(1) });
        let burst = |client: &str| (0..10).filter(|_| limit.admits(client.to_owned())).count();
        assert_eq!([burst("a"), burst("b"), burst("a")], [3, 3, 0]);
        tokio::time::advance(Duration::from_millis(334)).await;
        assert_eq!(burst("a"), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        for number in 0..2 * MAX_CLIENTS {
            assert!(limit.admits(number.to_string()));
        }
        assert_eq!(limit.clients.lock().0.len(), MAX_CLIENTS);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(burst("a"), 3);
        assert_eq!(limit.clients.lock().0.len(), 1);
    }
}
