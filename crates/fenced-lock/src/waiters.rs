//! The claims of this process at a service that must be asked where a claim stands: the state, without I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::claim::Reporter;
use super::random::jitter;
use super::{BackendError, Claim, ClaimStatus, GrantToken, Ticket};

/// The claims of this process that wait or hold.
#[derive(Debug)]
pub struct Waiters<T> {
    claims: Mutex<BTreeMap<Claim, Waiter<T>>>,
    leases: Mutex<BTreeMap<i64, Duration>>,
    /// The claims with a put that had no answer, and may arrive late; with the time of the latest such put.
    unanswered: Mutex<BTreeMap<Claim, Instant>>,
    /// Notified when a lease is forgotten.
    forgotten: Arc<Notify>,
}

#[derive(Debug)]
struct Waiter<T> {
    reporter: Reporter<T>,
    /// How new the latest news about contention is: the last ticket at that moment, and whether nobody else waited.
    contended_as_of: (i64, bool),
    /// Notified when the task that watches the claim must look at it again: a message came, or the status changed.
    wake: Arc<Notify>,
    /// Whether the put was answered. Nobody holds the lock before that.
    is_put: bool,
    /// Whether the put was repeated. A message may then be about an earlier try, whose claim was removed.
    is_repeated: bool,
}

/// The value before any news about contention.
const UNKNOWN: (i64, bool) = (i64::MIN, false);

impl<T: GrantToken> Waiter<T> {
    fn new() -> Self {
        let (reporter, wake) = (Reporter::new(), Arc::default());
        Self { reporter, contended_as_of: UNKNOWN, wake, is_put: true, is_repeated: false }
    }

    fn report(&self, status: ClaimStatus<T>) {
        self.reporter.report(status);
        // the task that watches the claim stops
        self.wake.notify_one();
    }
}

/// The place of a claim, as the service answers.
#[derive(Clone, Copy, Debug)]
pub struct Answer<T> {
    /// Where the claim stands.
    pub status: ClaimStatus<T>,
    /// When to ask again at the latest, while the claim waits. The actual pause is random, from half of this to all of it, so
    /// that waiters that came together do not ask together.
    pub ask_again_in: Duration,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            claims: Mutex::default(),
            leases: Mutex::default(),
            unanswered: Mutex::default(),
            forgotten: Arc::default(),
        }
    }
}

impl<T: GrantToken> Waiters<T> {
    /// The open leases of this process, with their TTLs.
    pub(crate) fn leases(&self) -> MutexGuard<'_, BTreeMap<i64, Duration>> {
        self.leases.lock()
    }

    /// Makes a claim known before its request is sent. The claim counts as waiting until another status is noted.
    pub fn expect(&self, claim: &Claim) -> Ticket<T> {
        self.claims.lock().entry(claim.clone()).or_insert_with(Waiter::new).reporter.ticket()
    }

    /// As [`expect`](Self::expect), for a put that may be repeated, and whose answer goes to [`note_put`](Self::note_put). What is
    /// known of an earlier try does not count: its claim may have been removed since.
    pub(crate) fn expect_put(&self, claim: &Claim) -> Ticket<T> {
        let is_repeated = self.unanswered.lock().contains_key(claim);
        let waiter = Waiter { is_put: false, is_repeated, ..Waiter::new() };
        let ticket = waiter.reporter.ticket();
        self.claims.lock().insert(claim.clone(), waiter);
        ticket
    }

    /// Notes where a claim stands. Forgets a claim that is gone.
    pub fn note(&self, claim: &Claim, status: ClaimStatus<T>) {
        let mut claims = self.claims.lock();
        if let Some(waiter) = claims.get(claim) {
            waiter.report(status);
            if status == ClaimStatus::Gone {
                claims.remove(claim);
            }
        }
    }

    /// Notes the answer to a put, unless the claim is gone.
    pub(crate) fn note_put(&self, claim: &Claim, status: ClaimStatus<T>) {
        if let Some(waiter) = self.claims.lock().get_mut(claim) {
            waiter.is_put = true;
            if status != ClaimStatus::Waiting {
                waiter.report(status);
            }
        }
    }

    /// Whether the claim's put was answered.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_put(&self, claim: &Claim) -> bool {
        self.claims.lock().get(claim).is_some_and(|waiter| waiter.is_put)
    }

    /// Notes that a put had no answer: it may arrive late.
    pub(crate) fn note_unanswered(&self, claim: &Claim) {
        self.unanswered.lock().insert(claim.clone(), Instant::now());
    }

    /// Notes that a claim was withdrawn or handed over, and is never put again. Returns when its latest put without an answer
    /// was given up, if there is one.
    pub(crate) fn note_withdrawn(&self, claim: &Claim) -> Option<Instant> {
        self.note(claim, ClaimStatus::Gone);
        self.unanswered.lock().remove(claim)
    }

    /// Reports a waiting claim as gone after the service refused to say where it stands, and forgets it. A claim that a message
    /// has granted meanwhile keeps its lock.
    fn deny(&self, claim: &Claim) {
        let mut claims = self.claims.lock();
        if let Some(waiter) = claims.get(claim)
            && waiter.reporter.status() == ClaimStatus::Waiting
        {
            waiter.report(ClaimStatus::Gone);
            claims.remove(claim);
        }
    }

    /// Reports the claims on this lease as gone, and returns them. They stay known until they are forgotten.
    pub(crate) fn end(&self, lease: i64) -> Vec<Claim> {
        let claims = self.claims.lock();
        let ended = claims.iter().filter(|(claim, _)| claim.lease == lease);
        ended
            .inspect(|(_, waiter)| waiter.report(ClaimStatus::Gone))
            .map(|it| it.0.clone())
            .collect()
    }

    pub(crate) fn forget(&self, lease: i64) {
        self.leases().remove(&lease);
        self.end(lease);
        self.claims.lock().retain(|claim, _| claim.lease != lease);
        self.unanswered.lock().retain(|claim, _| claim.lease != lease);
        self.forgotten.notify_waiters();
    }

    /// Notified when a lease is forgotten.
    pub(crate) fn forgotten(&self) -> Arc<Notify> {
        Arc::clone(&self.forgotten)
    }

    /// Notes whether others wait behind a holder.
    pub fn note_contended(&self, claim: &Claim, contended: bool) {
        if let Some(waiter) = self.claims.lock().get(claim) {
            waiter.reporter.report_contended(contended);
        }
    }

    /// Notes a message that grants a claim, and says whether others wait behind it. If the put was repeated, the message may be
    /// about an earlier try, whose claim was removed: then it is not believed, and a claim that waits is asked about.
    pub fn note_message(&self, claim: &Claim, grant: T, contended: bool) {
        let claims = self.claims.lock();
        let Some(waiter) = claims.get(claim) else { return };
        let granted = ClaimStatus::Granted(grant);
        if waiter.is_repeated && waiter.reporter.status() != granted {
            return waiter.wake.notify_one();
        }
        waiter.reporter.report_contended(contended);
        waiter.report(granted);
    }

    /// Notes whether others waited behind a holder when `as_of` was the last ticket of the queue. Ignores older news than the
    /// last. For the same ticket, "nobody waits" is newer than "others wait": no claim has come since.
    pub fn note_contended_as_of(&self, claim: &Claim, as_of: i64, contended: bool) {
        let news = (as_of, !contended);
        if let Some(waiter) = self.claims.lock().get_mut(claim)
            && news > waiter.contended_as_of
        {
            waiter.contended_as_of = news;
            waiter.reporter.report_contended(contended);
        }
    }

    /// Makes the task that watches this claim ask now.
    pub fn wake(&self, claim: &Claim) {
        if let Some(waiter) = self.claims.lock().get(claim) {
            waiter.wake.notify_one();
        }
    }

    /// Notes that messages may have been lost: others may wait behind any claim, and each claim must be asked about.
    pub fn missed_messages(&self) {
        for waiter in self.claims.lock().values_mut() {
            waiter.reporter.report_contended(true);
            waiter.contended_as_of = UNKNOWN;
            waiter.wake.notify_one();
        }
    }

    /// The claim with this lease and number, which are unique.
    pub fn find(&self, lease: i64, number: u64) -> Option<Claim> {
        let is_it = |claim: &&Claim| claim.number == number && claim.lease == lease;
        self.claims.lock().keys().find(is_it).cloned()
    }

    /// The claims on this lease that hold their locks. A claim that a message granted before its put was answered is none of
    /// them: the put may be repeated, and then makes the claim anew if it is gone.
    pub fn holding(&self, lease: i64) -> Vec<Claim> {
        let holds = |waiter: &Waiter<T>| {
            waiter.is_put && matches!(waiter.reporter.status(), ClaimStatus::Granted(_))
        };
        let claims = self.claims.lock();
        let held = claims.iter().filter(|(claim, waiter)| claim.lease == lease && holds(waiter));
        held.map(|(claim, _)| claim.clone()).collect()
    }

    /// Where this claim stands; an unknown claim is gone.
    pub fn status(&self, claim: &Claim) -> ClaimStatus<T> {
        self.claims.lock().get(claim).map_or(ClaimStatus::Gone, |waiter| waiter.reporter.status())
    }

    pub(crate) fn count(&self) -> usize {
        self.claims.lock().len()
    }

    /// Asks where a claim stands, beginning with the answer `first`, until the claim no longer waits or is forgotten.
    ///
    /// Asks again if there is no answer. After a permanent refusal, a claim that still waits counts as gone, since nothing can be
    /// known about it.
    pub(crate) async fn watch<F>(&self, claim: &Claim, first: Answer<T>, ask: impl Fn() -> F)
    where
        F: Future<Output = Result<Answer<T>, BackendError>>,
    {
        let mut backoff = Backoff::default();
        let mut known = Some(first);
        loop {
            let wake = match self.claims.lock().get(claim) {
                Some(waiter) if waiter.reporter.status() == ClaimStatus::Waiting => {
                    Arc::clone(&waiter.wake)
                }
                _ => return,
            };
            let answer = match known.take() {
                Some(answer) => Ok(answer),
                None => ask().await,
            };
            match answer {
                Ok(Answer { status: ClaimStatus::Waiting, ask_again_in }) => {
                    backoff = Backoff::default();
                    let pause = ask_again_in.mul_f64(jitter());
                    // a timeout means that no message came
                    drop(timeout(pause, wake.notified()).await);
                }
                Ok(Answer { status, .. }) => return self.note(claim, status),
                Err(error) if error.kind.may_pass() => {
                    tracing::debug!(%claim, ?error, "cannot tell where a claim stands: asking again");
                    sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::debug!(%claim, ?error, "cannot tell where a claim stands");
                    return self.deny(claim);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unfenced;

    /// Goal: a permanent refusal ends the wait, but takes no lock back that a message has granted meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_refused_waiter_is_told() {
        let (claim, granted) = (Claim::new("a", 1, 1), ClaimStatus::Granted(Unfenced));
        for (before, after) in [(None, ClaimStatus::Gone), (Some(granted), granted)] {
            let waiters = Waiters::default();
            let waiting = Answer { status: ClaimStatus::Waiting, ask_again_in: Duration::ZERO };
            let ticket = waiters.expect(&claim);
            let refuse = async || {
                if let Some(status) = before {
                    waiters.note(&claim, status);
                }
                Err(BackendError::permanent("a failure"))
            };
            waiters.watch(&claim, waiting, refuse).await;
            assert_eq!(*ticket.status.borrow(), after);
        }
    }
}
