//! Switches the guard at run time, for the page's controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fenced_lock::{LockError, Promises, QueueEntry, SessionKeeper};
use flash_sale::inventory::{InventoryError, Item, Order, Outcome, Stock};
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::etcd_locks::unavailable;
use super::in_process::InProcess;
use super::{Fence, LockMode};
use crate::safeguard::Safeguard;
use crate::writer::Writer;
use crate::writer::tenures::Tenures;

/// The guard that the sale was opened with, and its alternatives. Orders in progress keep the guard that they
/// began with; nothing excludes them from orders under another guard.
pub struct Switch {
    /// The first is the one that the sale was opened with.
    guards: Vec<(LockMode, Box<dyn SaleGuard>)>,
    chosen: AtomicUsize,
    context: Arc<SaleContext>,
    writer: Arc<Writer>,
    /// What the lock promises, and the fence that can be on; `None` if the first guard is no lock of the library.
    lock: Option<(Promises, Fence)>,
}

impl Switch {
    /// Begins with the guard `main` of this mode. `lock` is what it promises and its fence, if it is a lock of the
    /// library.
    pub fn new(
        context: &Arc<SaleContext>,
        writer: Arc<Writer>,
        mode: LockMode,
        main: Box<dyn SaleGuard>,
        lock: Option<(Promises, Fence)>,
    ) -> Self {
        let mut guards = vec![(mode, main)];
        for other in [LockMode::Local, LockMode::NoLock] {
            if other != mode {
                guards.push((other, Box::new(InProcess::new(context, other))));
            }
        }
        let context = Arc::clone(context);
        Self { guards, chosen: AtomicUsize::new(0), context, writer, lock }
    }

    /// Whether the store compares tokens.
    pub fn is_fenced(&self) -> bool {
        self.writer.has(Safeguard::Fence)
    }

    /// What the lock promises, and the fence that can be on.
    pub(crate) fn lock(&self) -> Option<(Promises, Fence)> {
        self.lock
    }

    /// The tenures in which this instance sold.
    pub(crate) fn tenures(&self) -> &Tenures {
        self.writer.tenures()
    }

    /// Switches the fence.
    pub fn set_fence(&self, on: bool) {
        self.writer.set(Safeguard::Fence, on);
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
        status.name = self.mode().name();
        status.without = self.writer.without();
        if !status.is_fenced() {
            let text = "The fence is off: a holder that was paused can undo what others have sold.";
            status.warnings.push(("fence-off", text));
        }
        status
    }

    fn reduce(&self, order: Order) -> BoxFuture<'_, Result<Outcome, SaleError>> {
        match self.sessions() {
            Some(sessions) if !self.writer.has(Safeguard::BatchOwnership) => {
                Box::pin(reduce_in_the_request(&self.context, sessions, order))
            }
            _ => self.current().reduce(order),
        }
    }

    fn start<'a>(&'a self, item: &'a Item, units: u64) -> BoxFuture<'a, Result<Stock, SaleError>> {
        self.current().start(item, units)
    }

    fn queue<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Result<Vec<QueueEntry>, SaleError>> {
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

/// Without `batch-ownership`: takes the lock and the units in the request's own future. A client that goes
/// away, or a second that is over, drops it anywhere; each failure is answered as if nothing was taken.
async fn reduce_in_the_request(
    context: &SaleContext,
    sessions: &SessionKeeper,
    order: Order,
) -> Result<Outcome, SaleError> {
    let waited = Duration::from_secs(1);
    if let Some(outcome) = context.check_stock(&order).await? {
        return Ok(outcome);
    }
    let name = lock_name(&context.options.lock_name, &order.item);
    let sell = async {
        let take = async { sessions.session().await?.mutex(&name)?.lock().await };
        let guard = take.await.map_err(|error: LockError| unavailable(error))?;
        let (instance, batch) = (&context.options.instance, std::slice::from_ref(&order));
        let reduced =
            context.inventory.reduce(&order.item, Some(guard.token()), instance, batch).await;
        reduced.map_err(|error| SaleError::of_read(error, &order.item))
    };
    let outcomes = timeout(waited, sell).await.unwrap_or(Err(SaleError::WaitTooLong { waited }))?;
    let missing = || {
        let error = InventoryError::InvalidArgument("one order, and no outcome");
        SaleError::of_read(error, &order.item)
    };
    outcomes.into_iter().next().ok_or_else(missing)
}
