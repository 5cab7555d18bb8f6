//! The locks in a database: here PostgreSQL, in most articles `MySQL`.

use fenced_lock::{LockError, PostgresBackend, PostgresOptions, Token};
use testkit::postgres::{PostgresOptions as Server, PrivatePostgres, is_installed};
use testkit::server::START_TIMEOUT;
use testkit::{PrivateRedis, Proxy, RedisOptions};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::story::{
    Buyer, Ending, Ours, POLL, Shop, TTL, next_buys, no_accident, ours_dies, ours_gives_back_late,
    proxy_to, two_buy,
};
use super::{Flaw, Floor};
use crate::error::LabError;

/// How long a row counts, in milliseconds; the articles have seconds to minutes.
const ROW_TTL_MS: f64 = 400.0;

/// The tables of the articles, and their `methodLock`.
const TABLES: &str = "
    CREATE TABLE method_lock (
        method_name text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL
    );
    CREATE TABLE resource_lock (resource_name text PRIMARY KEY)";

/// One row for the lock, which only one can insert: "Java分布式:分布式锁之数据库实现" with its table `methodLock`, and
/// "【分布式锁】通过MySQL数据库的表来实现-V1" (locks by a table of a database). A row of one's own counts as one's lock, so it is
/// re-entrant; the others poll; a sweeper deletes the rows that have expired; and the holder deletes its row by the name.
struct UniqueRow {
    database: Connection,
    name: String,
    owner: String,
}

impl UniqueRow {
    async fn new(url: &str, name: &str) -> Result<Self, LabError> {
        let (database, owner) = (Connection::open(url).await?, Uuid::new_v4().to_string());
        Ok(Self { database, name: name.to_owned(), owner })
    }
}

impl Buyer for UniqueRow {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
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

    async fn unlock(&mut self) -> Result<(), LabError> {
        let delete = "DELETE FROM method_lock WHERE method_name = $1";
        self.database.client.execute(delete, &[&self.name]).await?;
        Ok(())
    }
}

/// `SELECT .. FOR UPDATE` in a transaction, which holds the row until `COMMIT`: "分布式-基于数据库排他锁" (exclusive locks of a
/// database). The stock is elsewhere, so the transaction guards nothing but the row.
struct RowLock {
    database: Connection,
    name: String,
}

impl RowLock {
    async fn new(url: &str, name: &str) -> Result<Self, LabError> {
        let database = Connection::open(url).await?;
        let make = "INSERT INTO resource_lock VALUES ($1) ON CONFLICT DO NOTHING";
        database.client.execute(make, &[&name]).await?;
        Ok(Self { database, name: name.to_owned() })
    }
}

impl Buyer for RowLock {
    async fn lock(&mut self) -> Result<Option<Token>, LabError> {
        let client = &self.database.client;
        client.batch_execute("BEGIN").await?;
        let lock = "SELECT FROM resource_lock WHERE resource_name = $1 FOR UPDATE";
        client.query_one(lock, &[&self.name]).await?;
        Ok(None)
    }

    async fn unlock(&mut self) -> Result<(), LabError> {
        Ok(self.database.client.batch_execute("COMMIT").await?)
    }
}

/// A connection of one buyer.
struct Connection {
    client: Client,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    async fn open(url: &str) -> Result<Self, LabError> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // its error is that of the requests
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { client, _driver: AbortOnDropHandle::new(driver) })
    }
}

/// The servers: the database with the locks, and the stock's Redis.
pub(super) struct DatabaseFloor {
    shop: PrivateRedis,
    lock: PrivatePostgres,
    /// What the articles' schedulers run.
    sweeper: Connection,
}

impl Floor for DatabaseFloor {
    const NAME: &str = "PostgreSQL";

    const FLAWS: &[Flaw<Self>] = &[
        Flaw {
            lock: "database-row",
            what: "the sweeper deletes the row of a holder that works for longer",
            story: |floor| Box::pin(swept(floor)),
        },
        Flaw {
            lock: "database-row",
            what: "DELETE by name alone deletes the successor's row",
            story: |floor| Box::pin(deleted(floor)),
        },
        Flaw {
            lock: "database-for-update",
            what: "the connection dies, and with it the lock: the holder is not told",
            story: |floor| Box::pin(disconnected(floor)),
        },
        Flaw {
            lock: "database-for-update",
            what: "a client that is paused holds the row",
            story: |floor| Box::pin(paused(floor)),
        },
    ];

    fn is_installed() -> bool {
        is_installed()
    }

    async fn start() -> Result<Self, LabError> {
        let volatile = RedisOptions { volatile: true, ..RedisOptions::default() };
        let shop = PrivateRedis::start(volatile).await?;
        let lock = PrivatePostgres::start(Server::default()).await?;
        let sweeper = Connection::open(&lock.url()).await?;
        sweeper.client.batch_execute(TABLES).await?;
        Ok(Self { shop, lock, sweeper })
    }

    async fn stop(self) -> std::io::Result<()> {
        drop(self.sweeper);
        self.shop.stop().await?;
        self.lock.stop().await
    }
}

impl DatabaseFloor {
    async fn shop(&self) -> Result<Shop, LabError> {
        Shop::open(&self.shop, 1).await
    }

    async fn ours(&self, shop: &Shop, port: u16) -> Result<Ours, LabError> {
        let options = PostgresOptions::new(self.lock.url_of("postgres", port));
        let backend = PostgresBackend::new(&options).map_err(LockError::from)?;
        Ours::open(backend, &shop.lock, TTL).await
    }

    async fn direct(&self, shop: &Shop) -> Result<Ours, LabError> {
        self.ours(shop, self.lock.port()).await
    }

    async fn proxied(&self, shop: &Shop) -> Result<(Ours, Proxy), LabError> {
        let proxy = proxy_to(self.lock.port()).await?;
        Ok((self.ours(shop, proxy.port()).await?, proxy))
    }

    /// Waits until the row has expired, and deletes it, as a scheduler does sooner or later.
    async fn sweep(&self, name: &str) -> Result<(), LabError> {
        let delete = "DELETE FROM method_lock WHERE method_name = $1 AND expires_at < now()";
        while self.sweeper.client.execute(delete, &[&name]).await? == 0 {
            sleep(POLL).await;
        }
        Ok(())
    }
}

async fn swept(floor: &DatabaseFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let first = UniqueRow::new(&url, &shop.lock).await?;
    let second = UniqueRow::new(&url, &shop.lock).await?;
    let name = shop.lock.clone();
    let article = two_buy(shop, first, second, async || floor.sweep(&name).await).await?;

    let shop = floor.shop().await?;
    let (first, second) = (floor.direct(&shop).await?, floor.direct(&shop).await?);
    // it works for two TTLs, and its session is renewed
    Ok([article, no_accident(shop, first, second).await?])
}

async fn deleted(floor: &DatabaseFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let mut early = UniqueRow::new(&url, &shop.lock).await?;
    let first = UniqueRow::new(&url, &shop.lock).await?;
    let second = UniqueRow::new(&url, &shop.lock).await?;
    early.lock().await?;
    floor.sweep(&shop.lock).await?;
    let release = async || early.unlock().await;
    let article = two_buy(shop, first, second, release).await?;

    let shop = floor.shop().await?;
    let early = floor.proxied(&shop).await?;
    let others = [floor.direct(&shop).await?, floor.direct(&shop).await?];
    Ok([article, ours_gives_back_late(shop, early, others).await?])
}

async fn disconnected(floor: &DatabaseFloor) -> Result<[Ending; 2], LabError> {
    let (shop, url) = (floor.shop().await?, floor.lock.url());
    let proxy = proxy_to(floor.lock.port()).await?;
    let first = RowLock::new(&floor.lock.url_of("postgres", proxy.port()), &shop.lock).await?;
    let second = RowLock::new(&url, &shop.lock).await?;
    let cut = async || {
        proxy.cut();
        Ok(())
    };
    let article = two_buy(shop, first, second, cut).await?;

    let shop = floor.shop().await?;
    let ((first, proxy), second) = (floor.proxied(&shop).await?, floor.direct(&shop).await?);
    let cut = async || {
        proxy.cut();
        Ok(())
    };
    Ok([article, two_buy(shop, first, second, cut).await?])
}

async fn paused(floor: &DatabaseFloor) -> Result<[Ending; 2], LabError> {
    let shop = floor.shop().await?;
    let proxy = proxy_to(floor.lock.port()).await?;
    let proxied = floor.lock.url_of("postgres", proxy.port());
    let mut first = RowLock::new(&proxied, &shop.lock).await?;
    let next = RowLock::new(&floor.lock.url(), &shop.lock).await?;
    first.lock().await?;
    proxy.freeze();
    let why = async |next: &mut RowLock| {
        proxy.release();
        first.unlock().await?;
        let seconds = START_TIMEOUT.as_secs();
        let what = "the row is free after the pause";
        let granted = timeout(START_TIMEOUT, next.lock()).await;
        granted.unwrap_or(Err(LabError::NotInTime { what, seconds }))?;
        Ok("locked as long as the pause lasts")
    };
    let article = next_buys(shop, next, why).await?;

    let shop = floor.shop().await?;
    let (first, next) = (floor.proxied(&shop).await?, floor.direct(&shop).await?);
    Ok([article, ours_dies(shop, first, next).await?])
}
