//! Another guard at run time, for the page's controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fenced_lock::SessionKeeper;
use flash_sale::inventory::{Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, QueuedClaim, SaleContext, SaleError, SaleGuard};
use futures_util::future::BoxFuture;

use super::in_process::InProcess;
use super::{LockMode, with_fence};

/// The guard that the sale was made with, and those that can be chosen in its place. Orders that are under
/// way go on under the guard that they began with, and nothing stands between the two.
pub struct Switch {
    /// The first is the one that the sale was made with.
    guards: Vec<Box<dyn SaleGuard>>,
    chosen: AtomicUsize,
}

impl Switch {
    /// Begins with `main`.
    pub fn new(context: &Arc<SaleContext>, main: Box<dyn SaleGuard>) -> Self {
        let name = main.status().name;
        let mut guards = vec![main];
        for mode in [LockMode::Local, LockMode::None] {
            if mode.name() != name {
                guards.push(Box::new(InProcess::new(context, mode)));
            }
        }
        Self { guards, chosen: AtomicUsize::new(0) }
    }

    fn main(&self) -> &dyn SaleGuard {
        &*self.guards[0]
    }

    /// The guard of the orders that come now.
    fn current(&self) -> &dyn SaleGuard {
        &*self.guards[self.chosen.load(Ordering::Relaxed)]
    }
}

impl SaleGuard for Switch {
    fn status(&self) -> GuardStatus {
        with_fence(self.current().status())
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        self.current().reduce(order)
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        self.current().start(item, units)
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueuedClaim>, SaleError>> {
        self.current().queue(item)
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.current().lock_name(item)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SaleError>> {
        self.current().check()
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        self.main().sessions()
    }

    fn waiting(&self) -> usize {
        self.main().waiting()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.main().close()
    }

    fn choices(&self) -> Vec<&'static str> {
        self.guards.iter().map(|guard| guard.status().name).collect()
    }

    fn choose(&self, name: &str) -> bool {
        let chosen = self.guards.iter().position(|guard| guard.status().name == name);
        if let Some(chosen) = chosen {
            self.chosen.store(chosen, Ordering::Relaxed);
        }
        chosen.is_some()
    }
}
