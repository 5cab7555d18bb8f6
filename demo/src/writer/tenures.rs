//! When this instance wrote under the lock, and what happened meanwhile, for the replay on the page.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use fenced_lock::Token;
use flash_sale::inventory::Item;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The most tenures that are kept.
const MOST: usize = 256;

/// One tenure as its holder sees it: for a holder that was paused, it lasts until the holder wakes up. The times are Unix
/// milliseconds, so that the tenures of all instances of one machine can be compared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tenure {
    pub(crate) token: i64,
    /// When its first batch was about to be written.
    pub(crate) from_ms: f64,
    /// When it released the lock; if it did not, when its last batch was answered.
    pub(crate) to_ms: Option<f64>,
    /// When the fence refused a batch, and the fence at that time.
    pub(crate) refused: Option<(f64, i64)>,
    /// When a fault stopped the holder before it wrote, and when it went on.
    pub(crate) stopped: Option<(f64, f64)>,
}

/// The last tenures, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Tenures(Mutex<VecDeque<(Item, Token, Tenure)>>);

impl Tenures {
    /// Notes that a batch of `item` is about to be written under `token`. Returns whether it is the tenure's first.
    pub(super) fn begin(&self, item: &Item, token: Token) -> bool {
        let mut all = self.0.lock();
        let last = all.iter().rfind(|(sold, ..)| sold == item);
        if last.is_some_and(|(_, last, _)| *last == token) {
            return false;
        }
        if all.len() == MOST {
            all.pop_front();
        }
        let tenure = Tenure { token: token.revision(), from_ms: now_ms(), ..Tenure::default() };
        all.push_back((item.clone(), token, tenure));
        true
    }

    /// Notes something about the tenure under `token`, with the time. Returns whether there was a batch under this token.
    pub(super) fn note(&self, token: Token, note: impl FnOnce(&mut Tenure, f64)) -> bool {
        let mut all = self.0.lock();
        let tenure = all.iter_mut().rfind(|(_, own, _)| *own == token);
        tenure.map(|(.., tenure)| note(tenure, now_ms())).is_some()
    }

    /// The tenures of the default item.
    pub(crate) fn of_default_item(&self) -> Vec<Tenure> {
        let all = self.0.lock();
        let all = all.iter().filter(|(item, ..)| *item == Item::DEFAULT);
        all.map(|(.., tenure)| tenure.clone()).collect()
    }
}

/// The present time in Unix milliseconds.
pub(crate) fn now_ms() -> f64 {
    unix_ms(SystemTime::now())
}

pub(crate) fn unix_ms(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}
