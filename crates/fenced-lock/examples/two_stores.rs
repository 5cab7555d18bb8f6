//! Takes a unit in Redis and writes a row in PostgreSQL under one lock: no single call can do both.
//!
//! - Both stores compare the token with the largest that they have seen, in the step that writes.
//! - A new holder raises the fence in **both** stores before it reads anything. Otherwise the late write of an earlier holder
//!   would pass in the store to which nobody has written since.
//! - The script that takes the unit also writes an intent. A process that is killed between the two stores leaves its intent
//!   behind. The next holder finishes that order if its row exists, and undoes it otherwise.
//!
//! Sells to `ORDER`; without it, only repairs. The stock is `{sale}:stock` in Redis. With `STEP=1` it waits for a line of input
//! between the two stores: kill it there, or stop it (Ctrl-Z) for some seconds while another process runs. The stores are at
//! `REDIS` and `POSTGRES`.

use std::env::var;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, SessionKeeper, SessionOptions, Token};
use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio_postgres::NoTls;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS fence (name text PRIMARY KEY, cluster text NOT NULL, revision bigint NOT NULL);
CREATE TABLE IF NOT EXISTS sold (id text PRIMARY KEY)";

/// Returns a row if the token passes.
const RAISE: &str = "
INSERT INTO fence VALUES ('sale', $1, $2) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
WHERE fence.cluster = excluded.cluster AND fence.revision <= excluded.revision RETURNING revision";

/// ARGV: cluster, revision, step, order. Returns whether the step was done; nil if the token is refused.
const REDIS: &str = r"
local cluster, revision = unpack(redis.call('HMGET', KEYS[1], 'cluster', 'revision'))
if cluster and (cluster ~= ARGV[1] or tonumber(ARGV[2]) < tonumber(revision)) then return false end
redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'revision', ARGV[2])
local step, order = ARGV[3], ARGV[4]
if step == 'take' then
  if tonumber(redis.call('GET', KEYS[2]) or '0') < 1 then return 0 end
  redis.call('DECR', KEYS[2])
  return redis.call('SADD', KEYS[3], order)
end
local had = redis.call('SREM', KEYS[3], order)
if step == 'undo' and had == 1 then redis.call('INCR', KEYS[2]) end
return had";

/// Both stores, for the holder of this token.
struct Stores {
    token: Token,
    redis: MultiplexedConnection,
    postgres: tokio_postgres::Client,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let at = |name, default: &str| var(name).unwrap_or_else(|_| default.to_owned());
    let redis = redis::Client::open(at("REDIS", "redis://127.0.0.1:6379"))?;
    let redis = redis.get_multiplexed_async_connection().await?;
    let postgres = at("POSTGRES", "postgres://postgres@127.0.0.1/postgres");
    let (postgres, connection) = tokio_postgres::connect(&postgres, NoTls).await?;
    tokio::spawn(connection);
    let etcd = EtcdBackend::new(EtcdOptions::new([at("ETCD", "http://127.0.0.1:2379")]))?;
    let locks = SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(2)));

    let guard = locks.lock("two-stores").await?;
    let mut stores = Stores { token: guard.token(), redis, postgres };
    stores.repair().await?;
    if let Ok(order) = var("ORDER") {
        stores.sell(&order).await?;
    }
    // a process that was stopped has lost its lock
    guard.unlock().await.ok();
    locks.close().await;
    Ok(())
}

impl Stores {
    /// Raises both fences. Only then do the intents show what is unfinished.
    async fn repair(&mut self) -> Result<(), Box<dyn Error>> {
        self.postgres.batch_execute(TABLES).await?;
        let (cluster, revision) = (self.token.cluster().to_string(), self.token.revision());
        self.postgres.query_one(RAISE, &[&cluster, &revision]).await?;
        self.redis("raise", "").await?.ok_or("Redis refused the token")?;
        let intents: Vec<String> =
            redis::cmd("SMEMBERS").arg("{sale}:intents").query_async(&mut self.redis).await?;
        for order in intents {
            let is_sold = self.is_sold(&order).await?;
            let step = if is_sold { "finish" } else { "undo" };
            self.redis(step, &order).await?.ok_or("Redis refused the token")?;
            println!("{step} {order}");
        }
        Ok(())
    }

    async fn sell(&mut self, order: &str) -> Result<(), Box<dyn Error>> {
        if self.is_sold(order).await? {
            println!("{order} was sold before");
            return Ok(());
        }
        match self.redis("take", order).await? {
            None => return Err("Redis refused the token".into()),
            Some(false) => println!("sold out"),
            Some(true) => {
                if var("STEP").is_ok() {
                    println!("taken");
                    std::io::stdin().read_line(&mut String::new())?;
                }
                let is_written = self.write(order).await?;
                println!("PostgreSQL writes: {is_written}");
                // without the row the intent stays, for the next holder: this one may have died before it raised Redis' fence
                let (step, of) = if is_written { ("finish", order) } else { ("raise", "") };
                println!("Redis writes: {}", self.redis(step, of).await?.is_some());
            }
        }
        Ok(())
    }

    async fn is_sold(&self, order: &str) -> Result<bool, tokio_postgres::Error> {
        let row = self.postgres.query_opt("SELECT FROM sold WHERE id = $1", &[&order]).await?;
        Ok(row.is_some())
    }

    /// Writes the row if the token passes, in one statement. Returns whether it did.
    async fn write(&self, order: &str) -> Result<bool, tokio_postgres::Error> {
        let sql = format!("WITH passes AS ({RAISE}) INSERT INTO sold SELECT $3 FROM passes");
        let (cluster, revision) = (self.token.cluster().to_string(), self.token.revision());
        Ok(self.postgres.execute(&sql, &[&cluster, &revision, &order]).await? == 1)
    }

    async fn redis(&mut self, step: &str, order: &str) -> redis::RedisResult<Option<bool>> {
        let script = Script::new(REDIS);
        let mut call = script.key("{sale}:fence");
        call.key("{sale}:stock").key("{sale}:intents").arg(self.token.cluster().to_string());
        call.arg(self.token.revision()).arg(step).arg(order);
        call.invoke_async(&mut self.redis).await
    }
}
