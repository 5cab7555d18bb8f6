//! The settings that the control makes at an instance, and the events that the instance notes for the replay on the page.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::Method;
use axum::http::uri::Authority;
use fenced_lock::Token;
use flash_sale::inventory::Item;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use testkit::probe;
use testkit::signals::{kill_now, stop_for};

use crate::control::HIT;
use crate::control::record::Fault;

/// The safeguard that refuses the writes of a holder that was overtaken.
pub const FENCE: &str = "fence";

/// The most tenures, and the most reads, that are kept.
const MOST_TENURES: usize = 256;
pub(crate) const MOST_LOOKS: usize = 1000;

/// How long the report of a fault to the control may take.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// A fault, the length of a pause, and the control that gets a report beforehand.
pub(super) type Asked = (Fault, Duration, Option<(Authority, String)>);

/// The settings of the control, and the notes of the instance.
#[derive(Debug, Default)]
pub struct Rig {
    /// A further action before each write.
    before_write: Option<fn() -> BoxFuture<'static, ()>>,
    /// The safeguards that are off.
    off: Mutex<BTreeSet<String>>,
    /// The fault at the next write of this process.
    pub(super) fault: Mutex<Option<Asked>>,
    /// Locked from the read to the end of a write without the fence: the store does not notice if two batches of a holder have
    /// read the same stock.
    pub(super) unfenced: tokio::sync::Mutex<()>,
    /// The last tenures in which this instance sold, oldest first.
    tenures: Mutex<VecDeque<(Item, Token, Tenure)>>,
    /// The instance's reads of the stock of the default item without a shared lock: when, and how many units it saw.
    looks: Mutex<VecDeque<(f64, u64)>>,
}

/// One tenure as its holder sees it: for a holder that was paused, it lasts until the holder wakes up. Times are Unix
/// milliseconds, to compare the tenures of all instances of one machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tenure {
    pub(crate) token: i64,
    /// When its first batch was about to be written.
    pub(crate) from_ms: f64,
    /// When its last batch was answered.
    pub(crate) to_ms: Option<f64>,
    /// When the fence refused a batch, and the fence at that time.
    pub(crate) refused: Option<(f64, i64)>,
    /// When a fault stopped the holder before it wrote, and when it went on.
    pub(crate) stopped: Option<(f64, f64)>,
}

impl Rig {
    /// A rig with a further action before each write.
    pub fn with(before_write: fn() -> BoxFuture<'static, ()>) -> Self {
        Self { before_write: Some(before_write), ..Self::default() }
    }

    pub fn has(&self, safeguard: &str) -> bool {
        !self.off.lock().contains(safeguard)
    }

    pub fn set(&self, safeguard: &str, is_on: bool) {
        let mut off = self.off.lock();
        let _was = if is_on { off.remove(safeguard) } else { off.insert(safeguard.to_owned()) };
    }

    /// The safeguards that are off.
    pub fn without(&self) -> Vec<String> {
        self.off.lock().iter().cloned().collect()
    }

    /// Carries out the fault that the control has asked for, before a write.
    pub async fn about_to_write(&self, token: Option<Token>) {
        if let Some(act) = self.before_write {
            act().await;
        }
        let asked = self.fault.lock().take();
        let Some((fault, pause, control)) = asked else { return };
        if let Some((control, report)) = control {
            // if the control misses this report, it says that the fault was not reached
            drop(probe::ask(control.as_str(), Method::POST, HIT, report, TELL_TIMEOUT).await);
        }
        tracing::warn!(?fault, "a fault that the control has asked for");
        let from = now_ms();
        match fault {
            Fault::Kill => kill_now(),
            Fault::Pause => stop_for(pause),
        }
        if let Some(token) = token {
            self.note(token, |tenure, now| tenure.stopped = Some((from, now)));
        }
    }

    /// Notes that a batch of `item` is about to be written under `token`. Returns whether it is the first of the tenure.
    pub fn begin(&self, item: &Item, token: Token) -> bool {
        let mut all = self.tenures.lock();
        let last = all.iter().rfind(|(sold, ..)| sold == item);
        if last.is_some_and(|(_, last, _)| *last == token) {
            return false;
        }
        let excess = (all.len() + 1).saturating_sub(MOST_TENURES);
        all.drain(..excess);
        let tenure = Tenure { token: token.revision(), from_ms: now_ms(), ..Tenure::default() };
        all.push_back((item.clone(), token, tenure));
        true
    }

    /// Notes that a batch under `token` was answered, and the fence if it refused the batch.
    pub fn end(&self, token: Token, refused_by: Option<Token>) {
        self.note(token, |tenure, now| {
            tenure.to_ms = Some(now);
            tenure.refused = refused_by.map(|fence| (now, fence.revision())).or(tenure.refused);
        });
    }

    /// Whether this instance has written under `token`.
    pub fn has_written(&self, token: Token) -> bool {
        self.tenures.lock().iter().any(|(_, own, _)| *own == token)
    }

    fn note(&self, token: Token, note: impl FnOnce(&mut Tenure, f64)) {
        let mut all = self.tenures.lock();
        if let Some((.., tenure)) = all.iter_mut().rfind(|(_, own, _)| *own == token) {
            note(tenure, now_ms());
        }
    }

    /// Notes a read of the default item without a shared lock.
    pub(super) fn look(&self, seen: u64) {
        let mut looks = self.looks.lock();
        let excess = (looks.len() + 1).saturating_sub(MOST_LOOKS);
        looks.drain(..excess);
        looks.push_back((now_ms(), seen));
    }

    /// The tenures of the default item, and the reads.
    pub(super) fn noted(&self) -> (Vec<Tenure>, VecDeque<(f64, u64)>) {
        let all = self.tenures.lock();
        let all = all.iter().filter(|(item, ..)| *item == Item::DEFAULT);
        (all.map(|(.., tenure)| tenure.clone()).collect(), self.looks.lock().clone())
    }
}

/// The present time in Unix milliseconds.
pub(crate) fn now_ms() -> f64 {
    unix_ms(SystemTime::now())
}

pub(crate) fn unix_ms(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}
