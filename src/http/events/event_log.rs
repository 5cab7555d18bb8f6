//! The notes on recent events.

use std::collections::VecDeque;
use std::time::Duration;

use fenced_lock::ObservedClaim;
use serde::Serialize;
use tokio::time::Instant;

use crate::sale::Sale;

/// The most notes that are kept.
const KEPT: usize = 20;

/// A holder that keeps the lock this long while others wait is paused, cut off or dead.
const STUCK: Duration = Duration::from_millis(1500);

/// The notes on recent events.
#[derive(Default)]
pub(super) struct EventLog {
    pub(super) notes: VecDeque<Note>,
    /// This instance's counters at the last reading: stale batches, lost sessions, lost tenures.
    counters: Option<[u64; 3]>,
    /// The holder that has kept the lock for long while others wait, and since when.
    stuck: Option<(ObservedClaim, Instant)>,
}

#[derive(Serialize)]
pub(super) struct Note {
    at_ms: f64,
    kind: &'static str,
    text: String,
}

impl EventLog {
    pub(super) fn note(&mut self, at_ms: f64, kind: &'static str, text: impl Into<String>) {
        if self.notes.len() == KEPT {
            self.notes.pop_front();
        }
        self.notes.push_back(Note { at_ms, kind, text: text.into() });
    }

    /// Notes the increases of this instance's counters since the last reading.
    pub(super) fn count(&mut self, at_ms: f64, sale: &Sale) {
        let metrics = sale.metrics();
        let (stale_batches, lost_tenures) = (&metrics.stale_batches, &metrics.lost_tenures);
        let now = [stale_batches.get(), sale.lost_sessions(), lost_tenures.get()];
        let Some(before) = self.counters.replace(now) else { return };
        let name = sale.instance();
        let texts = [
            ("stale-batch", stale_batch(name)),
            (
                "session-lost",
                format!(
                    "{name} did not renew its lease in time: it slept, or the lock service did not answer \
                     it. It lost its place in the queue, and takes another one."
                ),
            ),
            ("lock-lost", format!("{name} lost the lock while it held it.")),
        ];
        for (index, (kind, text)) in texts.into_iter().enumerate() {
            if now[index] > before[index] {
                self.note(at_ms, kind, text);
            }
        }
    }

    /// Notes a holder that kept the lock for long while others waited, once another claim has the lock.
    pub(super) fn examine(&mut self, at_ms: f64, queue: &[ObservedClaim]) {
        let first = queue.first().map(|first| first.revision);
        if let Some((holder, since)) = self.stuck.take()
            && first.is_some_and(|first| first != holder.revision)
        {
            let name = holder.label.as_deref().unwrap_or("A holder");
            let text = format!(
                "{name} kept the lock for {:.1} s while others waited (token {}): it was paused or \
                 cut off, or has died. The next in the queue has the lock now.",
                since.elapsed().as_secs_f64(),
                holder.revision
            );
            self.note(at_ms, "claim-expired", text);
        }
        self.stuck = stuck_since(queue).map(|since| (queue[0].clone(), since));
    }
}

/// Since when the holder has kept the lock while others wait, if that is long.
pub(super) fn stuck_since(queue: &[ObservedClaim]) -> Option<Instant> {
    let [first, next, ..] = queue else { return None };
    Some(first.since.max(next.since)).filter(|since| since.elapsed() >= STUCK)
}

/// The note on a batch of the instance `name` that the fence refused.
pub fn stale_batch(name: &str) -> String {
    format!(
        "The store refused a batch of {name}: its token is older than the fence. {name} had lost the lock \
         without knowing; nothing was sold twice, and its orders wait for another turn."
    )
}
