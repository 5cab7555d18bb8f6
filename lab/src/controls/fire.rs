//! Fires orders at all instances at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::caller::{Answer, Caller};

/// How many connections there are at the most; further orders wait for one of them.
const CONNECTIONS: u64 = 500;

/// How long one request may take, and one order with all its requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const ORDER_TIMEOUT: Duration = Duration::from_mins(1);

/// How long to wait before an order is sent again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long all connections may take to be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What is fired.
pub(super) struct Salvo {
    /// What the order ids begin with.
    pub(super) id: String,
    pub(super) requests: u64,
    pub(super) authorities: Vec<Arc<str>>,
    /// Orders to this instance go first; all others wait until `held_back` says so.
    pub(super) first: Option<Arc<str>>,
    pub(super) held_back: watch::Receiver<bool>,
    pub(super) stop: CancellationToken,
}

/// What the buyers were told so far.
#[derive(Default)]
pub(super) struct Count {
    pub(super) sold: AtomicU64,
    pub(super) sold_out: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// What a buyer was told.
enum Told {
    Sold,
    SoldOut,
    /// Nothing that counts.
    Nothing,
}

/// The id of an order.
pub(super) fn order_id(salvo: &str, number: u64) -> String {
    format!("{salvo}-{number}")
}

/// Sends every order until it has an answer or its time is over, as a buyer does: an order that was not
/// answered is sent again under the same id, to the next instance. Returns the numbers of those that were
/// told that they got a unit.
pub(super) async fn fire(salvo: Salvo, count: Arc<Count>) -> HashSet<u64> {
    let workers = salvo.requests.min(CONNECTIONS);
    let salvo = Arc::new(salvo);
    let next = Arc::new(AtomicU64::new(0));
    let barrier = Arc::new(Barrier::new(usize::try_from(workers).unwrap_or(1)));
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (salvo, count) = (Arc::clone(&salvo), Arc::clone(&count));
        let (next, barrier) = (Arc::clone(&next), Arc::clone(&barrier));
        tasks.spawn(async move {
            let instances = salvo.authorities.len();
            let at = usize::try_from(worker).unwrap_or(0) % instances;
            let mut buyers = Buyers { salvo, caller: None, at };
            // who cannot connect goes on all the same: the instance may be stopped
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, buyers.connect()).await;
            barrier.wait().await;
            buyers.wait_for_turn().await;
            let mut sold = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= buyers.salvo.requests || buyers.salvo.stop.is_cancelled() {
                    return sold;
                }
                let counter = match buyers.order(number).await {
                    Told::Sold => {
                        sold.push(number);
                        &count.sold
                    }
                    Told::SoldOut => &count.sold_out,
                    Told::Nothing => &count.failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut sold = HashSet::new();
    while let Some(ended) = tasks.join_next().await {
        sold.extend(ended.unwrap_or_default());
    }
    sold
}

/// The buyers of one connection, one after the other.
struct Buyers {
    salvo: Arc<Salvo>,
    caller: Option<Caller>,
    at: usize,
}

impl Buyers {
    fn caller(&mut self) -> &mut Caller {
        let authority = &self.salvo.authorities[self.at];
        self.caller.get_or_insert_with(|| Caller::new(Arc::clone(authority)))
    }

    async fn connect(&mut self) {
        // told by the first request
        let _ = self.caller().connect().await;
    }

    async fn wait_for_turn(&self) {
        let is_first =
            self.salvo.first.as_ref().is_none_or(|f| *f == self.salvo.authorities[self.at]);
        if !is_first {
            // an error means that nobody holds them back any more
            drop(self.salvo.held_back.clone().wait_for(|held_back| !held_back).await);
        }
    }

    async fn order(&mut self, number: u64) -> Told {
        let id = order_id(&self.salvo.id, number);
        let stop = self.salvo.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Told::Nothing,
            told = self.ask_until_told(&id) => told,
        }
    }

    async fn ask_until_told(&mut self, id: &str) -> Told {
        let deadline = Instant::now() + ORDER_TIMEOUT;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let headers = [("idempotency-key", id)];
            let (path, nothing) = ("/stock/reduce", Bytes::new());
            let answer =
                self.caller().call(Method::POST, path, &headers, nothing, REQUEST_TIMEOUT).await;
            match answer.map(|answer: Answer| answer.status) {
                Ok(StatusCode::OK) => return Told::Sold,
                Ok(StatusCode::CONFLICT) => return Told::SoldOut,
                Ok(status)
                    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS =>
                {
                    return Told::Nothing;
                }
                Ok(_) | Err(_) => {}
            }
            if Instant::now() + pause >= deadline {
                return Told::Nothing;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // the next one may know better
            self.at = (self.at + 1) % self.salvo.authorities.len();
            self.caller = None;
        }
    }
}
