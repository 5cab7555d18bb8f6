//! Each order under a tenure of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{MemoryBackend, Session, SessionKeeper, SessionOptions};
use flash_sale::inventory::Outcome;
use flash_sale::sale::{HoldMode, Sale, SaleError, SaleOptions};
use futures_util::future::join_all;
use testkit::wait::{eventually, within};
use tokio::task::yield_now;

use super::{Market, accepted};
use crate::support::etcd::{session, sessions};
use crate::support::store::order;

impl Market {
    /// An instance that takes the lock for each order.
    fn lone(&self, wait_timeout: Duration, sessions: SessionKeeper) -> Sale {
        let hold = HoldMode::Request;
        let options = SaleOptions { hold, wait_timeout, ..self.options("a") };
        Sale::guarded(self.inventory(), sessions, options)
    }
}

/// Goal: orders that wait together have a claim, a tenure and a batch each, and no claim is left.
#[tokio::test]
async fn each_order_has_a_tenure_of_its_own() {
    let market = Market::of(10).await;
    let sale = market.lone(Duration::from_secs(20), sessions(&market.etcd, "a"));
    let other = session(&market.etcd, "other").await.mutex(&market.lock_name).unwrap();
    let turn = other.lock().await.unwrap();
    let orders = ["1", "2", "3"].map(|id| sale.reduce(order(id, 1)));
    let (sold, ()) = tokio::join!(join_all(orders), async {
        eventually("each has a claim", async || other.queue().await.unwrap().len() == 4).await;
        assert_eq!(sale.waiting(), 3);
        turn.unlock().await.unwrap();
    });
    let tokens: HashSet<_> = sold.into_iter().map(|sold| accepted(sold.unwrap()).token).collect();
    assert_eq!(tokens.len(), 3);
    eventually("no claim is left", async || other.queue().await.unwrap().is_empty()).await;
    let metrics = sale.metrics();
    let [.., waits] = metrics.lock_wait.cumulative();
    let [.., tenures] = metrics.tenure_time.cumulative();
    assert_eq!((waits, tenures, metrics.batches.get(), metrics.handovers.get()), (3, 3, 3, 0));
    sale.close().await;
}

/// Goal: a sale that closes gives up an order whose batch is not answered, and does not wait out its time.
#[tokio::test]
async fn a_closing_sale_sends_nothing_again() {
    let market = Market::of(10).await;
    let (behind, proxy) = market.through_proxy().await;
    let sale = behind.lone(Duration::from_hours(1), sessions(&market.etcd, "a"));
    accepted(sale.reduce(order("first", 1)).await.unwrap());
    let other = session(&market.etcd, "other").await.mutex(&market.lock_name).unwrap();
    let turn = other.lock().await.unwrap();
    let (sold, ()) =
        tokio::join!(within("it is answered", sale.reduce(order("stuck", 1))), async {
            eventually("it has a claim", async || other.queue().await.unwrap().len() == 2).await;
            proxy.freeze();
            turn.unlock().await.unwrap();
            eventually("its batch is under way", async || proxy.holds_something()).await;
            within("it closes", sale.close()).await;
        });
    assert!(matches!(sold, Err(SaleError::OutcomeUnknown { .. })), "{sold:?}");
}

/// Goal: an order that loses the lock at any moment around its grant is answered in its time, and the sale
/// closes. Method: a lock service in memory and one thread, so that a number of turns of the runtime decides
/// when the claim is deleted; from then on another client holds the lock.
#[tokio::test]
async fn a_claim_lost_around_its_grant_does_not_wait_for_ever() {
    let wait_timeout = Duration::from_millis(200);
    for turns in 0..16 {
        let market = Market::of(1).await;
        let service = MemoryBackend::new();
        let lock = || Arc::new(service.clone());
        let options = SessionOptions::new(Duration::from_mins(1));
        let rival = Session::open(lock(), options.clone()).await.unwrap();
        let rival = rival.mutex(&market.lock_name).unwrap();
        let before = rival.lock().await.unwrap();
        let sessions = SessionKeeper::start(lock(), options);
        let options = SaleOptions { hold: HoldMode::Request, wait_timeout, ..market.options("a") };
        let sale = Sale::guarded(market.inventory(), sessions, options);

        let sold = async {
            let sold = sale.reduce(order("a-1", 1)).await;
            sale.close().await;
            sold
        };
        let lose = async {
            while rival.queue().await.unwrap().len() < 2 {
                yield_now().await;
            }
            let claim = rival.queue().await.unwrap().remove(1);
            let (after, ()) = tokio::join!(rival.lock(), async {
                while rival.queue().await.unwrap().len() < 3 {
                    yield_now().await;
                }
                drop(before);
                while rival.queue().await.unwrap()[0].key != claim.key {
                    yield_now().await;
                }
                for _ in 0..turns {
                    yield_now().await;
                }
                service.delete(&claim.key);
            });
            after.unwrap()
        };
        let (sold, _after) =
            within("the order is answered", async { tokio::join!(sold, lose) }).await;
        let orders = market.ledger().await.len();
        match sold {
            Ok(Outcome::Reserved(_)) => assert_eq!(orders, 1),
            Err(SaleError::WaitTooLong { .. }) => assert_eq!(orders, 0),
            other => panic!("after {turns} turns: {other:?}"),
        }
    }
}
