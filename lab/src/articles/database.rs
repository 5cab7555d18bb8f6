//! The locks in a database: here PostgreSQL, in most articles `MySQL`.

use anyhow::{Result, ensure};
use async_trait::async_trait;
use fenced_lock::Token;
use tokio::time::sleep;
use tokio_postgres::{Client as Database, NoTls};
use uuid::Uuid;

use super::redis::POLL;
use super::{Article, Part};
use crate::clients::Client;

/// How long a row counts, in milliseconds; in the articles, seconds to minutes.
const ROW_TTL_MS: f64 = 400.0;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS method_lock
    (method_name text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS resource_lock (resource_name text PRIMARY KEY)";

/// The locks that are a row of a table.
///
/// - `database-row`: one row for the lock, which only one client can insert: "Java分布式:分布式锁之数据库实现" with its table `methodLock`,
///   and "【分布式锁】通过MySQL数据库的表来实现-V1" (locks by a table of a database). A client's own row counts as its lock, so the lock is
///   re-entrant; the others poll; a sweeper deletes the rows that have expired; and the holder deletes its row by the name.
/// - `database-for-update`: `SELECT .. FOR UPDATE` in a transaction, which holds the row until `COMMIT`: "分布式-基于数据库排他锁"
///   (exclusive locks of a database). The stock is elsewhere, so the transaction guards only the row.
pub(super) struct Row {
    article: Article,
    url: String,
    database: Database,
    name: String,
    owner: String,
}

impl Row {
    pub(super) async fn open(part: &Part<'_>) -> Result<Self> {
        let (url, name) = (part.at[0].clone(), part.lock.to_owned());
        let (article, owner) = (part.article, Uuid::new_v4().to_string());
        let database = connect(&url).await?;
        database.batch_execute(TABLES).await?;
        Ok(Self { article, url, database, name, owner })
    }
}

#[async_trait]
impl Client for Row {
    async fn lock(&mut self) -> Result<Option<Token>> {
        let Self { database, name, owner, .. } = self;
        if self.article == Article::DatabaseForUpdate {
            let row = "INSERT INTO resource_lock VALUES ($1) ON CONFLICT DO NOTHING";
            database.execute(row, &[name]).await?;
            database.batch_execute("BEGIN").await?;
            let lock = "SELECT FROM resource_lock WHERE resource_name = $1 FOR UPDATE";
            database.query_one(lock, &[name]).await?;
            return Ok(None);
        }
        let insert = "INSERT INTO method_lock
            VALUES ($1, $2, now() + $3 * interval '1 millisecond') ON CONFLICT DO NOTHING";
        let mine = "SELECT FROM method_lock WHERE method_name = $1 AND owner = $2";
        while database.execute(insert, &[name, owner, &ROW_TTL_MS]).await? == 0
            && database.query_opt(mine, &[name, owner]).await?.is_none()
        {
            sleep(POLL).await;
        }
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<()> {
        if self.article == Article::DatabaseForUpdate {
            return Ok(self.database.batch_execute("COMMIT").await?);
        }
        let delete = "DELETE FROM method_lock WHERE method_name = $1";
        self.database.execute(delete, &[&self.name]).await?;
        Ok(())
    }

    async fn why_locked(&mut self) -> Result<&'static str> {
        let blockers = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'
            AND pid IN (SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity)";
        // the client's own connection is busy with waiting for the row
        let holders = connect(&self.url).await?.query(blockers, &[]).await?;
        ensure!(holders.len() == 1, "no client that sends nothing has the row");
        Ok("locked as long as the pause lasts")
    }
}

/// Waits until this lock's row has expired, and deletes it.
pub(super) async fn sweep(url: &str, name: &str) -> Result<()> {
    let database = connect(url).await?;
    let delete = "DELETE FROM method_lock WHERE method_name = $1 AND expires_at < now()";
    while database.execute(delete, &[&name]).await? == 0 {
        sleep(POLL).await;
    }
    Ok(())
}

/// A connection of one client.
async fn connect(url: &str) -> Result<Database> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // the connection task ends with the client, and the requests report its error
    tokio::spawn(connection);
    Ok(client)
}
