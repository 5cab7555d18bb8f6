//! The limit on the orders of one client: `--rate-limit`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::problem::{Problem, ProblemType};
use super::state::AppState;
use crate::config::Rate;

/// The most clients that are remembered. Who has more addresses than this cannot be limited by address.
const MAX_CLIENTS: usize = 100_000;

/// Among fewer clients, nobody looks for those that have rested.
const FEW_CLIENTS: usize = 1000;

/// The address at the other end of a connection, among the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// Who orders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Address(IpAddr),
}

impl Client {
    fn of(request: &Request) -> Self {
        let peer = request.extensions().get().map(|PeerAddress(peer)| peer.to_canonical());
        Self::Address(match peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into()) {
            // a host has all addresses of its network
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// For each client, how far the allowed rate lags behind its requests: each moves the client's time on by the same
/// step, and no time may be further ahead than that of a whole burst (GCRA, a leaky bucket that keeps one number).
pub(super) struct RateLimit {
    rate: Rate,
    clients: Mutex<Clients>,
}

struct Clients {
    times: HashMap<Client, Instant>,
    /// When those that have rested were forgotten last.
    tidied_at: Instant,
}

impl RateLimit {
    pub(super) fn new(rate: Rate) -> Self {
        let clients = Clients { times: HashMap::new(), tidied_at: Instant::now() };
        Self { rate, clients: Mutex::new(clients) }
    }

    /// Whether the client may send one more request now.
    fn admits(&self, client: Client) -> bool {
        let Rate { count, per } = self.rate;
        let now = Instant::now();
        let mut clients = self.clients.lock();
        let Clients { times, tidied_at } = &mut *clients;
        let time = times.get(&client).map_or(now, |time| now.max(*time)) + per / count;
        if time > now + per {
            return false;
        }
        if times.len() >= FEW_CLIENTS && now >= *tidied_at + per {
            times.retain(|_, time| *time > now);
            *tidied_at = now;
        }
        if times.len() < MAX_CLIENTS {
            times.insert(client, time);
        }
        true
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
    match &app.rate_limit {
        Some(limit) if !limit.admits(Client::of(&request)) => {
            let Rate { count, per } = limit.rate;
            let seconds = per.as_secs();
            let detail =
                format!("a client may send {count} requests in {seconds} s: nothing was taken");
            Problem::new(ProblemType::RATE_LIMITED, detail).into_response()
        }
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(number: usize) -> Client {
        Client::Address(Ipv4Addr::from_bits(number.try_into().expect("small")).into())
    }

    /// Goal: a burst passes, then the rate; each client has its own; those that rest are forgotten, and there is a bound.
    #[tokio::test(start_paused = true)]
    async fn each_client_has_its_rate() {
        let limit = RateLimit::new(Rate { count: 3, per: Duration::from_secs(1) });
        let burst = |client: &Client| (0..10).filter(|_| limit.admits(client.clone())).count();
        assert_eq!([burst(&client(1)), burst(&client(2)), burst(&client(1))], [3, 3, 0]);
        tokio::time::advance(Duration::from_millis(334)).await;
        assert_eq!(burst(&client(1)), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(burst(&client(1)), 3);
        for number in 0..2 * MAX_CLIENTS {
            assert!(limit.admits(client(number)) || number == 1);
        }
        assert_eq!(limit.clients.lock().times.len(), MAX_CLIENTS);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(limit.admits(client(0)));
        assert!(limit.clients.lock().times.len() <= FEW_CLIENTS);
    }
}
