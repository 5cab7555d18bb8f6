//! The primary that Redis Sentinel names.
//!
//! The procedure is that of Redis' "Guidelines for Redis clients with support for Redis Sentinel"
//! (<https://redis.io/docs/latest/develop/reference/sentinel-clients/>): at each connect the sentinels are asked one
//! after the other, each for a short time, and first the one that answered last. The server that they name must say
//! itself that it is a primary ([`LastServer::meet`](super::server::LastServer::meet)), since a sentinel may learn late
//! of a failover.
//!
//! The Redis client's own Sentinel client has fixed time limits, opens one more connection for the question of the
//! role, and always begins with the same sentinels.

use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo,
    RedisResult,
};
use tokio::time::{sleep, timeout};

use super::RedisAccess;
use super::access::{Target, at};

/// How often to ask whether the primary of an open connection is still the primary.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where the primary of this name is, with the user, password and database of the `sentinels`' address. `latest` is the
/// number of the sentinel that answered last, and `within` the time for each.
///
/// # Errors
/// What the first sentinel that refused said, or that none answered.
pub(super) async fn primary(
    access: &RedisAccess,
    sentinels: &[ConnectionInfo],
    name: &str,
    (latest, within): (&AtomicUsize, Duration),
) -> RedisResult<ConnectionInfo> {
    let (mut refusal, mut silence) = (None, String::new());
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    let first = latest.load(Ordering::Relaxed);
    for number in (0..sentinels.len()).map(|n| (first + n) % sentinels.len()) {
        let sentinel = &sentinels[number];
        match timeout(within, ask(access, sentinel, name)).await.unwrap_or_else(late) {
            Ok((host, port)) => {
                latest.store(number, Ordering::Relaxed);
                return Ok(at(sentinel, &host, port));
            }
            Err(error) if error.is_io_error() => silence = format!("{}: {error}", sentinel.addr()),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| (ErrorKind::Io, "no sentinel answers", silence).into()))
}

/// Asks one sentinel. It gets user and password only if it asks for them: often it has none.
async fn ask(
    access: &RedisAccess,
    sentinel: &ConnectionInfo,
    name: &str,
) -> RedisResult<(String, u16)> {
    // a sentinel has no databases
    let user = sentinel.redis_settings().clone().set_db(0);
    let answer = match ask_as(RedisConnectionInfo::default(), access, sentinel, name).await {
        Err(error) if error.code() == Some("NOAUTH") => ask_as(user, access, sentinel, name).await,
        answer => answer,
    };
    let what = "the sentinels know no primary of this name";
    answer?.ok_or_else(|| (ErrorKind::InvalidClientConfig, what, name.to_owned()).into())
}

async fn ask_as(
    user: RedisConnectionInfo,
    access: &RedisAccess,
    sentinel: &ConnectionInfo,
    name: &str,
) -> RedisResult<Option<(String, u16)>> {
    let node = sentinel.clone().set_redis_settings(user);
    let client = access.client(node).map_err(io::Error::other)?;
    // the caller has a time limit for all of it
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    question.query_async(&mut connection).await
}

/// Marks a connection as broken once the sentinels name another primary than `address`. The former one may go on to take
/// orders, for about ten seconds or for as long as the sentinels do not reach it, and then loses them.
///
/// Ends with the connection.
pub(super) async fn leave_when_replaced(
    access: &RedisAccess,
    asking: (&AtomicUsize, Duration),
    address: &ConnectionAddr,
    is_broken: Weak<AtomicBool>,
) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(is_broken) = is_broken.upgrade() else { return };
        let Ok(Target::Sentinel { sentinels, primary: name }) = access.target() else { continue };
        // no answer: it may still be the primary
        let named = primary(access, &sentinels, &name, asking).await;
        if named.is_ok_and(|named| named.addr() != address) {
            is_broken.store(true, Ordering::Release);
        }
        if is_broken.load(Ordering::Acquire) {
            return;
        }
    }
}
