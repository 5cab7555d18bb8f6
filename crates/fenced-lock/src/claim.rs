//! Leases, claims and places in the queue.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::chaos::Safeguard;
use super::{ClusterId, GrantToken, Token};

/// The lease that keeps a session's claims alive. If it is not renewed for its TTL, the backend removes the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The backend's number for it.
    pub id: i64,
    /// How long it lives without renewal; a backend may grant more than was asked for.
    pub ttl: Duration,
    /// The cluster that granted it.
    pub cluster: ClusterId,
}

/// One attempt to hold a lock. Its key is `<name>/<lease in hex>-<number>`, which is never used twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The lock's name.
    pub name: Arc<str>,
    /// The id of its lease.
    pub lease: i64,
    /// The number of the claim in its session.
    pub number: u64,
    /// The name of its maker, for a human who looks at the queue.
    pub label: Arc<str>,
    /// The note of a claim that [stands by](super::Mutex::standby): the holder is not contended by it before it asks for a turn.
    /// `None` for a claim that asks from the start.
    pub standby: Option<Arc<str>>,
}

impl Claim {
    /// A claim without a label, which asks for a turn.
    pub fn new(name: impl Into<Arc<str>>, lease: i64, number: u64) -> Self {
        Self { name: name.into(), lease, number, label: "".into(), standby: None }
    }

    /// The claim's key.
    pub fn key(&self) -> String {
        if !Safeguard::OwnerByClaim.is_on() {
            return format!("{}/{}", self.name, self.label);
        }
        format!("{}/{:x}-{}", self.name, self.lease, self.number)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

/// Where a claim stands. Its status goes from first to last of these, and never back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStatus<T = Token> {
    /// Others are before it.
    Waiting,
    /// It is the first in the queue, and this is the token of the grant.
    Granted(T),
    /// It is not in the queue any more: it was withdrawn or deleted, or its lease ended.
    Gone,
}

/// A claim's place in the queue.
#[derive(Clone, Debug)]
pub struct Ticket<T = Token> {
    /// Where the claim stands.
    pub status: watch::Receiver<ClaimStatus<T>>,
    /// Whether another claim waits behind this one, and asks for a turn, while this one is granted; `true` if that is not known.
    pub contended: watch::Receiver<bool>,
}

/// Tells a [`Ticket`] where its claim stands.
#[derive(Debug)]
pub(crate) struct Reporter<T = Token> {
    status: watch::Sender<ClaimStatus<T>>,
    contended: watch::Sender<bool>,
}

impl<T: GrantToken> Reporter<T> {
    /// For a claim that waits.
    pub(crate) fn new() -> Self {
        let (status, contended) = (ClaimStatus::Waiting, true);
        Self { status: watch::Sender::new(status), contended: watch::Sender::new(contended) }
    }

    pub(crate) fn ticket(&self) -> Ticket<T> {
        Ticket { status: self.status.subscribe(), contended: self.contended.subscribe() }
    }

    pub(crate) fn status(&self) -> ClaimStatus<T> {
        *self.status.borrow()
    }

    /// Moves on to this status, never back. Tells the ticket only of a change.
    pub(crate) fn report(&self, news: ClaimStatus<T>) {
        self.status.send_if_modified(|status| {
            let moves = match status {
                ClaimStatus::Waiting => news != ClaimStatus::Waiting,
                ClaimStatus::Granted(_) => news == ClaimStatus::Gone,
                ClaimStatus::Gone => false,
            };
            if moves {
                *status = news;
            }
            moves
        });
    }

    pub(crate) fn report_contended(&self, news: bool) {
        self.contended.send_if_modified(|contended| std::mem::replace(contended, news) != news);
    }
}

/// One claim in a queue, in the form in which every process can see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueEntry {
    /// The token of its grant, as far as it is known. For a lock with tokens, the holder's is always known.
    pub token: Option<Token>,
    /// The id of its lease.
    pub lease: i64,
    /// Its key.
    pub key: String,
    /// The label of its maker, if this library made it.
    pub label: Option<String>,
    /// How long ago it was made, if this library made it, by the wall clocks of its maker and of this process.
    pub age: Option<Duration>,
    /// The note of its [standby](super::Mutex::standby), if it has one.
    pub note: Option<String>,
    /// Whether it stands by and does not ask for a turn, as far as this is known.
    pub is_standby: bool,
}

impl QueueEntry {
    /// A claim about which no more is known.
    pub fn new(lease: i64, key: impl Into<String>) -> Self {
        let key = key.into();
        Self { token: None, lease, key, label: None, age: None, note: None, is_standby: false }
    }
}

/// A claim, as the watch of its queue has shown it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedClaim {
    /// Its key.
    pub key: Arc<[u8]>,
    /// Its place: the revision of its token, once granted.
    pub revision: i64,
    /// The cluster that numbers it.
    pub cluster: ClusterId,
    /// The id of its lease.
    pub lease: i64,
    /// The label of its maker, if this library made it.
    pub label: Option<Arc<str>>,
    /// When it was made, if this library made it, by the wall clock of its maker; not later than the present.
    pub made_at: Option<SystemTime>,
    /// When it was first seen in the queue. For the holder: when it was first seen to be the first.
    pub since: Instant,
    /// The note of its [standby](super::Mutex::standby), if it has one.
    pub note: Option<Arc<str>>,
    /// Whether it stands by and does not ask for a turn.
    pub is_standby: bool,
}

impl ObservedClaim {
    /// A claim that was made now, with the token that it has when it is granted.
    pub fn of(claim: &Claim, token: Token) -> Self {
        Self {
            key: claim.key().as_bytes().into(),
            revision: token.revision(),
            cluster: token.cluster(),
            lease: claim.lease,
            label: Some(Arc::clone(&claim.label)),
            made_at: Some(SystemTime::now()),
            since: Instant::now(),
            note: claim.standby.clone(),
            is_standby: claim.standby.is_some(),
        }
    }

    /// The token that it has when it is granted.
    pub fn token(&self) -> Token {
        Token::new(self.cluster, self.revision)
    }
}
