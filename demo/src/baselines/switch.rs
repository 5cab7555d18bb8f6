//! Switches the guard at run time, for the page.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fenced_lock::{QueueEntry, SessionKeeper};
use flash_sale::inventory::{Item, NewSale, Order, Outcome, Started};
use flash_sale::peers::Receiver;
use flash_sale::sale::{GuardStatus, SaleContext, SaleError, SaleGuard, lock_name};
use tokio::time::timeout;

use super::order_locks::unavailable;
use super::per_order::by_the_script;
use super::{LockMode, in_process};
use crate::safeguard::Safeguard;
use crate::writer::Writer;

/// The guard with which the sale was opened, and its alternatives. Orders in progress keep the guard with which they began;
/// nothing excludes them from orders under another guard.
pub struct Switch {
    /// The first is the guard with which the sale was opened.
    guards: Vec<(LockMode, Box<dyn SaleGuard>)>,
    chosen: AtomicUsize,
    context: Arc<SaleContext>,
    pub(crate) writer: Arc<Writer>,
}

impl Switch {
    /// `main` is the guard of mode `mode`, with which the sale begins.
    pub fn new(
        context: &Arc<SaleContext>,
        writer: Arc<Writer>,
        mode: LockMode,
        main: Box<dyn SaleGuard>,
    ) -> Self {
        let mut guards = vec![(mode, main)];
        for other in [LockMode::Local, LockMode::NoLock, LockMode::AtomicScript] {
            if other != mode {
                guards.push((other, Box::new(in_process(context, other))));
            }
        }
        let context = Arc::clone(context);
        Self { guards, chosen: AtomicUsize::new(0), context, writer }
    }

    /// The guard of new orders.
    pub fn mode(&self) -> LockMode {
        self.guards[self.chosen.load(Ordering::Relaxed)].0
    }

    /// All guards; the first is the one with which the sale was opened.
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

#[async_trait]
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

    async fn reduce(&self, order: Order) -> Result<Outcome, SaleError> {
        match self.sessions() {
            Some(sessions) if !self.writer.has(Safeguard::BatchOwnership) => {
                reduce_in_the_request(&self.context, sessions, order).await
            }
            _ => self.current().reduce(order).await,
        }
    }

    async fn start(&self, item: &Item, sale: NewSale) -> Result<Started, SaleError> {
        self.current().start(item, sale).await
    }

    async fn queue(&self, item: &Item) -> Result<Vec<QueueEntry>, SaleError> {
        self.current().queue(item).await
    }

    fn lock_name(&self, item: &Item) -> Option<String> {
        self.current().lock_name(item)
    }

    async fn check(&self) -> Result<(), SaleError> {
        self.current().check().await
    }

    fn sessions(&self) -> Option<&SessionKeeper> {
        self.main().sessions()
    }

    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        self.main().receiver()
    }

    fn waiting(&self) -> usize {
        self.guards.iter().map(|(_, guard)| guard.waiting()).sum()
    }

    fn oldest(&self) -> Duration {
        self.main().oldest()
    }

    async fn close(&self) {
        self.main().close().await;
    }
}

/// Without `batch-ownership`: takes the lock and the units in the request's own future. The future is dropped, at any point, when
/// the client goes away and after one second; each failure is answered as if nothing was taken.
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
        let guard = sessions.lock(&name).await.map_err(unavailable)?;
        let sold = by_the_script(context, Some(guard.token()), &order).await;
        sold.map_err(|error| SaleError::of_read(error, &order.item))
    };
    timeout(waited, sell).await.unwrap_or(Err(SaleError::WaitTooLong { waited }))
}
