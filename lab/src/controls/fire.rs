//! Fires orders at all instances at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::instances::CLIENT;

/// How many orders are under way at the most.
const BUYERS: u64 = 500;

/// How long one request may take, and one order with all its requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const ORDER_TIMEOUT: Duration = Duration::from_mins(1);

/// How long to wait before an order is sent again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What is fired.
pub(super) struct Salvo {
    /// What the order ids begin with.
    pub(super) id: String,
    pub(super) requests: u64,
    pub(super) authorities: Vec<Arc<str>>,
    /// Orders to this instance go first; all others wait until `held_back` says so.
    pub(super) first: Option<Arc<str>>,
    pub(super) held_back: watch::Receiver<bool>,
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
///
/// # Cancel safety
/// When it is dropped, no further order is sent.
pub(super) async fn fire(salvo: Salvo, count: Arc<Count>) -> HashSet<u64> {
    let workers = salvo.requests.min(BUYERS);
    let salvo = Arc::new(salvo);
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (salvo, count, next) = (Arc::clone(&salvo), Arc::clone(&count), Arc::clone(&next));
        tasks.spawn(async move {
            let mut at = usize::try_from(worker).unwrap_or(0) % salvo.authorities.len();
            salvo.wait_for_turn(at).await;
            let mut sold = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= salvo.requests {
                    return sold;
                }
                let counter = match salvo.order(number, &mut at).await {
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
    tasks.join_all().await.into_iter().flatten().collect()
}

impl Salvo {
    /// Waits until orders may go to the instance at this place.
    async fn wait_for_turn(&self, at: usize) {
        if self.first.as_ref().is_some_and(|first| *first != self.authorities[at]) {
            // an error means that nothing holds them back any more
            drop(self.held_back.clone().wait_for(|held_back| !held_back).await);
        }
    }

    /// Sends one order to the instance at this place, and to the next ones until it is answered.
    async fn order(&self, number: u64, at: &mut usize) -> Told {
        let id = order_id(&self.id, number);
        let deadline = Instant::now() + ORDER_TIMEOUT;
        let mut pause = SHORTEST_PAUSE;
        loop {
            match self.ask(&id, *at).await {
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
            *at = (*at + 1) % self.authorities.len();
        }
    }

    async fn ask(&self, id: &str, at: usize) -> reqwest::Result<StatusCode> {
        let url = format!("http://{}/stock/reduce", self.authorities[at]);
        let request = CLIENT.post(url).header("idempotency-key", id).timeout(REQUEST_TIMEOUT);
        let answer = request.send().await?;
        let status = answer.status();
        // a connection whose answer was read serves the next order
        answer.bytes().await?;
        Ok(status)
    }
}
