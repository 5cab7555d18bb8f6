//! What is held while the stock is touched.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use fenced_lock::SessionKeeper;

use super::LockMode;
use super::combiner::Combiner;
use super::peers::Peer;
use crate::inventory::Item;

/// What guards a sale.
pub(super) enum SaleGuard {
    /// The lock that all instances share.
    Distributed {
        sessions: SessionKeeper,
        lock_name: String,
        /// There unless each order takes the lock for itself.
        combiner: Option<Arc<Combiner>>,
    },
    /// A mutex of this process for each item.
    Local(LocalLocks),
    /// Another way, to compare with.
    Peer(Peer),
    /// Nothing.
    Nothing,
}

/// The local mutexes. There is one for each item that was ever ordered: this mode is for showing
/// what goes wrong.
#[derive(Default)]
pub(super) struct LocalLocks(StdMutex<HashMap<Item, Arc<tokio::sync::Mutex<()>>>>);

impl LocalLocks {
    pub(super) fn of(&self, item: &Item) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(item.clone()).or_default())
    }
}

/// The guard that the sale was made with, and what a demo can choose in its place.
pub(super) struct Guards {
    main: SaleGuard,
    local: SaleGuard,
    nothing: SaleGuard,
    chosen: AtomicU8,
}

/// Values of `chosen`.
const MAIN: u8 = 0;
const LOCAL: u8 = 1;
const NOTHING: u8 = 2;

impl Guards {
    pub(super) fn new(main: SaleGuard) -> Self {
        let local = SaleGuard::Local(LocalLocks::default());
        Self { main, local, nothing: SaleGuard::Nothing, chosen: AtomicU8::new(MAIN) }
    }

    /// The guard of the orders that come now.
    #[inline]
    pub(super) fn current(&self) -> &SaleGuard {
        match self.chosen.load(Ordering::Relaxed) {
            LOCAL => &self.local,
            NOTHING => &self.nothing,
            _ => &self.main,
        }
    }

    /// The one that the sale was made with.
    pub(super) fn main(&self) -> &SaleGuard {
        &self.main
    }

    /// The mode of the current one.
    pub(super) fn mode(&self) -> LockMode {
        mode_of(self.current())
    }

    /// What can be chosen.
    pub(super) fn modes(&self) -> Vec<LockMode> {
        let main = mode_of(&self.main);
        let others = [LockMode::Local, LockMode::None].into_iter().filter(|mode| *mode != main);
        std::iter::once(main).chain(others).collect()
    }

    /// Chooses one; `false` if the sale was made without it.
    pub(super) fn choose(&self, mode: LockMode) -> bool {
        let choice = match mode {
            mode if mode == mode_of(&self.main) => MAIN,
            LockMode::Local => LOCAL,
            LockMode::None => NOTHING,
            _ => return false,
        };
        self.chosen.store(choice, Ordering::Relaxed);
        true
    }
}

fn mode_of(guard: &SaleGuard) -> LockMode {
    match guard {
        SaleGuard::Distributed { .. } => LockMode::Etcd,
        SaleGuard::Local(_) => LockMode::Local,
        SaleGuard::Peer(peer) => peer.mode(),
        SaleGuard::Nothing => LockMode::None,
    }
}
