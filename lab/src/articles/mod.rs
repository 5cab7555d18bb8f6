//! The locks of well-known articles, as these write them, and what goes wrong under each.
//!
//! Each flaw is a short story with real servers: two or three clients, a unit in stock, and an accident. It is told
//! twice: under the article's lock, where it must end wrongly, and under `fenced-lock` on the same kind of server, where
//! nothing may be oversold. Both wait equally long. Nothing depends on chance: who is paused goes on when the other one
//! has bought, a process dies between two commands of its choice, and a wrong clock is the client's own. Where nobody can
//! buy, the servers are asked why; a story that went another way is an error, not a flaw.

mod database;
mod etcd;
mod redis;
mod redlock;
mod story;
mod zookeeper;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use tokio::time::timeout;

pub use self::redlock::{NotGranted, Redlock};
pub use self::story::Ending;

pub(crate) use self::redis::COMPARE_AND_DELETE;

use self::database::DatabaseFloor;
use self::etcd::EtcdFloor;
use self::redis::RedisFloor;
use self::zookeeper::ZooKeeperFloor;
use crate::error::LabError;
use crate::experiment::rows;

/// How long one story may take: each takes seconds.
const LONGEST_STORY: Duration = Duration::from_mins(1);

/// What follows the table.
const NOTES: &str = "
A row: `make arena ARGS='--only flaws --articles NAME'`

Both sides of a redlock row are Redlock, which has no tokens: the store's own fence alone makes the difference.
";

/// The servers of some locks, and what goes wrong there.
trait Floor: Sized + 'static {
    const NAME: &str;
    const FLAWS: &[Flaw<Self>];

    fn is_installed() -> bool;
    async fn start() -> Result<Self, LabError>;
    async fn stop(self) -> io::Result<()>;
}

/// The story under the article's lock, then under ours.
type Told<'a> = LocalBoxFuture<'a, Result<[Ending; 2], LabError>>;

/// What goes wrong under a lock.
struct Flaw<F> {
    /// The article's lock.
    lock: &'static str,
    what: &'static str,
    story: for<'a> fn(&'a F) -> Told<'a>,
}

/// What was seen of a flaw.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The article's lock.
    pub lock: &'static str,
    /// What goes wrong.
    pub flaw: &'static str,
    /// How each trial ended under the article's lock, and under ours.
    pub trials: Vec<[Ending; 2]>,
}

impl Shown {
    /// In how many trials the sale went wrong under the article's lock, and under ours.
    pub fn wrong(&self) -> [usize; 2] {
        let wrong = |lock: usize| self.trials.iter().filter(|trial| trial[lock].is_wrong()).count();
        [wrong(0), wrong(1)]
    }

    /// How the trials ended under one of the two, in words.
    fn in_words(&self, lock: usize) -> String {
        let endings: BTreeSet<_> =
            self.trials.iter().map(|trial| trial[lock].to_string()).collect();
        endings.into_iter().collect::<Vec<_>>().join("; or: ")
    }
}

/// A kind of server with locks of articles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Redis, also several.
    Redis,
    /// ZooKeeper.
    ZooKeeper,
    /// PostgreSQL.
    Database,
    /// etcd.
    Etcd,
}

impl Server {
    const ALL: [Self; 4] = [Self::Redis, Self::ZooKeeper, Self::Database, Self::Etcd];
}

/// Tells all stories, or those of `locks`, prints the table, and writes it to flaws.md and flaws.json in `out`.
///
/// # Errors
/// When a server fails, or a file cannot be written.
pub async fn measure(locks: &[String], trials: u32, out: &Path) -> Result<(), LabError> {
    let mut all = Vec::new();
    for server in Server::ALL {
        all.extend(shown(server, locks, trials).await?.unwrap_or_default());
    }
    let table = format!("## What the articles' locks do\n\n{}{NOTES}", table(&all));
    let written = fs::write(out.join("flaws.md"), &table)
        .and_then(|()| fs::write(out.join("flaws.json"), serde_json::to_vec_pretty(&all)?));
    written.map_err(LabError::system("the results cannot be written"))?;
    println!("{table}\nflaws.md and flaws.json are in {}\n", out.display());
    Ok(())
}

/// The locks, by the names that [`measure`] takes.
pub fn names() -> Vec<&'static str> {
    fn of<F: Floor>() -> impl Iterator<Item = &'static str> {
        F::FLAWS.iter().map(|flaw| flaw.lock)
    }
    let names = of::<RedisFloor>().chain(of::<ZooKeeperFloor>());
    let mut names: Vec<_> = names.chain(of::<DatabaseFloor>()).chain(of::<EtcdFloor>()).collect();
    names.dedup();
    names
}

/// Tells the stories of the locks on this server so many times; only those of `locks`, if any are given. `None` if the
/// server is not installed.
///
/// # Errors
/// When a server fails, or a client.
pub async fn shown(
    server: Server,
    locks: &[String],
    trials: u32,
) -> Result<Option<Vec<Shown>>, LabError> {
    match server {
        Server::Redis => tell::<RedisFloor>(locks, trials).await,
        Server::ZooKeeper => tell::<ZooKeeperFloor>(locks, trials).await,
        Server::Database => tell::<DatabaseFloor>(locks, trials).await,
        Server::Etcd => tell::<EtcdFloor>(locks, trials).await,
    }
}

async fn tell<F: Floor>(locks: &[String], trials: u32) -> Result<Option<Vec<Shown>>, LabError> {
    let is_wanted =
        |flaw: &&Flaw<F>| locks.is_empty() || locks.iter().any(|lock| lock == flaw.lock);
    let wanted: Vec<_> = F::FLAWS.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        return Ok(Some(Vec::new()));
    }
    if !F::is_installed() {
        eprintln!("{}: its locks are left out, since it is not installed", F::NAME);
        return Ok(None);
    }
    // boxed, as it is large
    let floor = Box::pin(F::start()).await?;
    let mut all = Vec::new();
    for Flaw { lock, what, story } in wanted {
        eprintln!("{lock}: {what}");
        let mut endings = Vec::new();
        for _ in 0..trials {
            let ended = timeout(LONGEST_STORY, story(&floor)).await;
            endings.push(ended.unwrap_or(Err(LabError::NotInTime {
                what: "a story ends",
                seconds: LONGEST_STORY.as_secs(),
            }))?);
        }
        all.push(Shown { lock, flaw: what, trials: endings });
    }
    floor.stop().await.map_err(LabError::system("a server does not stop"))?;
    Ok(Some(all))
}

/// The table, in Markdown.
pub fn table(all: &[Shown]) -> String {
    let head = ["article's lock", "flaw", "ends as", "wrong in", "with fenced-lock"];
    let row = |shown: &Shown| {
        let [article, ours] = shown.wrong();
        let of = |count: usize| format!("{count} of {}", shown.trials.len());
        let ours = match ours {
            0 => shown.in_words(1),
            _ => format!("{} (in {})", shown.in_words(1), of(ours)),
        };
        let what = shown.flaw.to_owned();
        [shown.lock.to_owned(), what, shown.in_words(0), of(article), ours]
    };
    rows(head, all.iter().map(row))
}
