//! This process's claims at a service that is asked where they stand: the state, without any request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::backoff::Backoff;
use super::claim::Reporter;
use super::random::jitter;
use super::{BackendError, Claim, ClaimStatus, GrantToken, Ticket};

/// The claims of this process that wait or hold.
#[derive(Debug)]
pub struct Waiters<T> {
    claims: Mutex<BTreeMap<Claim, Waiter<T>>>,
    leases: Mutex<BTreeMap<i64, Duration>>,
}

#[derive(Debug)]
struct Waiter<T> {
    reporter: Reporter<T>,
    /// As of when that is known, and then whether no other waits.
    contended_as_of: (i64, bool),
    /// A message came: it is time to ask.
    wake: Arc<Notify>,
}

/// As of when it is known whether others wait, before anything was said of it.
const UNKNOWN: (i64, bool) = (i64::MIN, false);

impl<T: GrantToken> Waiter<T> {
    fn report(&self, status: ClaimStatus<T>) {
        self.reporter.report(status);
        // whoever watches it stops
        self.wake.notify_one();
    }
}

/// Where the service says that a claim stands.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// Where it stands.
    pub status: ClaimStatus<T>,
    /// When to ask again at the latest, while it waits. The pause is between half of that and all of it, so that
    /// waiters who came together do not ask together.
    pub ask_again_in: Duration,
}

impl<T> Answer<T> {
    /// It stands so, and is to be asked about again in this time at the latest if it waits.
    pub fn new(status: ClaimStatus<T>, ask_again_in: Duration) -> Self {
        Self { status, ask_again_in }
    }
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { claims: Mutex::default(), leases: Mutex::default() }
    }
}

impl<T: GrantToken> Waiters<T> {
    /// The leases that are open here, with their TTLs.
    pub(crate) fn leases(&self) -> MutexGuard<'_, BTreeMap<i64, Duration>> {
        self.leases.lock()
    }

    /// Makes a claim known, before its request is sent. It waits until something is noted of it.
    pub fn expect(&self, claim: &Claim) -> Ticket<T> {
        let mut claims = self.claims.lock();
        let waiter = claims.entry(claim.clone()).or_insert_with(|| Waiter {
            reporter: Reporter::new(),
            contended_as_of: UNKNOWN,
            wake: Arc::default(),
        });
        waiter.reporter.ticket()
    }

    /// Notes where a claim stands. One that is gone is forgotten.
    pub fn note(&self, claim: &Claim, status: ClaimStatus<T>) {
        let mut claims = self.claims.lock();
        if let Some(waiter) = claims.get(claim) {
            waiter.report(status);
            if status == ClaimStatus::Gone {
                claims.remove(claim);
            }
        }
    }

    /// Tells the claims on this lease that they are gone, and returns them. They stay known until they are forgotten.
    pub(crate) fn end(&self, lease: i64) -> Vec<Claim> {
        let claims = self.claims.lock();
        let ended = claims.iter().filter(|(claim, _)| claim.lease == lease);
        ended
            .inspect(|(_, waiter)| waiter.report(ClaimStatus::Gone))
            .map(|it| it.0.clone())
            .collect()
    }

    /// Forgets a lease and the claims on it.
    pub(crate) fn forget(&self, lease: i64) {
        self.leases().remove(&lease);
        self.end(lease);
        self.claims.lock().retain(|claim, _| claim.lease != lease);
    }

    /// Notes whether others wait behind a claim that holds.
    pub fn note_contended(&self, claim: &Claim, contended: bool) {
        if let Some(waiter) = self.claims.lock().get(claim) {
            waiter.reporter.report_contended(contended);
        }
    }

    /// Notes whether others waited behind a claim that holds when `as_of` was the last ticket of the queue. News
    /// that come late change nothing: of two of one ticket, that others wait was the first.
    pub fn note_contended_as_of(&self, claim: &Claim, as_of: i64, contended: bool) {
        let news = (as_of, !contended);
        if let Some(waiter) = self.claims.lock().get_mut(claim)
            && news > waiter.contended_as_of
        {
            waiter.contended_as_of = news;
            waiter.reporter.report_contended(contended);
        }
    }

    /// Has the service asked now about this claim, if it waits.
    pub fn wake(&self, claim: &Claim) {
        if let Some(waiter) = self.claims.lock().get(claim) {
            waiter.wake.notify_one();
        }
    }

    /// Messages may have been lost: it is not known any more whether others wait, and it is time to ask about all claims.
    pub fn missed_messages(&self) {
        for waiter in self.claims.lock().values_mut() {
            waiter.reporter.report_contended(true);
            waiter.contended_as_of = UNKNOWN;
            waiter.wake.notify_one();
        }
    }

    /// The claim with this number, which no other claim of its lease has.
    pub fn find(&self, lease: i64, number: u64) -> Option<Claim> {
        let is_it = |claim: &&Claim| claim.number == number && claim.lease == lease;
        self.claims.lock().keys().find(is_it).cloned()
    }

    /// The claims on this lease that hold.
    pub fn holding(&self, lease: i64) -> Vec<Claim> {
        let holds =
            |waiter: &Waiter<T>| matches!(waiter.reporter.status(), ClaimStatus::Granted(_));
        let claims = self.claims.lock();
        let held = claims.iter().filter(|(claim, waiter)| claim.lease == lease && holds(waiter));
        held.map(|(claim, _)| claim.clone()).collect()
    }

    /// Where this claim stands; one that is not known is gone.
    pub fn status(&self, claim: &Claim) -> ClaimStatus<T> {
        self.claims.lock().get(claim).map_or(ClaimStatus::Gone, |waiter| waiter.reporter.status())
    }

    /// How many claims are known.
    pub(crate) fn count(&self) -> usize {
        self.claims.lock().len()
    }

    /// Asks where a claim stands, after this first answer, until it does not wait any more or is forgotten.
    ///
    /// A question that is not answered is asked again; one that is refused for good means that nothing can be known
    /// of the claim, which counts as gone.
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
                    // an error means that no message came
                    drop(timeout(pause, wake.notified()).await);
                }
                Ok(Answer { status, .. }) => return self.note(claim, status),
                Err(error) if error.kind.may_pass() => {
                    tracing::debug!(%claim, ?error, "cannot tell where a claim stands: asking again");
                    sleep(backoff.next()).await;
                }
                Err(error) => {
                    tracing::debug!(%claim, ?error, "cannot tell where a claim stands");
                    return self.note(claim, ClaimStatus::Gone);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unfenced;

    /// Goal: a final refusal ends the wait.
    #[tokio::test(start_paused = true)]
    async fn a_refused_waiter_is_told() {
        let claim = Claim::new("a", 1, 1);
        let (waiters, waiting) =
            (Waiters::<Unfenced>::default(), Answer::new(ClaimStatus::Waiting, Duration::ZERO));
        let ticket = waiters.expect(&claim);
        waiters.watch(&claim, waiting, async || Err(BackendError::permanent("a failure"))).await;
        assert_eq!(*ticket.status.borrow(), ClaimStatus::Gone);
    }
}
