//! A write to Redis that is refused once a later holder has written.
//!
//! The script compares the token with the largest that it has seen, and writes in the same atomic step. Tokens of two clusters
//! cannot be compared: the script refuses those of a new cluster until an operator deletes `{greeting}:fence`. Redis is at
//! `REDIS` (default `redis://127.0.0.1:6379`). The crate `redis` needs its features `script` and `tokio-comp`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, SessionKeeper, SessionOptions, Token};
use redis::Script;
use redis::aio::MultiplexedConnection;

const WRITE: &str = r"
local cluster, revision = unpack(redis.call('HMGET', KEYS[2], 'cluster', 'revision'))
if cluster and (cluster ~= ARGV[2] or tonumber(ARGV[3]) < tonumber(revision)) then return 0 end
redis.call('HSET', KEYS[2], 'cluster', ARGV[2], 'revision', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1])
return 1";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let redis = std::env::var("REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let mut redis = redis::Client::open(redis)?.get_multiplexed_async_connection().await?;
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let locks = SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10)));

    let first = locks.lock("greeting").await?;
    let outdated = first.token();
    first.unlock().await?;
    let second = locks.lock("greeting").await?;
    println!("the holder writes: {}", write(&mut redis, second.token(), "hello").await?);
    // a holder that slept through its lease would send this
    println!("an earlier one writes: {}", write(&mut redis, outdated, "goodbye").await?);
    second.unlock().await?;
    locks.close().await;
    Ok(())
}

/// Returns whether Redis accepted the write. Lua counts up to 2^53 exactly, more than etcd's revisions will reach.
async fn write(
    redis: &mut MultiplexedConnection,
    token: Token,
    text: &str,
) -> redis::RedisResult<bool> {
    let script = Script::new(WRITE);
    let mut call = script.key("{greeting}:text");
    call.key("{greeting}:fence").arg(text);
    call.arg(token.cluster().to_string()).arg(token.revision());
    call.invoke_async(redis).await
}
