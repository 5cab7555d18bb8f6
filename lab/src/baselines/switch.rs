//! Switches the guard at run time, for the page's controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fenced_lock::SessionKeeper;
use flash_sale::inventory::{Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, QueuedClaim, SaleContext, SaleError, SaleGuard};
use futures_util::future::BoxFuture;

use super::LockMode;
use super::in_process::InProcess;
use crate::writer::{WriteDefence, Writer};

/// The guard that the sale was opened with, and its alternatives. Orders in progress keep the guard that they
/// began with; nothing excludes them from orders under another guard.
pub struct Switch {
    /// The first is the one that the sale was opened with.
    guards: Vec<(LockMode, Box<dyn SaleGuard>)>,
    chosen: AtomicUsize,
    writer: Arc<Writer>,
}

impl Switch {
    /// Begins with the guard `main` of this mode.
    pub fn new(
        context: &Arc<SaleContext>,
        writer: Arc<Writer>,
        mode: LockMode,
        main: Box<dyn SaleGuard>,
    ) -> Self {
        let mut guards = vec![(mode, main)];
        for other in [LockMode::Local, LockMode::NoLock] {
            if other != mode {
                guards.push((other, Box::new(InProcess::new(context, other))));
            }
        }
        Self { guards, chosen: AtomicUsize::new(0), writer }
    }

    /// Whether the store compares tokens.
    pub fn is_fenced(&self) -> bool {
        self.writer.has(WriteDefence::Fence)
    }

    /// Switches the fence.
    pub fn set_fence(&self, on: bool) {
        self.writer.set(WriteDefence::Fence, on);
    }

    /// The guard of new orders.
    pub fn mode(&self) -> LockMode {
        self.guards[self.chosen.load(Ordering::Relaxed)].0
    }

    /// All guards; the first is the one that the sale was opened with.
    pub fn modes(&self) -> Vec<LockMode> {
        self.guards.iter().map(|(mode, _)| *mode).collect()
    }

    /// Sets the guard of new orders; `false` if the sale does not have it.
    pub fn choose(&self, mode: LockMode) -> bool {
        let chosen = self.guards.iter().position(|(choice, _)| *choice == mode);
        if let Some(chosen) = chosen {
            self.chosen.store(chosen, Ordering::Relaxed);
        }
        chosen.is_some()
    }

    fn main(&self) -> &dyn SaleGuard {
        &*self.guards[0].1
    }

    /// The guard of new orders.
    fn current(&self) -> &dyn SaleGuard {
        &*self.guards[self.chosen.load(Ordering::Relaxed)].1
    }
}

impl SaleGuard for Switch {
    fn status(&self) -> GuardStatus {
        let mut status = self.current().status();
        status.without = self.writer.without();
        if !status.is_fenced() {
            let text = "The fence is off: a holder that was paused can undo what others have sold.";
            status.warnings.push(("fence-off", text));
        }
        status
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
}
