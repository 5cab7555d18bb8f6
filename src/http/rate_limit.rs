//! The limit on the orders of one client: `--rate-limit`.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use ipnet::IpNet;
use tokio::time::Instant;

use super::problem::{Problem, ProblemType, RETRY_JITTER_SECONDS};
use super::state::{AppState, OperatorsPort};

/// The number of buckets, of eight bytes each.
const BUCKETS: usize = 1 << 20;

/// How many requests one client may send in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of requests.
    pub count: u32,
    /// The time.
    pub per: Duration,
}

/// Each client has a bucket, which has the time up to which the client has used its rate. Each request moves that time by one
/// step; it may be ahead of the clock by at most one burst (the generic cell rate algorithm).
///
/// The number of buckets is fixed. Clients whose hashes collide share a bucket. Nobody can choose with whom to share, because the
/// key of the hash is random. To shut others out, a client would have to use up most of the buckets, again and again.
pub(super) struct RateLimit {
    rate: Rate,
    began: Instant,
    hasher: RandomState,
    /// Nanoseconds since `began`, for each bucket.
    used_until: Box<[AtomicU64]>,
}

/// The client that sends an order.
#[derive(Hash)]
enum Client<'a> {
    /// The user whom the gateway names.
    User(&'a [u8]),
    /// The address of the connection, or the one that a trusted proxy passes on.
    Host(IpAddr),
    Unknown,
}

impl RateLimit {
    pub(super) fn new(rate: Rate) -> Self {
        let used_until = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { rate, began: Instant::now(), hasher: RandomState::new(), used_until }
    }

    /// Counts one more request of the client.
    ///
    /// # Errors
    /// The time after which the client may send it.
    fn admits(&self, client: &Client<'_>) -> Result<(), Duration> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Rate { count, per } = self.rate;
        let (now, step, burst) = (nanos(self.began.elapsed()), nanos(per / count), nanos(per));
        let hash = self.hasher.hash_one(client);
        #[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let bucket = &self.used_until[hash as usize % BUCKETS];
        let next = |until: u64| Some(until.max(now) + step).filter(|until| *until <= now + burst);
        let counted = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        counted.map(drop).map_err(|until| Duration::from_nanos(until.max(now) + step - now - burst))
    }
}

/// The proxies through which clients come.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Their addresses.
    pub trusted: Vec<IpNet>,
    /// The header to which each proxy adds the address that it saw. No second header is read: a proxy passes on others as the
    /// client wrote them.
    pub header: Option<HeaderName>,
}

impl Proxies {
    /// The address of the client that sends these headers through `peer`: the header is read from the right, up to the first
    /// address that is no trusted proxy's. If that address cannot be read, the peer is the client.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let is_trusted = |address: &IpAddr| self.trusted.iter().any(|net| net.contains(address));
        let Some(header) = self.header.as_ref().filter(|_| is_trusted(&peer)) else { return peer };
        let mut client = peer;
        for value in headers.get_all(header).iter().rev() {
            for address in value.as_bytes().rsplit(|byte| *byte == b',') {
                let address = str::from_utf8(address).ok().and_then(|text| address_in(text.trim()));
                match address {
                    Some(address) if is_trusted(&address) => client = address,
                    found => return found.unwrap_or(peer),
                }
            }
        }
        client
    }

    /// Warns at the first sign that clients come through a proxy that is not trusted, and share one limit.
    fn warn(&self, headers: &HeaderMap) {
        static IS_WARNED: AtomicBool = AtomicBool::new(false);
        if let Some(header) = self.header.as_ref().filter(|_| self.trusted.is_empty())
            && headers.contains_key(header)
            && !IS_WARNED.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "requests have the header {header}, so they come through a proxy: all its clients share one \
                 --rate-limit. Name its address with --trusted-proxy"
            );
        }
    }
}

/// An address in the form in which proxies write it: some add the port, and then IPv6 is in brackets.
fn address_in(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse().map(|with: SocketAddr| with.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

fn client_of<'a>(app: &AppState, request: &'a Request) -> Client<'a> {
    let headers = request.headers();
    if let Some(user) = app.options.user_header.as_ref().and_then(|name| headers.get(name)) {
        return Client::User(user.as_bytes());
    }
    let proxies = &app.options.proxies;
    proxies.warn(headers);
    let peer = request.extensions().get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
    match peer.map(|peer| proxies.client(peer.to_canonical(), headers)) {
        // a host may use all addresses of its /64 network
        Some(IpAddr::V6(host)) => {
            Client::Host(Ipv6Addr::from_bits(host.to_bits() >> 64 << 64).into())
        }
        Some(host) => Client::Host(host),
        None => Client::Unknown,
    }
}

/// Adds the limit to these routes, if there is one.
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
    let is_operators = request.extensions().get::<OperatorsPort>().is_some();
    // the shop's server confirms for all buyers
    let is_limited = !is_operators && !matches!(app.access.role(request.headers()), Ok(Some(_)));
    let limit = app.rate_limit.as_ref().filter(|_| is_limited);
    if let Some(Err(wait)) = limit.map(|limit| limit.admits(&client_of(&app, &request))) {
        let detail = "this client sends too many orders: nothing was taken, retry later";
        // rounded up
        let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX / 2) + 1;
        let problem = Problem::new(ProblemType::RATE_LIMITED, detail);
        return problem.retry_after(seconds, RETRY_JITTER_SECONDS).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Goal: a client cannot choose its address: only addresses that trusted proxies added count, and only of one header.
    #[test]
    fn the_client_is_whom_the_last_trusted_proxy_saw() {
        let trusted =
            ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"].map(|net| net.parse().expect(net));
        let header = Some(HeaderName::from_static("x-forwarded-for"));
        let proxies = Proxies { trusted: trusted.into(), header };
        for (peer, lines, client) in [
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.1,192.0.2.1 , 10.9.9.9"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1", "198.51.100.1, 10.2.2.2", "192.0.2.1"], "198.51.100.1"),
            ("10.0.0.1", &["what a client wrote, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1, nobody, 10.2.2.2"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1,"], "10.0.0.1"),
            ("10.0.0.1", &["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
            ("10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", &["[2001:db9::1]:4711"], "2001:db9::1"),
            ("2001:db8::1", &["::ffff:198.51.100.1, [2001:db8::2]"], "198.51.100.1"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("forwarded", "for=203.0.113.7".parse().expect("a value"));
            for line in lines {
                headers.append("x-forwarded-for", line.parse().expect("a value"));
            }
            let found = proxies.client(peer.parse().expect("an address"), &headers);
            assert_eq!(found.to_string(), client, "{peer} {lines:?}");
        }
    }

    /// Goal: a burst passes, then the rate; each client has a limit of its own. However many clients come, each stays limited,
    /// and few share a limit with another one (governor#171: a store of clients without a bound).
    #[tokio::test(start_paused = true)]
    async fn each_client_has_its_rate() {
        let limit = RateLimit::new(Rate { count: 3, per: Duration::from_secs(1) });
        let burst = |client: u32| {
            let client = IpAddr::from(Ipv4Addr::from_bits(client));
            (0..10).filter(|_| limit.admits(&Client::Host(client)).is_ok()).count()
        };
        assert_eq!([burst(1), burst(2), burst(1)], [3, 3, 0]);
        let wait = limit.admits(&Client::Host(Ipv4Addr::from_bits(1).into())).expect_err("used up");
        assert_eq!(wait.as_millis(), 333);
        tokio::time::advance(Duration::from_millis(334)).await;
        assert_eq!(burst(1), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        for client in 0..200_000 {
            assert!(burst(client) <= 3);
        }
        assert_eq!(burst(7), 0, "a known client stays limited");
        let new: Vec<_> = (1_000_000..1_001_000).map(burst).collect();
        assert!(new.iter().all(|admitted| *admitted <= 3), "new ones are limited");
        // one in six shares a bucket with a client that has used up its rate
        let served = new.iter().filter(|admitted| **admitted == 3).count();
        assert!(
            (700..).contains(&served),
            "{served} of 1,000 new clients have a bucket of their own"
        );
    }
}
