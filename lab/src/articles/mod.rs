//! The locks of well-known articles, as the articles write them, and the flaws of each.
//!
//! Each flaw is a short story with real servers: two or three clients, a unit in stock, and an accident. Each story runs twice:
//! under the article's lock, where it must end wrongly, and under `fenced-lock` on the same kind of server, where nothing may
//! be oversold. The two runs wait equally long. Nothing depends on chance: a paused client goes on when the other one has
//! bought, a process dies between two given commands, and a wrong clock is the client's own. If nobody can buy, the servers
//! must show why. A story that takes another course is an error, not a flaw.
//!
//! `FLAWS` lists them: a lock, its flaw, and the accident that shows it. `story` runs each of them.

mod database;
mod etcd;
mod redis;
mod shop;
mod story;
mod zookeeper;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;
use testkit::wait::in_time;
use testkit::{OwnedDir, PrivateRedis, RedisOptions};

use self::Article::{
    DatabaseForUpdate, DatabaseRow, EtcdLockCall, EtcdOwnKey, RedisGetset, RedisOwnClock,
    RedisSetNx, RedisSetex, RedisSetnxExpire, Redlock, Zookeeper,
};
use self::database::Row;
use self::etcd::LeasedKey;
use self::redis::{OneKey, RsLock};
pub use self::shop::Ending;
use self::story::Accident::{
    self, ClockJump, Cut, FailOver, Freeze, HolderDies, LateRelease, Outage, Restart, Sweep,
    TimePasses, Unreachable, WaiterDies, WaiterLosesLease,
};
use self::zookeeper::SequentialNode;
use crate::clients::Client;
use crate::experiment::{note, rows, value_name};
use crate::locks::{LockMode, LockServer, Servers};

/// How long one story may take: each takes seconds.
const LONGEST_STORY: Duration = Duration::from_mins(1);

/// The notes below the table.
pub(crate) const NOTES: &str = "
A row: `make arena ARGS='--only flaws --articles NAME'`

Both sides of a redlock row are Redlock, which has no tokens: the store's own fence alone makes the difference.
";

/// A lock of articles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Article {
    /// `SET NX PX`, and a release that compares the value.
    RedisSetNx,
    /// `SETNX`, then `EXPIRE`.
    RedisSetnxExpire,
    /// `SETEX`.
    RedisSetex,
    /// `SET NX PX`, and a release by the holder's own clock.
    RedisOwnClock,
    /// `SETNX` and `GETSET` with time stamps.
    RedisGetset,
    /// The crate `rslock`.
    Redlock,
    /// Sequential nodes; the client that is notified has the lock.
    Zookeeper,
    /// A row with a unique name, and a sweeper.
    DatabaseRow,
    /// `SELECT .. FOR UPDATE`.
    DatabaseForUpdate,
    /// A lease that is renewed once, and etcd's `Lock` call.
    EtcdLockCall,
    /// A key for each client, which watches its predecessor.
    EtcdOwnKey,
}

impl Article {
    /// Its name on the command line.
    pub fn name(self) -> String {
        value_name(&self)
    }

    /// The lock of `fenced-lock` on the same kind of server.
    fn ours(self) -> LockMode {
        match self {
            Redlock => LockMode::Redlock,
            Zookeeper => LockMode::ZooKeeper,
            DatabaseRow | DatabaseForUpdate => LockMode::Postgres,
            EtcdLockCall | EtcdOwnKey => LockMode::Etcd,
            _ => LockMode::Redis,
        }
    }
}

/// A client of an article's lock, and its part in a story.
struct Part<'a> {
    article: Article,
    role: Role,
    accident: Accident,
    at: Vec<String>,
    lock: &'a str,
}

impl Part<'_> {
    async fn open(&self) -> Result<Box<dyn Client>> {
        Ok(match self.article {
            Redlock => Box::new(RsLock::of(self)),
            Zookeeper => Box::new(SequentialNode::open(self).await?),
            DatabaseRow | DatabaseForUpdate => Box::new(Row::open(self).await?),
            EtcdLockCall | EtcdOwnKey => Box::new(LeasedKey::open(self).await?),
            _ => Box::new(OneKey::open(self).await?),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Has the lock before the story begins.
    Early,
    First,
    /// Waits between the others.
    Middle,
    Second,
}

/// Each flaw: the lock, the flaw in words, and the accident that shows it. Locks on the same servers follow each other.
const FLAWS: [(Article, &str, Accident); 18] = [
    (RedisSetNx, "the holder is paused past the TTL", Freeze),
    (RedisSetNx, "a replica takes over before it has the lock", FailOver),
    (RedisSetnxExpire, "the client dies between the two commands", HolderDies),
    (RedisSetex, "it overwrites: everybody gets the lock", TimePasses),
    (RedisOwnClock, "the holder's clock is set back: it deletes its successor's lock", LateRelease),
    (RedisGetset, "a client with a fast clock takes a live lock", TimePasses),
    (Redlock, "the holder is paused past the TTL", Freeze),
    (Redlock, "the clock of a node jumps", ClockJump),
    (Redlock, "a node without persistence is started again", Restart),
    (
        Zookeeper,
        "a waiter dies: the one behind it is notified, and counts that as the lock",
        WaiterDies,
    ),
    (Zookeeper, "the session is lost, and the holder is not told", Freeze),
    (DatabaseRow, "the sweeper deletes the row of a holder that works for longer", Sweep),
    (DatabaseRow, "DELETE by name alone deletes the successor's row", LateRelease),
    (DatabaseForUpdate, "the connection dies, and with it the lock: the holder is not told", Cut),
    (DatabaseForUpdate, "a client that is paused holds the row", HolderDies),
    (
        EtcdLockCall,
        "one renewal at 80 % of the TTL: if it is lost, so is the lease, and the holder is not told",
        Outage,
    ),
    (
        EtcdLockCall,
        "lock() swallows its errors: who does not reach etcd sells without the lock",
        Unreachable,
    ),
    (EtcdOwnKey, "a waiter's lease ends, and nobody checks it after the wait", WaiterLosesLease),
];

/// The trials of a flaw.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The article's lock.
    pub lock: Article,
    /// The flaw in words.
    pub flaw: &'static str,
    /// How each trial ended under the article's lock, and under ours.
    pub trials: Vec<[Ending; 2]>,
}

impl Shown {
    /// In how many trials the sale went wrong, under the article's lock (0) or ours (1), and the ways in which the trials ended.
    fn in_words(&self, lock: usize) -> (usize, String) {
        let wrong = self.trials.iter().filter(|trial| trial[lock].is_wrong()).count();
        let endings = self.trials.iter().map(|trial| trial[lock].to_string());
        let endings: BTreeSet<_> = endings.collect();
        (wrong, endings.into_iter().collect::<Vec<_>>().join("; or: "))
    }
}

/// Runs each story of the wanted locks `trials` times. Leaves out the locks whose server is not installed.
///
/// # Errors
/// When a server fails, or a client.
pub async fn shown(
    dir: &OwnedDir,
    wanted: impl Fn(Article) -> bool,
    trials: u32,
) -> Result<Vec<Shown>> {
    let mut all = Vec::new();
    let wanted: Vec<_> = FLAWS.into_iter().filter(|(article, ..)| wanted(*article)).collect();
    for flaws in wanted.chunk_by(|one, next| one.0.ours() == next.0.ours()) {
        let ours = flaws[0].0.ours();
        if let Some(missing) = ours.server().missing() {
            note(&format!("{missing}: its locks are left out, since it is not installed"));
            continue;
        }
        // boxed because it is large
        let mut servers = Box::pin(Servers::start(ours, 1, dir)).await?;
        // without syncing, no disk delays a renewal
        for server in &servers.members {
            match server {
                LockServer::Redis(redis) => {
                    redis.run::<()>("CONFIG SET appendonly no").await?;
                }
                LockServer::Postgres(postgres) => {
                    postgres.run("ALTER SYSTEM SET fsync = off").await?;
                    postgres.run("SELECT pg_reload_conf()").await?;
                }
                _ => {}
            }
        }
        let in_memory = RedisOptions { volatile: true, ..RedisOptions::default() };
        let stock = PrivateRedis::start_in(&servers.dir, in_memory).await?;
        for &(lock, flaw, accident) in flaws {
            note(&format!("{}: {flaw}", lock.name()));
            let mut run = async |article| {
                let story = Box::pin(story::run(&mut servers, &stock, accident, article));
                in_time("a story ends", LONGEST_STORY, story).await
            };
            let mut endings = Vec::new();
            for _ in 0..trials {
                endings.push([run(Some(lock)).await?, run(None).await?]);
            }
            all.push(Shown { lock, flaw, trials: endings });
        }
        stock.stop().await.context("the stock's Redis does not stop")?;
        servers.stop().await?;
    }
    Ok(all)
}

/// The table, in Markdown.
pub fn table(all: &[Shown]) -> String {
    let head = "article's lock | flaw | ends as | wrong in | with fenced-lock";
    let row = |shown: &Shown| {
        let ((article, ends), (ours, ours_ends)) = (shown.in_words(0), shown.in_words(1));
        let of = |count: usize| format!("{count} of {}", shown.trials.len());
        let ours = if ours == 0 { ours_ends } else { format!("{ours_ends} (in {})", of(ours)) };
        format!("{} | {} | {ends} | {} | {ours}", shown.lock.name(), shown.flaw, of(article))
    };
    rows(head, all.iter().map(row))
}
