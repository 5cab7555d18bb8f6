//! Redis as a lock service: one primary, a queue for each name.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use fenced_lock::{LockError, RedisBackend, RedisOptions, SessionKeeper, SessionOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), LockError> {
//!     let redis = RedisBackend::new(RedisOptions::new("redis://127.0.0.1:6379"))?;
//!     let locks = SessionKeeper::start(Arc::new(redis), SessionOptions::new(Duration::from_secs(10)));
//!     locks.with("nightly-report", async |guard| println!("mine, under token {}", guard.token())).await?;
//!     locks.close().await;
//!     Ok(())
//! }
//! ```
//!
//! **Promises**: those [of etcd](crate#what-it-promises), except that Redis can forget a grant when it fails over or restarts:
//! then two claims can hold the lock until the first one's next renewal, [or longer](RedisBackend), and a token can repeat, under
//! another [`ClusterId`]. It measures leases by its wall clock: setting it forward ends them early. A holder learns at the next
//! renewal that its claim was deleted. A [standby](crate::Mutex::standby) asks for a turn as any other claim does.
//! [`RedlockBackend`] promises less.
//!
//! # How it works
//!
//! A claim is a member of the sorted set `{fenced-lock}:queue:NAME`, and its score is its ticket: a number that the
//! server counts up. The first one whose session lives holds the lock, and its ticket is its token. A session is one
//! key with the TTL, so one renewal keeps all its claims; claims of a session that has ended are removed by the next request for
//! their queue. One script does all this, so each request is atomic. All keys share a hash tag.
//!
//! The server sends a message only to the holder's process: when it becomes the holder, and when others begin or cease to wait.
//! The message carries the token, so a handover takes one request and one message. Messages can get lost, so a waiter also asks
//! again when the holder's session could have ended.

mod connection;
mod options;
mod redlock;
mod script;

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, try_join_all};
use redis::{FromRedisValue, PushInfo, PushKind, cmd};
use tokio::runtime::Handle;

pub use options::RedisOptions;
pub use redlock::RedlockBackend;

use self::connection::Connection;
use self::script::{Call, Script};
use super::asked::{Answered, Asked, AskedBackend};
use super::random::random;
use super::waiters::{Answer, Waiters};
use super::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, Clock, ClusterId, Ends, Lease, Loss,
    Promises, PutMode, QueueEntry, Released, Token, TokenLife,
};

/// The shortest pause before a waiter asks again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The key of the last ticket.
const LAST: &str = "{fenced-lock}:last";

static OPEN: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("cluster.lua"), include_str!("open.lua"))));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("renew.lua")));
static QUEUE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("cluster.lua"), include_str!("queue.lua"))));

/// Redis as a lock service. It may serve several sessions, which then share a connection and a thread.
///
/// # What it does not promise
///
/// Redis answers before its replicas have a write, and in many set-ups before its disk has it. After a failover or a restart, two
/// claims can hold the lock until the first one's next renewal, which finds its claim gone, or until its TTL is over if no renewal
/// succeeds. They can hold it for longer if the former primary still serves the first one. Ticket numbers can then repeat: the
/// token's [`ClusterId`] tells them apart. It changes with each failover, restart and `FLUSHALL`, and the store then refuses
/// every write until an operator accepts the new cluster. Where that is too much work, use etcd, PostgreSQL or ZooKeeper.
/// `appendonly yes` with `appendfsync always`, and `min-replicas-to-write`, make this rarer, not impossible.
///
/// Sentinels lead to the new primary after a failover: each connection and each renewal asks them, and uses the primary that most
/// of them name. So a former primary that still serves keeps a holder only until most of them name the new one; and a holder that
/// reaches fewer of them, or finds fewer running, loses the lock within its TTL. Without sentinels, end the former primary before
/// its replica takes over. Replicated sessions, queues and holders remain, and a holder's guard keeps its earlier token. A grant
/// that was not replicated is lost; its holder learns this at its next renewal. So the fence, not the lock, keeps the old holder
/// and the new one apart.
///
/// Redis measures a TTL by its wall clock, also while it is down: setting that clock forward ends leases early.
///
/// # What it asks of the server
///
/// Redis 6.0 or later, or Valkey: a primary that evicts no keys, outside of a Redis Cluster. A user needs
///
/// ```text
/// ~{fenced-lock}:* &{fenced-lock}:*
/// +info +subscribe +publish +evalsha +eval +time +get +set +del +pexpire +pttl
/// +hget +hset +hsetnx +hincrby +hdel +zadd +zrem +zscore +zcard +zrange
/// ```
///
/// and `+select` for a database other than 0. A sentinel with users needs the same user, with the right
/// `+sentinel|get-master-addr-by-name`. Redis before 6.2 has no rights on channels: leave out `&..` there.
pub type RedisBackend = AskedBackend<Redis>;

impl AskedBackend<Redis> {
    /// A backend for these options. It connects only when a session is opened, so Redis need not run yet.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if an option cannot be used, or the thread cannot be started.
    pub fn new(options: RedisOptions) -> Result<Self, BackendError> {
        let options = options.checked()?;
        let servers = options.servers()?;
        let channel = format!("{{fenced-lock}}:process:{:x}", random());
        let make = |_: &Handle, redis: &Weak<Redis>| {
            let redis = Weak::clone(redis);
            let on_message = move |push| _ = redis.upgrade().map(|redis| redis.on_message(push));
            let heard = Some(channel.clone());
            let connection = Connection::new(servers, options, heard, on_message);
            Redis { connection, channel, waiters: Waiters::default() }
        };
        Self::start("redis-lock", make)
    }
}

/// One Redis server.
pub struct Redis {
    connection: Connection,
    /// The channel for messages to this process.
    channel: String,
    waiters: Waiters<Token>,
}

/// Where a claim stands: [`WAITING`], [`GRANTED`] or gone; its ticket, or the PTTL of the holder's session; the cluster; whether
/// others wait.
type Standing = (u8, i64, String, bool);
const WAITING: u8 = 0;
const GRANTED: u8 = 1;

/// The cluster, and the claims in a queue: id, ticket, age in milliseconds, label.
type Listed = (String, Vec<ListedClaim>);
type ListedClaim = (String, i64, Option<u64>, Option<String>);

impl Redis {
    /// Reads the server's answer about a claim. Notes whether others wait.
    fn answer(&self, claim: &Claim, standing: Standing) -> Result<Answer<Token>, BackendError> {
        let (status, number, cluster, is_contended) = standing;
        let mut ask_again_in = SHORTEST_PAUSE;
        let status = match status {
            WAITING => {
                let ends_in = Duration::from_millis(number.try_into().unwrap_or_default());
                ask_again_in = ask_again_in.max(ends_in);
                ClaimStatus::Waiting
            }
            GRANTED => ClaimStatus::Granted(Token::new(cluster_of(&cluster)?, number)),
            _ => ClaimStatus::Gone,
        };
        // if the claim was granted or ended meanwhile, a message has said so, and the message is newer than this answer
        if status != ClaimStatus::Waiting && self.waiters.status(claim) == ClaimStatus::Waiting {
            self.waiters.note_contended(claim, is_contended);
        }
        Ok(Answer { status, ask_again_in })
    }

    /// Handles a message, or the end of the connection.
    fn on_message(self: Arc<Self>, push: PushInfo) {
        match push.kind {
            PushKind::Disconnection => self.waiters.missed_messages(),
            PushKind::Message => {
                let message = push.data.into_iter().nth(1);
                let message = message.and_then(|text| String::from_redis_value(text).ok());
                let Some((claim, standing)) = message.as_deref().and_then(parse_message) else {
                    return;
                };
                if let Some(known) = self.waiters.find(claim.lease, claim.number) {
                    let (_, ticket, cluster, is_contended) = standing;
                    if let Ok(cluster) = cluster_of(&cluster) {
                        self.waiters.note_message(
                            &known,
                            Token::new(cluster, ticket),
                            is_contended,
                        );
                    }
                } else if self.waiters.leases().contains_key(&claim.lease) {
                    // nobody here waits for this claim: a late request put it, or a failover brought it back
                    tokio::spawn(async move { self.release(&claim).await });
                }
            }
            _ => {}
        }
    }
}

#[async_trait]
impl Asked for Redis {
    type Token = Token;

    const PROMISES: Promises = Promises {
        token: TokenLife::Volatile,
        ends: Ends::Lease(Clock::Wall),
        loss: Loss::AtRenewal,
        standby: false,
        ..Promises::MOST
    };

    fn waiters(&self) -> &Waiters<Token> {
        &self.waiters
    }

    async fn open(&self, id: i64, ttl: Duration) -> Result<ClusterId, BackendError> {
        let mut open = OPEN.key(session_key(id));
        open.key(LAST).arg(&self.channel).arg(millis(ttl));
        cluster_of(&self.connection.run::<String>(&open).await?)
    }

    async fn renew(&self, lease: Lease, held: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let mut renew = RENEW.key(session_key(lease.id));
        renew.arg(millis(lease.ttl));
        for claim in held {
            renew.key(queue_key(&claim.name)).arg(id_of(claim));
        }
        // a short limit leaves time to notice a dead connection and to connect again
        let limit = self.connection.options.request_timeout.min(lease.ttl / 8);
        // each sentinel is connected anew, which takes several answers
        let asked = self.connection.follow(lease.ttl / 4);
        let renewed = self.connection.run_within::<Vec<u8>>(limit, &renew);
        let (followed, standings) = join(asked, renewed).await;
        followed?;
        let standings = standings?;
        // record only that others wait: a message sent after this answer may already say that nobody waits any more
        for (claim, _) in held.iter().zip(&standings).filter(|(_, standing)| **standing == 2) {
            self.waiters.note_contended(claim, true);
        }
        Ok(standings.iter().map(|standing| *standing > 0).collect())
    }

    async fn close(&self, lease: Lease, claims: Vec<Claim>) -> Result<(), BackendError> {
        self.connection.send::<()>(cmd("DEL").arg(session_key(lease.id))).await?;
        // tells the next claim of each queue
        let names: HashSet<_> = claims.into_iter().map(|claim| claim.name).collect();
        let sweep =
            async |name: Arc<str>| self.connection.run::<()>(&on_queue("sweep", &name, "")).await;
        try_join_all(names.into_iter().map(sweep)).await.map(drop)
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Token>>> {
        let (mode, held) = match mode {
            PutMode::AtEnd => ("wait", String::new()),
            PutMode::IfEmpty => ("try", String::new()),
            PutMode::After(held) => ("after", id_of(held)),
        };
        let mut put = on_queue("put", &claim.name, &id_of(claim));
        put.arg(mode).arg(&*claim.label).arg(held);
        let standing = self.connection.run::<Option<Standing>>(&put).await?;
        standing.map(|standing| self.answer(claim, standing)).transpose()
    }

    async fn ask(&self, claim: &Claim) -> Result<Answer<Token>, BackendError> {
        let ask = on_queue("ask", &claim.name, &id_of(claim));
        self.answer(claim, self.connection.run(&ask).await?)
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        let release = on_queue("release", &claim.name, &id_of(claim));
        let was_there: bool = self.connection.run(&release).await?;
        Ok(if was_there { Released::Done } else { Released::Gone })
    }

    async fn queue(&self, name: &str, most: usize) -> Result<Vec<QueueEntry>, BackendError> {
        let mut list = on_queue("list", name, "");
        // the last rank to list
        list.arg(i64::try_from(most).map_or(-1, |most| most - 1));
        let (cluster, entries) = self.connection.run::<Listed>(&list).await?;
        let cluster = cluster_of(&cluster)?;
        let entry = |(place, (id, ticket, age_ms, label)): (usize, ListedClaim)| {
            Some(QueueEntry {
                // a waiter's token changes if the server fails over before the grant
                token: (place == 0).then(|| Token::new(cluster, ticket)),
                label,
                age: age_ms.map(Duration::from_millis),
                ..QueueEntry::new(parse_id(&id)?.0, format!("{name}/{id}"))
            })
        };
        Ok(entries.into_iter().enumerate().filter_map(entry).collect())
    }
}

/// One error for all servers that failed. It has their kind if they agree, else `Transient`.
fn failure(what: &str, errors: &[BackendError]) -> BackendError {
    let kind = errors.first().map_or(BackendErrorKind::Transient, |error| error.kind);
    let is_shared = errors.iter().all(|error| error.kind == kind);
    let kind = if is_shared { kind } else { BackendErrorKind::Transient };
    let texts: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
    BackendError::new(kind, format!("{what} ({})", texts.join("; ")))
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn session_key(lease: i64) -> String {
    format!("{{fenced-lock}}:session:{lease:x}")
}

fn queue_key(name: &str) -> String {
    format!("{{fenced-lock}}:queue:{name}")
}

fn id_of(claim: &Claim) -> String {
    format!("{:x}-{}", claim.lease, claim.number)
}

fn parse_id(id: &str) -> Option<(i64, u64)> {
    let (lease, number) = id.split_once('-')?;
    Some((i64::from_str_radix(lease, 16).ok()?, number.parse().ok()?))
}

/// The claim that holds the lock now, and its standing.
fn parse_message(message: &str) -> Option<(Claim, Standing)> {
    let mut parts = message.splitn(5, ' ');
    let (lease, number) = parse_id(parts.next()?)?;
    let (ticket, cluster) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
    let is_contended = parts.next()? == "1";
    let claim = Claim::new(parts.next()?, lease, number);
    Some((claim, (GRANTED, ticket, cluster, is_contended)))
}

fn cluster_of(hex: &str) -> Result<ClusterId, BackendError> {
    u64::from_str_radix(hex, 16).map(ClusterId).map_err(BackendError::transient)
}

/// Runs an operation on the queue of `name`.
fn on_queue(what: &str, name: &str, claim: &str) -> Call {
    let mut script = QUEUE.key(queue_key(name));
    script.key(format!("{{fenced-lock}}:makers:{name}")).key(LAST);
    script.arg(what).arg(name).arg(claim);
    script
}
