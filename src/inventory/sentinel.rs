//! Asks Redis Sentinel for the primary.
//!
//! The procedure is that of Redis' "Guidelines for Redis clients with support for Redis Sentinel"
//! (<https://redis.io/docs/latest/develop/reference/sentinel-clients/>), with one difference: all sentinels are asked
//! at once, each for a short time, and the primary is the one that most of them name. A single sentinel may be cut off
//! together with the former primary, and not learn of a failover. Sentinels may also learn of one late, so the
//! [`Connection`](super::connection::Connection) asks the server itself whether it is a primary.
//!
//! The Redis client's own Sentinel client has fixed time limits, opens one more connection to ask for the role, and
//! believes one sentinel.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisResult};
use tokio::time::timeout;

use super::RedisAccess;
use super::directory::Node;

/// The primary of this name: the one that most sentinels name, or all such primaries on a tie, in the order of the sentinels that
/// name them. Returns at least one. Asks all sentinels at once, for at most `within`, until more than half name the same.
///
/// # Errors
/// A sentinel's refusal, if all refused; an I/O error with all reasons, if some did not answer and none named a primary.
pub(super) async fn primaries(
    access: &RedisAccess,
    sentinels: &[ConnectionInfo],
    name: &str,
    within: Duration,
) -> RedisResult<Vec<Node>> {
    let question = async |(number, sentinel): (usize, &ConnectionInfo)| {
        let answer = timeout(within, ask(access, sentinel, name)).await;
        match answer.unwrap_or_else(|late| Err(io::Error::from(late).into())) {
            Ok((host, port)) => Ok((number, Node::from(format!("{host}:{port}")))),
            Err(error) => Err((sentinel.addr().to_string(), error)),
        }
    };
    let mut answers: FuturesUnordered<_> = sentinels.iter().enumerate().map(question).collect();
    let (mut named, mut errors) = (Vec::new(), Vec::new());
    let votes = |named: &[(usize, Node)], primary: &Node| {
        named.iter().filter(|(_, node)| node == primary).count()
    };
    let mut most = 0;
    while most <= sentinels.len() / 2
        && let Some(answer) = answers.next().await
    {
        match answer {
            Ok((number, primary)) => {
                most = most.max(votes(&named, &primary) + 1);
                named.push((number, primary));
            }
            Err(error) => errors.push(error),
        }
    }
    if most > 0 {
        named.sort();
        let wins = named.iter().filter(|(_, node)| votes(&named, node) == most);
        return Ok(wins.map(|(_, node)| node.clone()).collect());
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

/// Asks one sentinel. Sends user and password only if the sentinel demands them, since many sentinels have none.
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
