//! The last tenures of one lock, as its watch tells them.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::{SeenClaim, SeenTenure};

/// How many tenures are kept: a reader that looks a few times a second misses none.
const KEPT: usize = 256;

/// The last tenures of one lock.
#[derive(Debug, Default)]
pub(super) struct History {
    holder: Option<SeenClaim>,
    past: VecDeque<SeenTenure>,
}

impl History {
    /// Notes which claim is the first now, if any is; `waiter` has queued behind it since then.
    pub(super) fn first_is(&mut self, first: Option<(i64, i64)>, waiter: Option<Instant>) {
        if first.map(|(revision, _)| revision) == self.holder.map(|holder| holder.revision) {
            return;
        }
        let now = Instant::now();
        if let Some(holder) = self.holder.take() {
            if self.past.len() == KEPT {
                self.past.pop_front();
            }
            self.past.push_back(SeenTenure {
                revision: holder.revision,
                lease: holder.lease,
                began_at: holder.since,
                ended_at: now,
                contended_since: waiter.map(|since| since.max(holder.since)),
            });
        }
        self.holder = first.map(|(revision, lease)| SeenClaim { revision, lease, since: now });
    }

    /// The claim that holds the lock, since when it does.
    pub(super) fn holder(&self) -> Option<SeenClaim> {
        self.holder
    }

    pub(super) fn past(&self) -> Vec<SeenTenure> {
        self.past.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    /// Goal: each tenure is told once, from when its claim was the first to when it was gone.
    #[tokio::test(start_paused = true)]
    async fn tenures_follow_each_other() {
        let mut history = History::default();
        let start = Instant::now();
        history.first_is(Some((5, 1)), None);
        history.first_is(Some((5, 1)), None);
        advance(Duration::from_millis(3)).await;
        history.first_is(Some((7, 2)), Some(start));
        advance(Duration::from_millis(4)).await;
        history.first_is(None, None);
        let told: Vec<_> = history
            .past()
            .iter()
            .map(|t| (t.revision, t.lease, (t.ended_at - t.began_at).as_millis()))
            .collect();
        assert_eq!(told, [(5, 1, 3), (7, 2, 4)]);
        assert_eq!(history.past()[0].contended_since, Some(start));
        assert_eq!(history.holder(), None);
    }

    #[tokio::test]
    async fn only_the_last_tenures_are_kept() {
        let mut history = History::default();
        for revision in 0..=i64::try_from(KEPT).expect("small") + 1 {
            history.first_is(Some((revision, 1)), None);
        }
        let past = history.past();
        assert_eq!((past.len(), past[0].revision), (KEPT, 1));
    }
}
