//! The notes on recent events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::ObservedTenure;
use tokio::time::Instant;

use super::clock::Clock;
use super::view::Note;
use crate::sale::Sale;

/// The most notes that are kept.
const KEPT: usize = 20;

/// A holder that keeps the lock this long while others wait is paused, cut off or dead.
pub(super) const STUCK: Duration = Duration::from_millis(1500);

/// The notes on recent events.
#[derive(Default)]
pub(super) struct EventLog {
    notes: VecDeque<Note>,
    last_id: u64,
    new: usize,
    counted: Option<Counted>,
    /// The token of the last tenure that was examined.
    last_tenure: i64,
}

/// Counters of this instance at the last reading.
#[derive(Clone, Copy)]
struct Counted {
    stale_batches: u64,
    lost_tenures: u64,
    lost_sessions: u64,
}

impl EventLog {
    pub(super) fn note(&mut self, clock: &Clock, kind: &'static str, text: String) {
        self.note_at(clock.ms(Instant::now()), kind, text);
    }

    fn note_at(&mut self, at_ms: f64, kind: &'static str, text: String) {
        if self.notes.len() == KEPT {
            self.notes.pop_front();
        }
        self.last_id += 1;
        self.notes.push_back(Note { id: self.last_id, at_ms, kind, text });
        self.new += 1;
    }

    /// Notes what the counters of this instance show since the last reading.
    pub(super) fn count(&mut self, clock: &Clock, sale: &Sale) {
        let metrics = sale.metrics();
        let now = Counted {
            stale_batches: metrics.stale_batches.get(),
            lost_tenures: metrics.lost_tenures.get(),
            lost_sessions: sale.lost_sessions(),
        };
        let Some(then) = self.counted.replace(now) else { return };
        let name = sale.instance();
        if now.stale_batches > then.stale_batches {
            self.note(clock, "stale-batch", stale_batch(name));
        }
        if now.lost_sessions > then.lost_sessions {
            let text = format!(
                "{name} did not renew its lease in time: it slept, or the lock service did not answer it. \
                 It lost its place in the queue, and takes another one."
            );
            self.note(clock, "session-lost", text);
        }
        if now.lost_tenures > then.lost_tenures {
            let text = format!("{name} lost the lock while it held it.");
            self.note(clock, "lock-lost", text);
        }
    }

    /// Notes the tenures whose holder did not release the lock.
    pub(super) fn see(
        &mut self,
        clock: &Clock,
        tenures: &[ObservedTenure],
        name_of: impl Fn(i64) -> Option<Arc<str>>,
    ) {
        for tenure in tenures {
            if tenure.revision <= self.last_tenure {
                continue;
            }
            self.last_tenure = tenure.revision;
            let stuck = tenure.contended_since.map(|since| tenure.ended_at - since);
            if let Some(stuck) = stuck.filter(|stuck| *stuck >= STUCK) {
                let name = name_of(tenure.lease).unwrap_or_else(|| "A holder".into());
                let text = format!(
                    "{name} kept the lock for {:.1} s while others waited (token {}): it was paused or \
                     cut off, or has died. The next in the queue has the lock now.",
                    stuck.as_secs_f64(),
                    tenure.revision
                );
                self.note_at(clock.ms(tenure.ended_at), "claim-expired", text);
            }
        }
    }

    pub(super) fn notes(&self) -> Vec<&Note> {
        self.notes.iter().collect()
    }

    /// The notes since the last message.
    pub(super) fn new_notes(&self) -> Vec<&Note> {
        self.notes.iter().skip(self.notes.len().saturating_sub(self.new)).collect()
    }

    pub(super) fn mark_sent(&mut self) {
        self.new = 0;
    }
}

/// The note on a batch of the instance `name` that the fence refused.
pub fn stale_batch(name: &str) -> String {
    format!(
        "The store refused a batch of {name}: its token is older than the fence. {name} had lost the lock \
         without knowing; nothing was sold twice, and its orders wait for another turn."
    )
}
