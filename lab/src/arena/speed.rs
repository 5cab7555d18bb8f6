//! A lock by itself: handovers, fairness, waits, and what they cost its servers.

use std::cell::RefCell;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fenced_lock::{Promises, QueueView, Wake};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use rand::RngExt as _;
use rand_xoshiro::SplitMix64;
use serde::Serialize;
use testkit::wait::{in_time, until};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::contestants::Servers;
use crate::clients::{Client, LockSession, proxies_to};
use crate::experiment::{float, quantile};

/// The TTL: no client is to lose its lock.
pub(super) const LONG_TTL: Duration = Duration::from_secs(30);

/// How long a claim may take to get into a queue that cannot be seen.
const UNSEEN: Duration = Duration::from_millis(50);

/// The time, in milliseconds, within which a lock is released: at any moment between two requests of a waiter that polls.
const POLLS: u64 = 250;

/// How long one step of a lock that works may take.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// The fewest values that have a 99th percentile.
const ENOUGH: usize = 100;

/// How long a client works with the lock in a contest.
const WORK: Duration = Duration::from_millis(1);

/// How long a client waits before it gives up and asks again.
const PATIENCE: Duration = Duration::from_secs(10);

/// A contest ends after this time, with fewer grants; waiters in a row must be served within it.
const LONGEST_CONTEST: Duration = Duration::from_mins(5);

/// How long a queue may take until all are in it.
const SETTLING: Duration = Duration::from_secs(2);

/// Two sessions, which clients share.
type Sessions = Vec<Box<dyn LockSession>>;

/// The handovers at one distance.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Handovers {
    /// The round trip to the servers, in milliseconds.
    pub(super) round_trip_ms: u64,
    /// How many were timed.
    pub(super) turns: usize,
    pub(super) p50_ms: f64,
    /// `None`: too few.
    pub(super) p99_ms: Option<f64>,
}

/// The result of clients that all asked for the lock all the time.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Contest {
    pub(super) clients: usize,
    pub(super) grants: usize,
    /// Jain's index. 1: all got the same number of grants. 1/clients: one got all grants. A lottery with 10 grants for each client: about 0.91.
    pub(super) jain: f64,
    pub(super) wait_p50_ms: f64,
    pub(super) wait_p99_ms: f64,
    /// From the first time that a client asks to its grant, also if it gave up meanwhile. Who still waits at the end
    /// counts with the time until then.
    pub(super) longest_wait_ms: f64,
    /// How often a client gave up, and asked again.
    pub(super) gave_up: usize,
    pub(super) requests_per_grant: Option<f64>,
}

/// Two sessions, each with a connection of its own.
async fn two_sessions(servers: &Servers, addresses: &[String]) -> Result<Sessions> {
    let mut sessions: Sessions = Vec::new();
    for _ in 0..2 {
        sessions.push(servers.lock.open(addresses, LONG_TTL).await?);
    }
    Ok(sessions)
}

/// A client with this number, which shares one of the sessions.
fn client(sessions: &Sessions, number: usize, name: &str) -> Result<Box<dyn Client>> {
    sessions[number % sessions.len()].client(name)
}

async fn close(sessions: Sessions) -> Result<()> {
    for session in sessions {
        session.close().await?;
    }
    Ok(())
}

/// Handovers with the servers this round trip away, each through a proxy of its own.
pub(super) async fn handovers(
    servers: &Servers,
    round_trip_ms: u64,
    turns: usize,
    random: &mut SplitMix64,
) -> Result<Option<Handovers>> {
    let (proxies, addresses) = proxies_to(&servers.all.addresses()).await?;
    if round_trip_ms > 0 && proxies.is_empty() {
        return Ok(None);
    }
    let sessions = two_sessions(servers, &addresses).await?;
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(round_trip_ms) / 2);
    }
    let promises = servers.lock.promises(&addresses)?;
    let millis = take_turns(&sessions, turns, promises, random).await?;
    close(sessions).await?;
    let percentile = |percent| quantile(millis.iter().copied(), percent);
    Ok(Some(Handovers {
        round_trip_ms,
        turns: millis.len(),
        p50_ms: percentile(50).unwrap_or_default(),
        p99_ms: percentile(99).filter(|_| millis.len() >= ENOUGH),
    }))
}

/// Two sessions take turns: each one releases the lock when the other one waits for it, and asks again when that one
/// has it. Returns the time of each handover in milliseconds: from the release that is sent to the grant.
async fn take_turns(
    sessions: &Sessions,
    turns: usize,
    promises: Promises,
    random: &mut SplitMix64,
) -> Result<Vec<f64>> {
    const NAME: &str = "arena-turns";
    let mut millis = Vec::new();
    let (mut looking, mut holder) = (client(sessions, 0, NAME)?, client(sessions, 0, NAME)?);
    bounded("the first grant", holder.lock()).await?;
    for turn in 0..turns {
        let mut next = client(sessions, turn + 1, NAME)?;
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            next.lock().await?;
            anyhow::Ok((next, Instant::now()))
        });
        until_queued(&mut *looking, 2, promises.queue).await?;
        if promises.wake == Wake::Polled {
            sleep(millis_below(POLLS, random)).await;
        }
        let released_at = Instant::now();
        bounded("a release", holder.unlock()).await?;
        let granted = bounded("a handover", async {
            asking.join_next().await.expect("one client was spawned")?
        });
        let granted_at;
        (holder, granted_at) = granted.await?;
        millis.push(granted_at.saturating_duration_since(released_at).as_secs_f64() * 1e3);
    }
    bounded("a release", holder.unlock()).await?;
    Ok(millis)
}

/// Waits until so many claims are in the queue, or for as long as that takes if it cannot be seen.
async fn until_queued(looking: &mut dyn Client, claims: usize, view: QueueView) -> Result<()> {
    if view != QueueView::Whole {
        sleep(UNSEEN).await;
        return Ok(());
    }
    let queued = async || Ok(looking.queue_length().await? >= claims);
    until("a claim is in the queue", LONGEST_STEP, queued).await
}

/// Waits for a step of a lock that works.
async fn bounded<T>(what: &'static str, step: impl Future<Output = Result<T>>) -> Result<T> {
    in_time(what, LONGEST_STEP, step).await
}

/// How many of these waiters, which come one after the other, are served after one that came later.
pub(super) async fn overtaken(servers: &Servers, waiters: usize) -> Result<usize> {
    const NAME: &str = "arena-fairness";
    let addresses = servers.all.addresses();
    let view = servers.lock.promises(&addresses)?.queue;
    let sessions = two_sessions(servers, &addresses).await?;
    let (mut looking, mut holder) = (client(&sessions, 0, NAME)?, client(&sessions, 0, NAME)?);
    bounded("the first grant", holder.lock()).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let (mut client, served) = (client(&sessions, number, NAME)?, Arc::clone(&served));
        tasks.spawn(async move {
            client.lock().await?;
            served.lock().push(number);
            client.unlock().await
        });
        until_queued(&mut *looking, number + 2, view).await?;
    }
    bounded("a release", holder.unlock()).await?;
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    };
    in_time("all waiters are served", LONGEST_CONTEST, all).await?;
    close(sessions).await?;
    let served = served.lock();
    let is_late =
        |(place, number): (usize, &usize)| served[..place].iter().any(|other| other > number);
    Ok(served.iter().enumerate().filter(|served| is_late(*served)).count())
}

/// What the clients of a contest got, and how long they waited.
struct Waits {
    /// Since when each client waits, if it does.
    since: Vec<Option<Instant>>,
    grants: Vec<u32>,
    millis: Vec<f64>,
    gave_up: usize,
}

impl Waits {
    /// A client does not wait any more. One that waits still at the end counts as well.
    fn note(&mut self, client: usize) {
        let waited = self.since[client].take().map(|since| since.elapsed().as_secs_f64() * 1e3);
        self.millis.extend(waited);
    }
}

/// Clients ask for the lock all the time, until there were so many grants.
pub(super) async fn contest(servers: &Servers, clients: usize, grants: usize) -> Result<Contest> {
    const NAME: &str = "arena-contest";
    let sessions = two_sessions(servers, &servers.all.addresses()).await?;
    let waits = RefCell::new(Waits {
        since: vec![None; clients],
        grants: vec![0; clients],
        millis: Vec::new(),
        gave_up: 0,
    });
    let contend = async |number: usize| {
        let mut lock = client(&sessions, number, NAME)?;
        loop {
            waits.borrow_mut().since[number] = Some(Instant::now());
            // a client that gives up asks again: its wait counts from the first time
            let granted = loop {
                match timeout(PATIENCE, lock.lock()).await {
                    Ok(granted) => break granted,
                    Err(_) => waits.borrow_mut().gave_up += 1,
                }
            };
            granted?;
            waits.borrow_mut().note(number);
            waits.borrow_mut().grants[number] += 1;
            let all: u32 = waits.borrow().grants.iter().sum();
            if usize::try_from(all).is_ok_and(|all| all >= grants) {
                return lock.unlock().await;
            }
            sleep(WORK).await;
            lock.unlock().await?;
        }
    };
    // the first one that ends has seen enough grants
    let mut contending: FuturesUnordered<_> = (0..clients).map(contend).collect();
    let ended = timeout(LONGEST_CONTEST, contending.next());
    let (ended, requests) = requests_during(servers, async { Ok(ended.await) }).await?;
    if let Ok(Some(ended)) = ended {
        ended?;
    }
    drop(contending);
    let mut waits = waits.into_inner();
    (0..clients).for_each(|client| waits.note(client));
    close(sessions).await?;
    let Waits { grants: each, millis, gave_up, .. } = waits;
    let sum: f64 = each.iter().copied().map(f64::from).sum();
    let squares: f64 = each.iter().map(|grants| f64::from(*grants).powi(2)).sum();
    let percentile = |percent| quantile(millis.iter().copied(), percent).unwrap_or_default();
    Ok(Contest {
        clients,
        grants: each.iter().sum::<u32>() as usize,
        jain: sum * sum / (squares * float(clients)).max(1.0),
        wait_p50_ms: percentile(50),
        wait_p99_ms: percentile(99),
        longest_wait_ms: percentile(100),
        gave_up,
        requests_per_grant: requests.map(|requests| requests / sum),
    })
}

/// Requests a second while one client holds the lock and these wait for it.
pub(super) async fn idle_requests(
    servers: &Servers,
    waiters: usize,
    time: Duration,
) -> Result<Option<f64>> {
    const NAME: &str = "arena-idle";
    let sessions = two_sessions(servers, &servers.all.addresses()).await?;
    let mut holder = client(&sessions, 0, NAME)?;
    holder.lock().await?;
    let mut tasks = JoinSet::new();
    for waiter in 0..waiters {
        let mut client = client(&sessions, waiter, NAME)?;
        tasks.spawn(async move {
            client.lock().await?;
            pending::<Result<()>>().await
        });
    }
    sleep(SETTLING).await;
    let passed = async {
        sleep(time).await;
        Ok(())
    };
    let ((), requests) = requests_during(servers, passed).await?;
    // a client that waits does not end
    if let Some(ended) = tasks.try_join_next() {
        ended??;
    }
    tasks.shutdown().await;
    holder.unlock().await?;
    close(sessions).await?;
    Ok(requests.map(|requests| requests / time.as_secs_f64()))
}

/// Takes a step, and returns how many requests the servers got meanwhile, if they count them.
async fn requests_during<T>(
    servers: &Servers,
    step: impl Future<Output = Result<T>>,
) -> Result<(T, Option<f64>)> {
    let first = servers.requests().await;
    let before = servers.requests().await;
    let done = step.await?;
    let after = servers.requests().await;
    // the question is a request as well
    let counted = || Some(float((after? + first?).saturating_sub(2 * before?)));
    Ok((done, counted()))
}

/// A number of milliseconds below `limit`.
pub(super) fn millis_below(limit: u64, random: &mut SplitMix64) -> Duration {
    Duration::from_millis(random.random_range(0..limit))
}
