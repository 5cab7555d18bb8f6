//! A lock by itself: handovers, fairness, waits, and what they cost its servers.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fenced_lock::{LockError, Promises, QueueView, Wake};
use rand::RngExt as _;
use rand_xoshiro::SplitMix64;
use serde::Serialize;
use testkit::OwnedDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::floor::Floor;
use super::seat::Seat;
use crate::error::LabError;
use demo::baselines::LockMode;

/// Nobody is to lose it.
pub(super) const LONG_TTL: Duration = Duration::from_secs(30);

/// How long a claim may take to get into a queue that cannot be seen.
const UNSEEN: Duration = Duration::from_millis(50);

/// A lock is released at any moment of a waiter that asks again and again: within this time, in milliseconds.
const POLLS: u64 = 250;

/// How long one step of a lock that works may take.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// From so many values on there is a 99th percentile.
const ENOUGH: usize = 100;

/// How long a client works with the lock in a contest.
const WORK: Duration = Duration::from_millis(1);

/// A client that has waited for so long gives up, and comes again.
const PATIENCE: Duration = Duration::from_secs(10);

/// A contest ends after this time, with fewer grants; waiters in a row must be served within it.
const LONGEST_CONTEST: Duration = Duration::from_mins(5);

/// How long a queue may take until all are in it.
const SETTLING: Duration = Duration::from_secs(2);

/// Two sessions, which clients share.
type Seats = Vec<Arc<dyn Seat>>;

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

/// What clients got who all wanted the lock all the time.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Contest {
    pub(super) clients: usize,
    pub(super) grants: usize,
    /// 1: all got the same. 1/clients: one got everything. A lottery with 10 grants for each client: about 0.91.
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
pub(super) async fn two_seats(floor: &Floor, addresses: &[String]) -> Result<Seats, LabError> {
    let mut seats: Seats = Vec::new();
    for _ in 0..2 {
        seats.push(floor.seat(addresses, LONG_TTL).await?.into());
    }
    Ok(seats)
}

pub(super) async fn leave(seats: Seats) -> Result<(), LabError> {
    for seat in seats {
        seat.close().await?;
    }
    Ok(())
}

/// Handovers with the servers this round trip away, each through a proxy of its own.
pub(super) async fn handovers(
    floor: &Floor,
    round_trip_ms: u64,
    turns: usize,
    random: &mut SplitMix64,
) -> Result<Option<Handovers>, LabError> {
    let (ways, addresses) = floor.ways().await?;
    if round_trip_ms > 0 && ways.is_empty() {
        return Ok(None);
    }
    let seats = two_seats(floor, &addresses).await?;
    for way in &ways {
        way.delay(Duration::from_millis(round_trip_ms) / 2);
    }
    let mut millis = take_turns(&seats, turns, floor.promises()?, random).await?;
    leave(seats).await?;
    millis.sort_by(f64::total_cmp);
    Ok(Some(Handovers {
        round_trip_ms,
        turns: millis.len(),
        p50_ms: share(&millis, 50),
        p99_ms: (millis.len() >= ENOUGH).then(|| share(&millis, 99)),
    }))
}

/// The value below which this share of all is, in percent; 0 for no values.
pub(super) fn share(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().unwrap_or_default()
}

/// Two sessions take turns: each one releases the lock when the other one waits for it, and asks again when that one
/// has it. Returns the time of each handover in milliseconds: from the release that is sent to the grant.
async fn take_turns(
    seats: &Seats,
    turns: usize,
    promises: Promises,
    random: &mut SplitMix64,
) -> Result<Vec<f64>, LabError> {
    const NAME: &str = "arena-turns";
    let mut millis = Vec::new();
    let mut guard = bounded("the first grant", seats[0].take(NAME)).await?;
    for turn in 0..turns {
        let next = Arc::clone(&seats[(turn + 1) % seats.len()]);
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            let guard = next.take(NAME).await?;
            Ok::<_, LockError>((guard, Instant::now()))
        });
        until_queued(&*seats[0], NAME, 2, promises.queue).await?;
        if promises.wake == Wake::Polled {
            sleep(millis_below(POLLS, random)).await;
        }
        let released_at = Instant::now();
        bounded("a release", guard.give_back()).await?;
        let granted_at;
        (guard, granted_at) = timeout(LONGEST_STEP, asking.join_next())
            .await
            .ok()
            .flatten()
            .ok_or(LabError::NotInTime { what: "a handover", seconds: LONGEST_STEP.as_secs() })?
            .map_err(ended_early)??;
        millis.push(granted_at.saturating_duration_since(released_at).as_secs_f64() * 1e3);
    }
    bounded("a release", guard.give_back()).await?;
    Ok(millis)
}

/// Waits until so many claims are in the queue, or for as long as that takes if it cannot be seen.
async fn until_queued(
    seat: &dyn Seat,
    name: &str,
    claims: usize,
    view: QueueView,
) -> Result<(), LabError> {
    if view != QueueView::Whole {
        sleep(UNSEEN).await;
        return Ok(());
    }
    let queued = async {
        while seat.queue_length(name).await? < claims {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    };
    bounded("a claim is in the queue", queued).await
}

/// A step of a lock that works.
async fn bounded<T>(
    what: &'static str,
    step: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LabError> {
    let Ok(done) = timeout(LONGEST_STEP, step).await else {
        return Err(LabError::NotInTime { what, seconds: LONGEST_STEP.as_secs() });
    };
    Ok(done?)
}

/// How many of these waiters, which come one after the other, are served after one that came later.
pub(super) async fn overtaken(
    seats: &Seats,
    waiters: usize,
    view: QueueView,
) -> Result<usize, LabError> {
    const NAME: &str = "arena-fairness";
    let holder = bounded("the first grant", seats[0].take(NAME)).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let (seat, served) = (Arc::clone(&seats[number % seats.len()]), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = seat.take(NAME).await?;
            served.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            guard.give_back().await
        });
        until_queued(&*seats[0], NAME, number + 2, view).await?;
    }
    bounded("a release", holder.give_back()).await?;
    let Ok(ended) = timeout(LONGEST_CONTEST, joined(tasks)).await else {
        let seconds = LONGEST_CONTEST.as_secs();
        return Err(LabError::NotInTime { what: "all waiters are served", seconds });
    };
    ended?;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner);
    let is_late =
        |(place, number): (usize, &usize)| served[..place].iter().any(|other| other > number);
    Ok(served.iter().enumerate().filter(|served| is_late(*served)).count())
}

/// Starts servers that count requests.
pub(super) async fn counting(lock: LockMode, parent: &OwnedDir) -> Result<Floor, LabError> {
    let mut floor = Floor::start(lock, 1, parent).await?;
    floor.count_requests().await?;
    Ok(floor)
}

/// What the clients of a contest got, and how long they waited.
#[derive(Default)]
struct Waits {
    /// The grants of each client.
    grants: Vec<u32>,
    millis: Vec<f64>,
    gave_up: usize,
}

/// Clients want the lock all the time, until there were so many grants.
pub(super) async fn contest(
    floor: &Floor,
    clients: usize,
    grants: usize,
) -> Result<Contest, LabError> {
    const NAME: &str = "arena-contest";
    let seats = two_seats(floor, &floor.servers.addresses()).await?;
    let waits = Waits { grants: vec![0; clients], ..Waits::default() };
    let waits = Arc::new(Mutex::new(waits));
    let cost = cost_of_asking(floor).await;
    let before = floor.requests().await;
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let (seat, waits) = (Arc::clone(&seats[client % seats.len()]), Arc::clone(&waits));
        tasks.spawn(async move {
            loop {
                let waiting = Waiting { since: Instant::now(), waits: Arc::clone(&waits) };
                let waits = || waits.lock().unwrap_or_else(PoisonError::into_inner);
                let guard = loop {
                    match timeout(PATIENCE, seat.take(NAME)).await {
                        Ok(guard) => break guard?,
                        // it asks again, and has waited since the first time
                        Err(_) => waits().gave_up += 1,
                    }
                };
                drop(waiting);
                let all = {
                    let mut waits = waits();
                    waits.grants[client] += 1;
                    waits.grants.iter().sum::<u32>()
                };
                if usize::try_from(all).is_ok_and(|all| all >= grants) {
                    return guard.give_back().await;
                }
                sleep(WORK).await;
                guard.give_back().await?;
            }
        });
    }
    // the first one that ends has seen enough grants; the others wait, and are noted as they are dropped
    if let Ok(Some(ended)) = timeout(LONGEST_CONTEST, tasks.join_next()).await {
        ended.map_err(ended_early)??;
    }
    let after = floor.requests().await;
    tasks.shutdown().await;
    leave(seats).await?;
    let Waits { grants: each, mut millis, gave_up } =
        std::mem::take(&mut *waits.lock().unwrap_or_else(PoisonError::into_inner));
    let sum: f64 = each.iter().copied().map(f64::from).sum();
    let squares: f64 = each.iter().map(|grants| f64::from(*grants).powi(2)).sum();
    millis.sort_by(f64::total_cmp);
    Ok(Contest {
        clients,
        grants: each.iter().sum::<u32>() as usize,
        jain: sum * sum / (squares * count(clients)).max(1.0),
        wait_p50_ms: share(&millis, 50),
        wait_p99_ms: share(&millis, 99),
        longest_wait_ms: millis.last().copied().unwrap_or_default(),
        gave_up,
        requests_per_grant: between(before, after, cost).map(|requests| requests / sum),
    })
}

/// Notes a wait when it ends, however it ends.
struct Waiting {
    since: Instant,
    waits: Arc<Mutex<Waits>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.millis.push(self.since.elapsed().as_secs_f64() * 1e3);
    }
}

/// Requests a second while one client holds the lock and these wait for it.
pub(super) async fn idle_requests(
    floor: &Floor,
    waiters: usize,
    time: Duration,
) -> Result<Option<f64>, LabError> {
    const NAME: &str = "arena-idle";
    let seats = two_seats(floor, &floor.servers.addresses()).await?;
    let cost = cost_of_asking(floor).await;
    let holder = seats[0].take(NAME).await?;
    let mut tasks = JoinSet::new();
    for waiter in 0..waiters {
        let seat = Arc::clone(&seats[waiter % seats.len()]);
        tasks.spawn(async move {
            let _guard = seat.take(NAME).await?;
            pending::<Result<(), LockError>>().await
        });
    }
    sleep(SETTLING).await;
    let before = floor.requests().await;
    sleep(time).await;
    let after = floor.requests().await;
    // one that waits does not end
    if let Some(ended) = tasks.try_join_next() {
        ended.map_err(ended_early)??;
    }
    tasks.shutdown().await;
    holder.give_back().await?;
    leave(seats).await?;
    Ok(between(before, after, cost).map(|requests| requests / time.as_secs_f64()))
}

/// How many requests it takes to ask for their number.
async fn cost_of_asking(floor: &Floor) -> Option<u64> {
    let first = floor.requests().await?;
    Some(floor.requests().await?.saturating_sub(first))
}

/// The requests between two looks, without that of the second look.
#[allow(clippy::cast_precision_loss, reason = "counts of some minutes")]
fn between(before: Option<u64>, after: Option<u64>, cost: Option<u64>) -> Option<f64> {
    Some(after?.saturating_sub(before? + cost?) as f64)
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn count(count: usize) -> f64 {
    count as f64
}

async fn joined(mut tasks: JoinSet<Result<(), LockError>>) -> Result<(), LabError> {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(ended_early)??;
    }
    Ok(())
}

fn ended_early(error: tokio::task::JoinError) -> LabError {
    LabError::System { what: "a client ended early", source: error.into() }
}

/// A number of milliseconds below `limit`.
pub(super) fn millis_below(limit: u64, random: &mut SplitMix64) -> Duration {
    Duration::from_millis(random.random_range(0..limit))
}
