//! Keeps the lease alive.

use std::sync::Arc;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::inner::SessionInner;
use super::{BackendError, BackendErrorKind, GrantToken, LostReason};

/// Keeps the session's lease alive until the session is lost or closed. Then closes the lease at the service, so that no client
/// of the backend keeps it alive.
pub(super) fn keep_alive<T: GrantToken>(
    inner: Arc<SessionInner<T>>,
    asked_at: Instant,
) -> impl Future<Output = ()> + Send {
    // declares the loss even if the runtime ends before the first poll: nobody then renews the lease
    let lost = LoseOnDrop(inner);
    async move {
        let inner = &lost.0;
        renew_until_lost(inner, asked_at).await;
        if inner.validity.lost_reason() != Some(LostReason::Closed) {
            // a holder that looked at the clock just before the loss may act within the margin: revoke the lease only then
            sleep(inner.margin).await;
        }
        // an error is logged there
        drop(inner.close().await);
    }
}

struct LoseOnDrop<T: GrantToken>(Arc<SessionInner<T>>);

impl<T: GrantToken> Drop for LoseOnDrop<T> {
    fn drop(&mut self) {
        self.0.validity.lose(LostReason::Closed);
    }
}

/// Renews the session's lease, which was requested at `asked_at`, every third of its shortest lifetime, until the session is lost
/// or closed. Repeats a renewal that fails or hangs until the deadline. Then the local clock ends the session, and a later answer
/// changes nothing.
async fn renew_until_lost<T: GrantToken>(inner: &SessionInner<T>, asked_at: Instant) {
    let mut lifetime = inner.lease.ttl.saturating_sub(inner.margin);
    // in the past if opening the lease took long
    let mut next = asked_at + lifetime / 3;
    loop {
        tokio::select! {
            biased;
            // the session needs the lease until `close` has drained the releases and declared the loss
            _ = inner.validity.lost() => return,
            () = sleep_until(next) => {}
        }
        // the lifetime counts from the sending: the backend cannot have renewed earlier
        let sent_at = Instant::now();
        // longer than a backend waits for one member: after such a timeout it tries the next member
        let attempt_ends = inner.validity.deadline().min(sent_at + lifetime / 3);
        let renewal = inner.ask(async {
            let renewed = timeout_at(attempt_ends, inner.backend.renew(inner.lease)).await;
            renewed.unwrap_or_else(|elapsed| Err(BackendError::transient(elapsed)))
        });
        let renewed = tokio::select! {
            biased;
            // drops even a renewal under way, whose effect would not count
            _ = inner.validity.lost() => return,
            renewed = renewal => renewed,
        };
        match renewed {
            Ok(lives_for) => {
                let believed = lives_for.saturating_sub(inner.margin.min(lives_for / 2));
                inner.validity.renew(sent_at + believed);
                lifetime = lifetime.min(believed);
                next = sent_at + lifetime / 3;
            }
            Err(error) if error.kind == BackendErrorKind::LeaseGone => {
                inner.validity.lose(LostReason::Revoked);
                return;
            }
            Err(error) => {
                tracing::debug!(lease = inner.lease.id, ?error, "could not renew: trying again");
                next = Instant::now() + lifetime / 20;
            }
        }
    }
}
