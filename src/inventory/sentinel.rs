//! The primary that Redis Sentinel names.
//!
//! The procedure is that of Redis' "Guidelines for Redis clients with support for Redis Sentinel"
//! (<https://redis.io/docs/latest/develop/reference/sentinel-clients/>), except that all sentinels are asked at once, each
//! for a short time, and the primary is the one that most of them name: a single sentinel may be cut off from the others
//! together with the former primary, and not learn of the failover. The server that they name must say itself that it is
//! a primary ([`Connection`](super::connection::Connection) asks), since sentinels may learn late of a failover.
//!
//! The Redis client's own Sentinel client has fixed time limits, opens one more connection for the question of the
//! role, and believes one sentinel.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisResult};
use tokio::time::{sleep, timeout};

use super::RedisAccess;
use super::access::{TargetKind, at};

/// How often to ask whether the primary of the open connections is still the primary.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The open connections to primaries that sentinels named. A task checks them while there are any.
pub(super) type Watched = Mutex<Vec<(ConnectionAddr, Weak<AtomicBool>)>>;

/// Where the primary of this name is, with the user, password and database of the `sentinels`' address: the address that
/// most sentinels name, or each of several that as many name, in the order of the sentinels. At least one. Asks all at once,
/// until more than half name the same, and for no longer than `within`.
///
/// # Errors
/// What a sentinel said, if all refused; an error of I/O with all reasons, if some did not answer and no other names one.
pub(super) async fn primaries(
    access: &RedisAccess,
    sentinels: &[ConnectionInfo],
    name: &str,
    within: Duration,
) -> RedisResult<Vec<ConnectionInfo>> {
    let question = async |(number, sentinel): (usize, &ConnectionInfo)| {
        let answer = timeout(within, ask(access, sentinel, name)).await;
        match answer.unwrap_or_else(|late| Err(io::Error::from(late).into())) {
            Ok((host, port)) => Ok((number, at(sentinel, &host, port))),
            Err(error) => Err((sentinel.addr().to_string(), error)),
        }
    };
    let mut answers: FuturesUnordered<_> = sentinels.iter().enumerate().map(question).collect();
    let (mut named, mut errors) = (vec![None; sentinels.len()], Vec::new());
    let votes = |named: &[Option<ConnectionInfo>], primary: &ConnectionInfo| {
        named.iter().flatten().filter(|named| named.addr() == primary.addr()).count()
    };
    let mut most = 0;
    while most <= sentinels.len() / 2
        && let Some(answer) = answers.next().await
    {
        match answer {
            Ok((number, primary)) => {
                most = most.max(votes(&named, &primary) + 1);
                named[number] = Some(primary);
            }
            Err(error) => errors.push(error),
        }
    }
    if most > 0 {
        let wins = |primary: &&ConnectionInfo| votes(&named, primary) == most;
        return Ok(named.iter().flatten().filter(wins).cloned().collect());
    }
    // a sentinel that does not answer may know the primary
    if errors.iter().any(|(_, error)| error.is_io_error()) {
        let errors = errors.iter().map(|(address, error)| format!("{address}: {error}"));
        let errors = errors.collect::<Vec<_>>().join("; ");
        return Err((ErrorKind::Io, "no sentinel names the primary", errors).into());
    }
    // an address has at least one sentinel
    Err(errors.swap_remove(0).1)
}

/// Asks one sentinel. It gets user and password only if it asks for them: often it has none.
async fn ask(
    access: &RedisAccess,
    sentinel: &ConnectionInfo,
    name: &str,
) -> RedisResult<(String, u16)> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let nobody = sentinel.clone().set_redis_settings(RedisConnectionInfo::default());
    let mut answer: RedisResult<Option<_>> = access.ask(nobody, &question).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) {
        // a sentinel has no databases
        let user = sentinel.redis_settings().clone().set_db(0);
        answer = access.ask(sentinel.clone().set_redis_settings(user), &question).await;
    }
    let what = "the sentinels know no primary of this name";
    answer?.ok_or_else(|| (ErrorKind::InvalidClientConfig, what, name.to_owned()).into())
}

/// Marks a connection to `address` as broken once the sentinels name another primary. The former one may go on to take
/// orders, for about ten seconds or for as long as the sentinels do not reach it, and then loses them.
///
/// One task asks for all connections to the same store, and ends with the last of them.
pub(super) fn break_when_replaced(
    access: RedisAccess,
    within: Duration,
    watched: Arc<Watched>,
    connection: (ConnectionAddr, Weak<AtomicBool>),
) {
    let mut connections = watched.lock();
    connections.push(connection);
    if connections.len() > 1 {
        return;
    }
    drop(connections);
    tokio::spawn(async move {
        loop {
            sleep(CHECK_INTERVAL).await;
            // read before the question: the answer may be older than a connection that is opened later
            let Some(connections) = still_open(&watched) else { return };
            let Ok(target) = access.target() else { continue };
            let TargetKind::Sentinels(name) = &target.kind else { continue };
            // if no sentinel answers, connections stay open
            let named = primaries(&access, &target.nodes, name, within).await;
            let Ok(named) = named else { continue };
            for (address, is_broken) in connections {
                if named.iter().all(|named| *named.addr() != address)
                    && let Some(is_broken) = is_broken.upgrade()
                {
                    is_broken.store(true, Ordering::Release);
                }
            }
        }
    });
}

/// Forgets closed and broken connections. Returns the others, or `None` if there are none.
fn still_open(watched: &Watched) -> Option<Vec<(ConnectionAddr, Weak<AtomicBool>)>> {
    let mut watched = watched.lock();
    watched.retain(|(_, is_broken)| {
        is_broken.upgrade().is_some_and(|is_broken| !is_broken.load(Ordering::Acquire))
    });
    (!watched.is_empty()).then(|| watched.clone())
}
