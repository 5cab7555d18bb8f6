//! Shows watchers the holder of a lock.

use tokio::sync::watch;
use tokio::time::Instant;

use super::ObservedClaim;

/// The holder of one lock, for those who [watch](super::Backend::watch_holder) it. A backend notes the holder here, and each
/// watcher hears of a new one.
#[derive(Debug, Default)]
pub struct HolderWatch {
    holder: Option<ObservedClaim>,
    /// Made for the first watcher.
    told: Option<watch::Sender<Option<ObservedClaim>>>,
}

impl HolderWatch {
    /// Notes the first claim in the queue, which is the holder.
    pub fn note(&mut self, first: Option<&ObservedClaim>) {
        let holder = first.map(|first| {
            let known = self.holder.as_ref().filter(|known| known.revision == first.revision);
            let since = known.map_or_else(Instant::now, |known| known.since);
            ObservedClaim { since, ..first.clone() }
        });
        if holder != self.holder {
            if let Some(told) = &self.told {
                told.send_replace(holder.clone());
            }
            self.holder = holder;
        }
    }

    /// The holder that was noted last. Its `since` is the time at which it was first noted.
    pub fn holder(&self) -> Option<&ObservedClaim> {
        self.holder.as_ref()
    }

    /// A receiver that shows the holder from now on.
    pub fn watch(&mut self) -> watch::Receiver<Option<ObservedClaim>> {
        self.told.get_or_insert_with(|| watch::Sender::new(self.holder.clone())).subscribe()
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.receiver_count() > 0)
    }
}
