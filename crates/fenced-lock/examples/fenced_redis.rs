//! A write to Redis that a holder cannot make once a later one has written.
//!
//! The script compares the token with the largest that it has seen, and writes in the same atomic step.
//! Redis is at `REDIS` (default `redis://127.0.0.1:6379`).

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionOptions, Token};
use redis::Script;
use redis::aio::MultiplexedConnection;

const WRITE: &str = r"
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
if tonumber(ARGV[1]) < fence then return 0 end
redis.call('MSET', KEYS[1], ARGV[2], KEYS[2], ARGV[1])
return 1";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let redis = std::env::var("REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let mut redis = redis::Client::open(redis)?.get_multiplexed_async_connection().await?;
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let session =
        Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10))).await?;
    let mutex = session.mutex("greeting")?;

    let first = mutex.lock().await?;
    let outdated = first.token();
    first.unlock().await?;
    let second = mutex.lock().await?;
    println!("the holder writes: {}", write(&mut redis, second.token(), "hello").await?);
    // a holder that slept through its lease would send this
    println!("an earlier one writes: {}", write(&mut redis, outdated, "goodbye").await?);
    second.unlock().await?;
    Ok(session.close().await?)
}

/// Whether it was written. Revisions count up to 2^53 without loss in Lua, more than etcd will see.
async fn write(
    redis: &mut MultiplexedConnection,
    token: Token,
    text: &str,
) -> redis::RedisResult<bool> {
    let script = Script::new(WRITE);
    let mut call = script.key("{greeting}:text");
    call.key("{greeting}:fence").arg(token.revision()).arg(text);
    call.invoke_async(redis).await
}
