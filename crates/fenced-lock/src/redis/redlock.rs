//! Redlock: a lock on several independent Redis servers.
//!
//! The algorithm is the one of <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>: a claim holds the
//! lock `NAME` while the key `NAME` has the claim's value at more than half of the nodes. All clients that follow it exclude
//! each other, such as the crate `rslock` and Go's redsync. All nodes are asked in parallel, and a majority decides, so a node
//! that hangs delays nothing. A failed attempt is undone at every node, and repeated after 50 to 250 ms with another value, so
//! that a deletion that reaches a node late cannot delete the key of a later attempt.
//!
//! A renewal extends the key at each node. While more than half of the nodes still have the key, the renewal also puts it back
//! where it is missing.

use std::collections::{HashMap, HashSet};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::cmd;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Connection;
use super::script::Script;
use super::{failure, id_of, millis, parse_id};
use crate::asked::{Answered, Asked, AskedBackend};
use crate::backoff::Backoff;
use crate::random::random;
use crate::waiters::{Answer, Waiters};
use crate::{
    BackendError, BackendErrorKind, Claim, ClaimStatus, ClusterId, Lease, Loss, Promises, PutMode,
    QueueEntry, RedisOptions, Released, Unfenced,
};

static NODE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redlock.lua")));

/// Redlock on three or five Redis servers, as a lock service without tokens.
///
/// ```no_run
/// use std::{sync::Arc, time::Duration};
/// use fenced_lock::{LockError, RedisOptions, RedlockBackend, SessionKeeper, SessionOptions};
///
/// #[tokio::main]
/// async fn main() -> Result<(), LockError> {
///     let node = |address: &str| {
///         let mut options = RedisOptions::new(address);
///         options.request_timeout = Duration::from_millis(400);
///         options
///     };
///     let nodes = ["redis://a:6379", "redis://b:6379", "redis://c:6379"].map(node);
///     let redlock = RedlockBackend::new(nodes)?;
///     let locks = SessionKeeper::start(Arc::new(redlock), SessionOptions::new(Duration::from_secs(8)));
///     locks.with("nightly-report", async |_| println!("mine, without a token")).await?;
///     locks.close().await;
///     Ok(())
/// }
/// ```
///
/// The key is the lock's name itself: nothing else may use this key.
///
/// # What it does not promise
///
/// There is no queue: whoever asks at the right moment gets the lock. There is **no token**: the nodes share no number that
/// grows, so nothing refuses the write of a holder that was paused beyond its lease. For work where two holders at once do harm,
/// use a lock with a token: Kleppmann, "How to do distributed locking" (2016).
///
/// Each node measures the TTL by its wall clock. A node that lost its keys must stay away for the longest TTL in use, or sync
/// each write to its disk (`appendonly yes`, `appendfsync always`). Otherwise two claims can each have a majority.
///
/// # What it asks of the nodes
///
/// Three or five primaries of Redis 6.0 or later, or Valkey, without replicas, that evict no keys. A user needs `+info +evalsha
/// +eval +get +set +del +pexpire`, and the keys of its locks.
///
/// A minority of the nodes may be away at any time. Opening a session fails if a node answers but can never take part, such as
/// a server of another kind or one that refuses the rights: otherwise the mistake would go unnoticed until the next node fails.
pub type RedlockBackend = AskedBackend<Redlock>;

/// How many tasks may repeat deletions at a time.
const MOST_CLEARING: usize = 1000;

/// Independent nodes. They store claims, and no leases.
pub struct Redlock {
    nodes: Vec<Arc<Connection>>,
    /// The longest that an attempt may take.
    patience: Duration,
    waiters: Waiters<Unfenced>,
    /// The latest attempt of each claim, until the attempt is undone.
    attempts: Mutex<HashMap<Claim, Attempt>>,
    /// A permit for each task that repeats a deletion.
    clearing: Semaphore,
    /// For tasks that outlive a request.
    this: Weak<Self>,
}

/// Why an attempt failed.
const FEW: &str = "less than half of the nodes agree";

/// A node's answers, one for each name.
type Done = Vec<u8>;
const OTHERS: u8 = 0;
const OWN: u8 = 1;
const MISSING: u8 = 2;

/// One attempt of a claim to take the lock.
#[derive(Clone, Debug, PartialEq)]
struct Attempt {
    claim: Claim,
    number: u64,
}

impl Attempt {
    fn new(claim: &Claim) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { claim: claim.clone(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The key's value at the nodes.
    fn value(&self) -> String {
        format!("{}.{} {}", id_of(&self.claim), self.number, self.claim.label)
    }
}

type ByNode<A> = (Arc<Connection>, A);

/// The nodes' answers, in the order in which they arrive.
type Answers<A> = UnboundedReceiver<Result<ByNode<A>, BackendError>>;

impl AskedBackend<Redlock> {
    /// A backend on these nodes. It connects only when a session is opened.
    ///
    /// The largest `request_timeout` limits the time of an attempt. Keys outlive their session by this time, so it should be
    /// small compared with the TTL: redsync uses a twentieth.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if there are fewer than three nodes, an option cannot be used,
    /// or the thread cannot be started.
    pub fn new(nodes: impl IntoIterator<Item = RedisOptions>) -> Result<Self, BackendError> {
        let nodes = nodes.into_iter().map(RedisOptions::checked).collect::<Result<Vec<_>, _>>()?;
        let patience = nodes.iter().map(|node| node.request_timeout).max().unwrap_or_default();
        if nodes.len() < 3 {
            return Err(BackendError::permanent("Redlock takes three nodes, or five"));
        }
        let servers = |options: RedisOptions| Ok((options.servers()?, options));
        let nodes = nodes.into_iter().map(servers).collect::<Result<Vec<_>, BackendError>>()?;
        let make = |_: &Handle, this: &Weak<Redlock>| {
            let this = Weak::clone(this);
            let node = |(servers, options)| Arc::new(Connection::new(servers, options, None, drop));
            let nodes = nodes.into_iter().map(node).collect();
            let (waiters, clearing) = (Waiters::default(), Semaphore::new(MOST_CLEARING));
            Redlock { nodes, patience, waiters, attempts: Mutex::default(), clearing, this }
        };
        Self::start("redlock", make)
    }
}

/// The answer to a claim. A claim without the lock asks again after 50 to 250 ms: this pause times 0.5 to 1.
fn answer(is_granted: bool) -> Answer<Unfenced> {
    let status = if is_granted { ClaimStatus::Granted(Unfenced) } else { ClaimStatus::Waiting };
    Answer { status, ask_again_in: Duration::from_millis(100 + random() % 151) }
}

impl Redlock {
    fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How long a key lives: the session's TTL, the time of an attempt, and an allowance for clocks that run at different speeds.
    fn lifetime(&self, ttl: Duration) -> Duration {
        ttl + ttl / 100 + Duration::from_millis(2) + self.patience
    }

    fn lifetime_of(&self, lease: i64) -> Result<Duration, BackendError> {
        self.waiters
            .leases()
            .get(&lease)
            .map(|ttl| self.lifetime(*ttl))
            .ok_or_else(BackendError::lease_gone)
    }

    /// Sends a request to all nodes. Each request runs to its end, even if nobody waits for the answers any more.
    fn ask_all<A: Send + 'static, F>(&self, ask: impl Fn(Arc<Connection>) -> F) -> Answers<A>
    where
        F: Future<Output = Result<A, BackendError>> + Send + 'static,
    {
        let (sender, answers) = unbounded_channel();
        for node in &self.nodes {
            let (node, sender, asked) = (Arc::clone(node), sender.clone(), ask(Arc::clone(node)));
            tokio::spawn(async move {
                let answer = match asked.await {
                    Ok(answer) => Ok((node, answer)),
                    Err(error) => {
                        let words = format!("{}: {error:#}", node.options.address());
                        Err(BackendError::in_words(error.kind, words, error))
                    }
                };
                // an error means that nobody waits for the answer any more
                drop(sender.send(answer));
            });
        }
        answers
    }

    fn run_all(
        &self,
        what: &'static str,
        lifetime: Duration,
        attempts: &[Attempt],
    ) -> Answers<Done> {
        self.ask_all(|node| {
            let (this, attempts) = (Weak::clone(&self.this), attempts.to_vec());
            async move {
                let done = run(&node, what, lifetime, &attempts).await;
                if let (Err(_), "delete", Some(this)) = (&done, what, this.upgrade()) {
                    tokio::spawn(this.clear(node, lifetime, attempts));
                }
                done
            }
        })
    }

    /// Whether the attempt was replaced or undone, or its claim is gone.
    fn is_over(&self, attempt: &Attempt) -> bool {
        self.attempts.lock().get(&attempt.claim) != Some(attempt)
            || self.waiters.status(&attempt.claim) == ClaimStatus::Gone
    }

    /// Deletes the keys of the attempts that are over. Repeats this until the node answers or the keys have expired, because an
    /// earlier request may reach the node late. If [`MOST_CLEARING`] tasks do this already, the keys are left to expire.
    async fn clear(
        self: Arc<Self>,
        node: Arc<Connection>,
        lifetime: Duration,
        mut attempts: Vec<Attempt>,
    ) {
        let Ok(_room) = self.clearing.try_acquire() else { return };
        attempts.retain(|attempt| self.is_over(attempt));
        let (ends_at, mut backoff) = (Instant::now() + lifetime, Backoff::default());
        while !attempts.is_empty()
            && Instant::now() < ends_at
            && run(&node, "delete", lifetime, &attempts).await.is_err()
        {
            sleep(backoff.next()).await;
        }
    }

    /// Runs an operation for these attempts at all nodes, until a majority has answered and it is certain for each attempt
    /// whether a majority of the answers satisfies `says`. Returns this, and the answers so far.
    async fn decide(
        &self,
        what: &'static str,
        lifetime: Duration,
        attempts: &[Attempt],
        says: fn(u8) -> bool,
    ) -> (Result<Vec<bool>, BackendError>, Vec<ByNode<Done>>) {
        let (all, quorum) = (self.nodes.len(), self.quorum());
        let verdict = |done: &[ByNode<Done>], attempt: usize| {
            let agree = done.iter().filter(|(_, done)| says(done[attempt])).count();
            let is_decided = agree >= quorum || done.len() - agree > all - quorum;
            is_decided.then_some(agree >= quorum)
        };
        let verdicts = |done: &[ByNode<Done>]| -> Option<Vec<bool>> {
            let verdicts = (0..attempts.len()).map(|attempt| verdict(done, attempt));
            verdicts.collect::<Option<_>>().filter(|_| done.len() >= quorum)
        };
        let answers = self.run_all(what, lifetime, attempts);
        let (done, errors) = gather(answers, |done| verdicts(done).is_some()).await;
        (verdicts(&done).ok_or_else(|| failure(FEW, &errors)), done)
    }

    /// Tries once to take the lock. Undoes a failed attempt.
    async fn attempt(&self, claim: &Claim) -> Result<bool, BackendError> {
        let lifetime = self.lifetime_of(claim.lease)?;
        let attempt = Attempt::new(claim);
        let (began_at, attempts) = (Instant::now(), slice::from_ref(&attempt));
        let earlier = self.attempts.lock().insert(claim.clone(), attempt.clone());
        if let Some(earlier) = earlier {
            // a call that was cancelled left the earlier attempt behind
            drop(self.run_all("delete", lifetime, &[earlier]));
        }
        let (decided, _) = self.decide("set", lifetime, attempts, |done| done != OTHERS).await;
        // a late success counts as a failure: the session would believe in the lock for too long
        if decided == Ok(vec![true]) && began_at.elapsed() <= self.patience {
            return Ok(true);
        }
        self.forget(&attempt);
        // these use the same connections, so they run after the requests before
        drop(self.run_all("delete", lifetime, attempts));
        decided.map(|_| false)
    }

    /// Records that the attempt is undone.
    fn forget(&self, attempt: &Attempt) {
        let mut attempts = self.attempts.lock();
        if attempts.get(&attempt.claim) == Some(attempt) {
            attempts.remove(&attempt.claim);
        }
    }

    /// Sets the keys of held claims again, at a node that has lost them.
    async fn put_back(
        self: Arc<Self>,
        node: Arc<Connection>,
        lifetime: Duration,
        attempts: Vec<Attempt>,
    ) {
        drop(run(&node, "set", lifetime, &attempts).await);
        // a release may have reached the node before these keys
        self.clear(node, lifetime, attempts).await;
    }

    /// Asks all nodes. A majority must answer, and no node may refuse for good. It waits for no node longer than a tenth of the
    /// TTL, because the session's lease runs from now on.
    async fn check_nodes(&self, ttl: Duration) -> Result<(), BackendError> {
        let patience = Instant::now() + ttl / 10;
        let mut answers = self.run_all("extend", self.lifetime(ttl), &[]);
        let (mut answered, mut errors) = (0, Vec::new());
        loop {
            let few = answered < self.quorum();
            let next = timeout_at(if few { patience + ttl } else { patience }, answers.recv());
            match next.await.ok().flatten() {
                Some(Ok(_)) => answered += 1,
                Some(Err(error)) if error.kind == BackendErrorKind::Permanent => return Err(error),
                Some(Err(error)) => errors.push(error),
                None if few => return Err(failure(FEW, &errors)),
                None => return Ok(()),
            }
        }
    }
}

async fn run(
    node: &Connection,
    what: &str,
    lifetime: Duration,
    attempts: &[Attempt],
) -> Result<Done, BackendError> {
    let mut script = NODE.arg(what);
    script.arg(millis(lifetime));
    for attempt in attempts {
        script.key(&*attempt.claim.name).arg(attempt.value());
    }
    node.run(&script).await
}

/// Collects answers until they suffice or all have arrived. Returns the answers and the errors.
async fn gather<A>(
    mut answers: Answers<A>,
    suffices: impl Fn(&[ByNode<A>]) -> bool,
) -> (Vec<ByNode<A>>, Vec<BackendError>) {
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    while !suffices(&done)
        && let Some(answer) = answers.recv().await
    {
        match answer {
            Ok(answer) => done.push(answer),
            Err(error) => errors.push(error),
        }
    }
    (done, errors)
}

#[async_trait]
impl Asked for Redlock {
    type Token = Unfenced;

    const PROMISES: Promises = Promises { loss: Loss::AtRenewal, ..Promises::LEAST };

    fn waiters(&self) -> &Waiters<Unfenced> {
        &self.waiters
    }

    async fn open(&self, _id: i64, ttl: Duration) -> Result<ClusterId, BackendError> {
        // forget the claims of sessions that ended without being closed
        {
            let leases = self.waiters.leases();
            self.attempts.lock().retain(|claim, _| leases.contains_key(&claim.lease));
        }
        self.check_nodes(ttl).await.map(|()| ClusterId(0))
    }

    /// Extends the keys of all held claims that a majority of the nodes still has, and puts missing keys back.
    async fn renew(&self, lease: Lease, claims: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let lifetime = self.lifetime_of(lease.id)?;
        let held: Vec<_> = {
            let attempts = self.attempts.lock();
            claims.iter().filter_map(|claim| attempts.get(claim).cloned()).collect()
        };
        let (decided, done) = self.decide("extend", lifetime, &held, |done| done == OWN).await;
        let is_kept = decided?;
        let attempts = |which: &dyn Fn(usize) -> bool| -> Vec<Attempt> {
            let attempts = held.iter().enumerate().filter(|(attempt, _)| which(*attempt));
            attempts.map(|(_, attempt)| attempt.clone()).collect()
        };
        let lost = attempts(&|attempt| !is_kept[attempt]);
        for attempt in &lost {
            self.forget(attempt);
        }
        if !lost.is_empty() {
            drop(self.run_all("delete", lifetime, &lost));
        }
        for (node, done) in done {
            let missing = attempts(&|attempt| is_kept[attempt] && done[attempt] == MISSING);
            if let (false, Some(this)) = (missing.is_empty(), self.this.upgrade()) {
                tokio::spawn(this.put_back(node, lifetime, missing));
            }
        }
        let kept = attempts(&|attempt| is_kept[attempt]);
        let kept: HashSet<_> = kept.into_iter().map(|attempt| attempt.claim).collect();
        Ok(claims.iter().map(|claim| kept.contains(claim)).collect())
    }

    async fn close(&self, lease: Lease, _claims: Vec<Claim>) -> Result<(), BackendError> {
        let attempts: Vec<_> = {
            let attempts = self.attempts.lock();
            attempts.values().filter(|it| it.claim.lease == lease.id).cloned().collect()
        };
        self.decide("delete", self.lifetime(lease.ttl), &attempts, |_| true).await.0?;
        for attempt in &attempts {
            self.forget(attempt);
        }
        Ok(())
    }

    async fn put(&self, claim: &Claim, mode: &PutMode) -> Answered<Option<Answer<Unfenced>>> {
        if let PutMode::After(held) = mode
            && self.release(held).await? == Released::Gone
        {
            return Ok(None);
        }
        let answer = self.ask(claim).await?;
        let is_in_vain = matches!(mode, PutMode::IfEmpty) && answer.status == ClaimStatus::Waiting;
        Ok((!is_in_vain).then_some(answer))
    }

    async fn ask(&self, claim: &Claim) -> Result<Answer<Unfenced>, BackendError> {
        self.attempt(claim).await.map(answer)
    }

    async fn release(&self, claim: &Claim) -> Result<Released, BackendError> {
        // first, so that no attempt begins after this line
        self.waiters.note(claim, ClaimStatus::Gone);
        let lifetime = self.lifetime_of(claim.lease).unwrap_or_default();
        // a claim without an attempt has no keys, because each failed attempt was undone
        let Some(attempt) = self.attempts.lock().get(claim).cloned() else {
            return Ok(Released::Gone);
        };
        let attempts = slice::from_ref(&attempt);
        let (decided, done) = self.decide("delete", lifetime, attempts, |done| done == OWN).await;
        let is_done = decided.map_err(|mut error| {
            if done.iter().any(|(_, done)| *done == [OWN]) {
                // a repeated release finds nothing at those nodes and may answer `Gone`, which does no harm
                error.kind = BackendErrorKind::Transient;
            }
            error
        })?;
        self.forget(&attempt);
        Ok(if is_done == [true] { Released::Done } else { Released::Gone })
    }

    /// The holder, if a majority of the nodes has the same value.
    async fn queue(&self, name: &str, _most: usize) -> Result<Vec<QueueEntry>, BackendError> {
        let answers = self.ask_all::<Option<Vec<u8>>, _>(|node| {
            let get = cmd("GET").arg(name).to_owned();
            async move { node.send(&get).await }
        });
        let (values, errors) = gather(answers, |_| false).await;
        if values.len() < self.quorum() {
            return Err(failure(FEW, &errors));
        }
        let has_quorum = |value: &&Option<Vec<u8>>| {
            values.iter().filter(|(_, other)| other == *value).count() >= self.quorum()
        };
        let shared = values.iter().map(|(_, value)| value).find(has_quorum);
        let Some(value) = shared.and_then(Option::as_ref) else { return Ok(Vec::new()) };
        let value = String::from_utf8_lossy(value);
        let own = value.split_once(' ').and_then(|(attempt, label)| {
            let (id, _) = attempt.split_once('.')?;
            Some((id, label, parse_id(id)?))
        });
        let entry = match own {
            Some((id, label, (lease, _))) => QueueEntry {
                label: Some(label.to_owned()),
                ..QueueEntry::new(lease, format!("{name}/{id}"))
            },
            // another library's value
            None => QueueEntry::new(0, name),
        };
        Ok(vec![entry])
    }
}
