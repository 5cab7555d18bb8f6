//! Measures of a lock alone: handovers, fairness, waits, and the requests that they cost the servers.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Result;
use fenced_lock::Wake;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rand::RngExt as _;
use rand_xoshiro::SplitMix64;
use serde::Serialize;
use testkit::wait::until;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::clients::{Client, Clients, proxies_to};
use crate::experiment::{float, quantile};
use crate::locks::{Servers, open};

/// The TTL for measures in which no client may lose its lock.
pub(super) const LONG_TTL: Duration = Duration::from_secs(30);

/// How long a claim takes to get into a queue that cannot be seen.
const UNSEEN: Duration = Duration::from_millis(50);

/// A lock is released at a random time within this many milliseconds, so at any moment between two requests of a polling waiter.
const POLLS: u64 = 250;

/// How long a client works with the lock in a contest.
const WORK: Duration = Duration::from_millis(1);

/// A contest ends after this time, even with fewer grants; handovers, and waiters in a row, must end within it.
pub(super) const LONGEST: Duration = Duration::from_mins(5);

/// How long it may take until all claims are in a queue.
const SETTLING: Duration = Duration::from_secs(2);

/// The handovers at one distance.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Handovers {
    /// The round trip to the servers, in milliseconds.
    pub(super) round_trip_ms: u64,
    pub(super) turns: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// The result of clients that all ask for the lock all the time, and of as many clients that come one after the other.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Contest {
    pub(super) clients: usize,
    /// How many of the clients that came one after the other were served after a later client.
    pub(super) overtaken: usize,
    /// Requests a second while one client holds the lock and all others wait.
    pub(super) idle_requests: Option<f64>,
    /// Jain's index: 1 if all clients got the same number of grants, 1/clients if one client got them all. A lottery with 10
    /// grants for each client gives about 0.91.
    pub(super) jain: f64,
    pub(super) wait_p50_ms: f64,
    pub(super) wait_p99_ms: f64,
    /// The longest wait. A client that still waits at the end counts with its time until then.
    pub(super) longest_wait_ms: f64,
    pub(super) requests_per_grant: Option<f64>,
}

/// Two sessions, each with a connection that its clients share, and a lock that nobody else uses.
struct TwoSessions {
    clients: [Clients; 2],
    name: String,
}

impl TwoSessions {
    async fn open(servers: &Servers, addresses: &[String]) -> Result<Self> {
        let open = || open(servers.lock, addresses, LONG_TTL);
        let clients = [open().await?, open().await?];
        Ok(Self { clients, name: format!("arena-{}", Uuid::new_v4().simple()) })
    }

    /// The client with this number, which shares one of the sessions.
    fn client(&self, number: usize) -> Result<Box<dyn Client>> {
        self.clients[number % self.clients.len()](&self.name)
    }
}

/// Measures handovers, with this round trip to each server through a proxy. Two sessions take turns: each releases the lock
/// when the other one waits for it, and asks again when the other one has it. A handover takes from the sending of the release
/// to the grant.
pub(super) async fn handovers(
    servers: &Servers,
    round_trip_ms: u64,
    turns: usize,
    random: &mut SplitMix64,
) -> Result<Handovers> {
    let (proxies, addresses) = proxies_to(&servers.addresses()).await?;
    let sessions = TwoSessions::open(servers, &addresses).await?;
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(round_trip_ms) / 2);
    }
    let promises = servers.promises;
    let mut millis = Vec::new();
    let (mut looking, mut holder) = (sessions.client(0)?, sessions.client(0)?);
    holder.lock().await?;
    for turn in 0..turns {
        let mut next = sessions.client(turn + 1)?;
        let asking = AbortOnDropHandle::new(tokio::spawn(async move {
            next.lock().await?;
            anyhow::Ok((next, Instant::now()))
        }));
        until_queued(&mut *looking, 2, promises.shows_waiters).await?;
        if promises.wake == Wake::Polled {
            sleep(millis_below(POLLS, random)).await;
        }
        let released_at = Instant::now();
        holder.unlock().await?;
        let granted_at;
        (holder, granted_at) = asking.await??;
        millis.push(granted_at.saturating_duration_since(released_at).as_secs_f64() * 1e3);
    }
    holder.unlock().await?;
    let percentile = |percent| quantile(millis.iter().copied(), percent).unwrap_or_default();
    let (p50_ms, p99_ms) = (percentile(50), percentile(99));
    Ok(Handovers { round_trip_ms, turns: millis.len(), p50_ms, p99_ms })
}

/// Waits until this many claims are in the queue. If the queue cannot be seen, waits as long as that may take.
async fn until_queued(looking: &mut dyn Client, claims: usize, are_seen: bool) -> Result<()> {
    if !are_seen {
        sleep(UNSEEN).await;
        return Ok(());
    }
    let queued = async || Ok(looking.queue_length().await? >= claims);
    until("a claim is in the queue", LONGEST, queued).await
}

/// Returns how many of these waiters, which come one after the other, are served after a later one, and the requests a second
/// while one client holds the lock and all waiters wait.
async fn waiters_in_row(
    servers: &Servers,
    waiters: usize,
    time: Duration,
) -> Result<(usize, Option<f64>)> {
    let sessions = TwoSessions::open(servers, &servers.addresses()).await?;
    let (mut looking, mut holder) = (sessions.client(0)?, sessions.client(0)?);
    holder.lock().await?;
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let mut client = sessions.client(number)?;
        tasks.spawn(async move {
            client.lock().await?;
            let granted = Instant::now();
            client.unlock().await?;
            Ok((granted, number))
        });
        until_queued(&mut *looking, number + 2, servers.promises.shows_waiters).await?;
    }
    sleep(SETTLING).await;
    let ((), requests) = requests_during(servers, sleep(time)).await;
    holder.unlock().await?;
    let served = tasks.join_all().await.into_iter();
    let mut served = served.collect::<Result<Vec<_>>>()?;
    served.sort_unstable();
    let is_late = |place: &usize| served[..*place].iter().any(|other| other.1 > served[*place].1);
    let overtaken = (0..served.len()).filter(is_late).count();
    Ok((overtaken, requests.map(|requests| requests / time.as_secs_f64())))
}

/// Records on drop how long a client waited, even if it is still waiting.
struct Wait<'a>(Instant, &'a RefCell<Vec<f64>>);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.1.borrow_mut().push(self.0.elapsed().as_secs_f64() * 1e3);
    }
}

/// Clients ask for the lock all the time, until this many grants were given. Then they wait in a row, all of them together for
/// the time `waiting`.
pub(super) async fn contest(
    servers: &Servers,
    clients: usize,
    grants: usize,
    waiting: Duration,
) -> Result<Contest> {
    let sessions = TwoSessions::open(servers, &servers.addresses()).await?;
    let (waits, each) = (RefCell::default(), RefCell::new(vec![0_u32; clients]));
    let contend = async |number: usize| {
        let mut lock = sessions.client(number)?;
        loop {
            let wait = Wait(Instant::now(), &waits);
            lock.lock().await?;
            drop(wait);
            each.borrow_mut()[number] += 1;
            if float(each.borrow().iter().sum::<u32>()) >= float(grants) {
                return lock.unlock().await;
            }
            sleep(WORK).await;
            lock.unlock().await?;
        }
    };
    // the first client that ends has seen the last grant
    let mut contending: FuturesUnordered<_> = (0..clients).map(contend).collect();
    let ended = timeout(LONGEST, contending.next());
    let (ended, requests) = requests_during(servers, ended).await;
    if let Ok(Some(ended)) = ended {
        ended?;
    }
    drop(contending);
    let (overtaken, idle_requests) = waiters_in_row(servers, clients, waiting).await?;
    let (millis, each) = (waits.into_inner(), each.into_inner());
    let sum: f64 = each.iter().copied().map(f64::from).sum();
    let squares: f64 = each.iter().map(|grants| f64::from(*grants).powi(2)).sum();
    let percentile = |percent| quantile(millis.iter().copied(), percent).unwrap_or_default();
    Ok(Contest {
        clients,
        overtaken,
        idle_requests,
        jain: sum * sum / (squares * float(clients)).max(1.0),
        wait_p50_ms: percentile(50),
        wait_p99_ms: percentile(99),
        longest_wait_ms: percentile(100),
        requests_per_grant: requests.map(|requests| requests / sum),
    })
}

/// Carries out a step. Returns also how many requests the servers got meanwhile, if they count requests.
async fn requests_during<T>(servers: &Servers, step: impl Future<Output = T>) -> (T, Option<f64>) {
    let first = servers.requests().await;
    let before = servers.requests().await;
    let done = step.await;
    let after = servers.requests().await;
    // reading the counter is a request as well
    let counted = || Some(float((after? + first?).saturating_sub(2 * before?)));
    (done, counted())
}

pub(super) fn millis_below(limit: u64, random: &mut SplitMix64) -> Duration {
    Duration::from_millis(random.random_range(0..limit))
}
