//! The locks in a database: here PostgreSQL, in most articles `MySQL`.

use anyhow::{Result, ensure};
use async_trait::async_trait;
use fenced_lock::Token;
use tokio::time::sleep;
use tokio_postgres::NoTls;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::Part;
use super::redis::POLL;
use crate::clients::Client;

/// How long a row counts, in milliseconds; the articles have seconds to minutes.
const ROW_TTL_MS: f64 = 400.0;

/// One row for the lock, which only one can insert: "Java分布式:分布式锁之数据库实现" with its table `methodLock`, and
/// "【分布式锁】通过MySQL数据库的表来实现-V1" (locks by a table of a database). A row of one's own counts as one's lock, so it is
/// re-entrant; the others poll; a sweeper deletes the rows that have expired; and the holder deletes its row by the name.
struct UniqueRow {
    database: Connection,
    name: String,
    owner: String,
}

pub(super) async fn unique_row(part: &Part) -> Result<Box<dyn Client>> {
    let database = Connection::open(&part.at[0]).await?;
    let table = "CREATE TABLE IF NOT EXISTS method_lock
        (method_name text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL)";
    database.client.batch_execute(table).await?;
    let (name, owner) = (part.lock.clone(), Uuid::new_v4().to_string());
    Ok(Box::new(UniqueRow { database, name, owner }))
}

#[async_trait]
impl Client for UniqueRow {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let insert = "INSERT INTO method_lock
            VALUES ($1, $2, now() + $3 * interval '1 millisecond') ON CONFLICT DO NOTHING";
        let mine = "SELECT FROM method_lock WHERE method_name = $1 AND owner = $2";
        let (name, owner) = (&self.name, &self.owner);
        let client = &self.database.client;
        while client.execute(insert, &[name, owner, &ROW_TTL_MS]).await? == 0
            && client.query_opt(mine, &[name, owner]).await?.is_none()
        {
            sleep(POLL).await;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        let delete = "DELETE FROM method_lock WHERE method_name = $1";
        self.database.client.execute(delete, &[&self.name]).await?;
        Ok(())
    }
}

/// Waits until the row of this lock has expired, and deletes it.
pub(super) async fn sweep(url: &str, name: &str) -> Result<()> {
    let database = Connection::open(url).await?;
    let delete = "DELETE FROM method_lock WHERE method_name = $1 AND expires_at < now()";
    while database.client.execute(delete, &[&name]).await? == 0 {
        sleep(POLL).await;
    }
    Ok(())
}

/// `SELECT .. FOR UPDATE` in a transaction, which holds the row until `COMMIT`: "分布式-基于数据库排他锁" (exclusive locks of a
/// database). The stock is elsewhere, so the transaction guards nothing but the row.
struct RowLock {
    url: String,
    database: Connection,
    name: String,
}

pub(super) async fn for_update(part: &Part) -> Result<Box<dyn Client>> {
    let (url, name) = (part.at[0].clone(), part.lock.clone());
    let database = Connection::open(&url).await?;
    let table = "CREATE TABLE IF NOT EXISTS resource_lock (resource_name text PRIMARY KEY)";
    database.client.batch_execute(table).await?;
    let row = "INSERT INTO resource_lock VALUES ($1) ON CONFLICT DO NOTHING";
    database.client.execute(row, &[&name]).await?;
    Ok(Box::new(RowLock { url, database, name }))
}

#[async_trait]
impl Client for RowLock {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let client = &self.database.client;
        client.batch_execute("BEGIN").await?;
        let lock = "SELECT FROM resource_lock WHERE resource_name = $1 FOR UPDATE";
        client.query_one(lock, &[&self.name]).await?;
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        Ok(self.database.client.batch_execute("COMMIT").await?)
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let blockers = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'
            AND pid IN (SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity)";
        // its own connection waits for the row
        let database = Connection::open(&self.url).await?;
        let holders = database.client.query(blockers, &[]).await?;
        ensure!(holders.len() == 1, "no client that sends nothing has the row");
        Ok("locked as long as the pause lasts")
    }
}

/// A connection of one client.
struct Connection {
    client: tokio_postgres::Client,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    async fn open(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // its error is that of the requests
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { client, _driver: AbortOnDropHandle::new(driver) })
    }
}
