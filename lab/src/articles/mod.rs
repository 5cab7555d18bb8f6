//! The locks of well-known articles, as these write them, and what goes wrong under each.
//!
//! Each flaw is a short story with real servers: two or three clients, a unit in stock, and an accident. It is told
//! twice: under the article's lock, where it must end wrongly, and under `fenced-lock` on the same kind of server, where
//! nothing may be oversold. Both wait equally long. Nothing depends on chance: who is paused goes on when the other one
//! has bought, a process dies between two commands of its choice, and a wrong clock is the client's own. Where nobody can
//! buy, the servers are asked why; a story that went another way is an error, not a flaw.
//!
//! `ARTICLES` has them all: a lock, and the accidents that show its flaws. `story` tells any of them.

mod database;
mod etcd;
mod redis;
mod shop;
mod story;
mod zookeeper;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use demo::locks::LockMode;
use futures_util::future::BoxFuture;
use serde::Serialize;
use testkit::wait::in_time;

pub(crate) use self::redis::{SetNx, connect};
pub use self::shop::Ending;
use self::story::{Accident, Servers, Side};
use crate::clients::Client;
use crate::experiment::{note, rows};

/// How long one story may take: each takes seconds.
const LONGEST_STORY: Duration = Duration::from_mins(1);

/// What follows the table.
pub(crate) const NOTES: &str = "
A row: `make arena ARGS='--only flaws --articles NAME'`

Both sides of a redlock row are Redlock, which has no tokens: the store's own fence alone makes the difference.
";

type Opened<'a> = BoxFuture<'a, Result<Box<dyn Client>>>;

/// A lock of articles, and its flaws.
struct Article {
    lock: &'static str,
    /// The lock of `fenced-lock` on the same kind of server.
    ours: LockMode,
    open: for<'a> fn(&'a Part) -> Opened<'a>,
    /// Each flaw in words, and the accident that shows it.
    flaws: &'static [(&'static str, Accident)],
}

/// A client of an article's lock, and what becomes of it.
struct Part {
    role: Role,
    accident: Accident,
    /// The addresses of the servers.
    at: Vec<String>,
    /// The name of the lock.
    lock: String,
}

/// What a client does in a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Has the lock before the story begins.
    Early,
    First,
    /// Waits between the others.
    Middle,
    Second,
}

const ARTICLES: [Article; 11] = [
    Article {
        lock: "redis-set-nx",
        ours: LockMode::Redis,
        open: |part| Box::pin(redis::set_nx(part)),
        flaws: &[
            ("the holder is paused past the TTL", Accident::Freeze),
            ("a replica takes over before it has the lock", Accident::FailOver),
        ],
    },
    Article {
        lock: "redis-setnx-expire",
        ours: LockMode::Redis,
        open: |part| Box::pin(redis::setnx_expire(part)),
        flaws: &[("the client dies between the two commands", Accident::HolderDies)],
    },
    Article {
        lock: "redis-setex",
        ours: LockMode::Redis,
        open: |part| Box::pin(redis::setex(part)),
        flaws: &[("it overwrites: everybody gets the lock", Accident::None)],
    },
    Article {
        lock: "redis-own-clock",
        ours: LockMode::Redis,
        open: |part| Box::pin(redis::own_clock(part)),
        flaws: &[(
            "the holder's clock is set back: it deletes its successor's lock",
            Accident::LateRelease,
        )],
    },
    Article {
        lock: "redis-getset",
        ours: LockMode::Redis,
        open: |part| Box::pin(redis::getset(part)),
        flaws: &[
            ("a client with a fast clock takes a live lock", Accident::None),
            (
                "a loser whose clock is an hour fast moves the expiry of a winner that dies",
                Accident::HolderDies,
            ),
        ],
    },
    Article {
        lock: "redlock",
        ours: LockMode::Redlock,
        open: |part| Box::pin(async { Ok(redis::redlock(part)) }),
        flaws: &[
            ("the holder is paused past the TTL", Accident::Freeze),
            ("the clock of a node jumps", Accident::ClockJump),
            ("a node without persistence is started again", Accident::Restart),
        ],
    },
    Article {
        lock: "zookeeper",
        ours: LockMode::ZooKeeper,
        open: |part| Box::pin(zookeeper::sequential_node(part)),
        flaws: &[
            (
                "a waiter dies: the one behind it is notified, and counts that as the lock",
                Accident::WaiterDies,
            ),
            ("the session is lost, and the holder is not told", Accident::Freeze),
        ],
    },
    Article {
        lock: "database-row",
        ours: LockMode::Postgres,
        open: |part| Box::pin(database::unique_row(part)),
        flaws: &[
            ("the sweeper deletes the row of a holder that works for longer", Accident::Sweep),
            ("DELETE by name alone deletes the successor's row", Accident::LateRelease),
        ],
    },
    Article {
        lock: "database-for-update",
        ours: LockMode::Postgres,
        open: |part| Box::pin(database::for_update(part)),
        flaws: &[
            ("the connection dies, and with it the lock: the holder is not told", Accident::Cut),
            ("a client that is paused holds the row", Accident::HolderDies),
        ],
    },
    Article {
        lock: "etcd-lock-call",
        ours: LockMode::Etcd,
        open: |part| Box::pin(etcd::lock_call(part)),
        flaws: &[
            (
                "one renewal at 80 % of the TTL: if it is lost, so is the lease, and the holder is not told",
                Accident::Outage,
            ),
            (
                "lock() swallows its errors: who does not reach etcd sells without the lock",
                Accident::Unreachable,
            ),
        ],
    },
    Article {
        lock: "etcd-own-key",
        ours: LockMode::Etcd,
        open: |part| Box::pin(etcd::own_key(part)),
        flaws: &[(
            "a waiter's lease ends, and nobody checks it after the wait",
            Accident::WaiterLosesLease,
        )],
    },
];

/// The trials of a flaw.
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
    /// In how many trials the sale went wrong under the article's lock (0), or under ours (1), and how the trials ended.
    fn in_words(&self, lock: usize) -> (usize, String) {
        let wrong = self.trials.iter().filter(|trial| trial[lock].is_wrong()).count();
        let endings = self.trials.iter().map(|trial| trial[lock].to_string());
        let endings: BTreeSet<_> = endings.collect();
        (wrong, endings.into_iter().collect::<Vec<_>>().join("; or: "))
    }
}

/// The locks, by their names.
pub fn names() -> [&'static str; ARTICLES.len()] {
    ARTICLES.map(|article| article.lock)
}

/// Runs each story of the wanted locks `trials` times. Leaves out the locks whose server is not installed.
///
/// # Errors
/// When a server fails, or a client.
pub async fn shown(wanted: impl Fn(&str) -> bool, trials: u32) -> Result<Vec<Shown>> {
    let mut all = Vec::new();
    let wanted: Vec<_> = ARTICLES.iter().filter(|article| wanted(article.lock)).collect();
    // those on the same servers one after the other
    for articles in wanted.chunk_by(|one, next| one.ours == next.ours) {
        let ours = articles[0].ours;
        if let Some(missing) = ours.server().missing() {
            note(&format!("{missing}: its locks are left out, since it is not installed"));
            continue;
        }
        // boxed, as it is large
        let mut servers = Box::pin(Servers::start(ours)).await?;
        for article in articles {
            for &(what, accident) in article.flaws {
                note(&format!("{}: {what}", article.lock));
                let mut tell = async |side| {
                    let story = Box::pin(servers.run(accident, side));
                    in_time("a story ends", LONGEST_STORY, story).await
                };
                let mut endings = Vec::new();
                for _ in 0..trials {
                    endings.push([tell(Side::Article(article)).await?, tell(Side::Ours).await?]);
                }
                all.push(Shown { lock: article.lock, flaw: what, trials: endings });
            }
        }
        servers.stop().await.context("a server does not stop")?;
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
        [shown.lock.to_owned(), shown.flaw.to_owned(), ends, of(article), ours]
    };
    rows(head, all.iter().map(row))
}
