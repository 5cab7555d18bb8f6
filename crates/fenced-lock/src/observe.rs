//! Reports each wait, hold and loss: as an event, and with the feature `metrics` as a metric.

use std::time::Duration;

use super::{Claim, GrantToken, LostReason};

/// A claim was granted, after this wait.
pub(super) fn granted<T: GrantToken>(claim: &Claim, token: T, waited: Duration) {
    tracing::debug!(%claim, ?token, ?waited, "granted");
    #[cfg(feature = "metrics")]
    metrics::histogram!("fenced_lock_wait_seconds").record(waited);
}

/// A hold has ended: its last guard is gone, or its longest time is over.
pub(super) fn ended<T: GrantToken>(claim: &Claim, token: T, held: Duration, is_lost: bool) {
    tracing::debug!(%claim, ?token, ?held, is_lost, "the hold has ended");
    #[cfg(feature = "metrics")]
    {
        metrics::histogram!("fenced_lock_hold_seconds").record(held);
        metrics::counter!("fenced_lock_lost_holds_total").increment(u64::from(is_lost));
    }
}

/// A session was lost or closed.
pub(super) fn session_ended(lease: i64, reason: LostReason) {
    if reason == LostReason::Closed {
        return tracing::debug!(lease, "the session was closed");
    }
    tracing::warn!(lease, %reason, "lost the session, and with it what is held in it");
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("fenced_lock_lost_sessions_total").increment(1);
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };
    use tokio::time::sleep;

    use super::*;
    use crate::{LockError, MemoryBackend, Session, SessionOptions};

    /// The values that were recorded under each name.
    #[derive(Clone, Default)]
    struct Figures(Arc<Mutex<HashMap<String, Vec<f64>>>>);

    struct Figure(Figures, String);

    impl Figure {
        fn add(&self, value: f64) {
            let mut figures = self.0.0.lock().expect("no test panics with it");
            figures.entry(self.1.clone()).or_default().push(value);
        }
    }

    impl HistogramFn for Figure {
        fn record(&self, value: f64) {
            self.add(value);
        }
    }

    impl CounterFn for Figure {
        fn increment(&self, value: u64) {
            (0..value).for_each(|_| self.add(1.0));
        }

        fn absolute(&self, _: u64) {}
    }

    impl Recorder for Figures {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Figure(self.clone(), key.name().to_owned())))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Figure(self.clone(), key.name().to_owned())))
        }
    }

    /// Goal: each wait, each hold and each loss is counted once, with its time.
    #[tokio::test(start_paused = true)]
    async fn waits_holds_and_losses_are_recorded() -> Result<(), LockError> {
        let figures = Figures::default();
        let _recorder = metrics::set_default_local_recorder(&figures);
        let service = MemoryBackend::new();
        let options = SessionOptions::new(Duration::from_secs(60));
        let session = Session::open(Arc::new(service.clone()), options).await?;
        let mutex = session.mutex("a")?;
        let first = mutex.lock().await?;
        let hold = async {
            sleep(Duration::from_secs(3)).await;
            first.unlock().await
        };
        let (second, unlocked) = tokio::join!(mutex.lock(), hold);
        unlocked?;
        let second = second?;
        service.revoke(session.lease().id);
        second.lost().await;
        drop(second);
        session.lost().await;
        let figures = figures.0.lock().expect("no test panics with it").clone();
        assert_eq!(figures["fenced_lock_wait_seconds"], [0.0, 3.0]);
        assert_eq!(figures["fenced_lock_hold_seconds"], [3.0, 0.0]);
        assert_eq!(figures["fenced_lock_lost_holds_total"], [1.0]);
        assert_eq!(figures["fenced_lock_lost_sessions_total"], [1.0]);
        Ok(())
    }
}
