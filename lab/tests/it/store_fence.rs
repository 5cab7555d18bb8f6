//! Goal: under a lock without tokens, the store's own fence keeps a holder that was overtaken from selling.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{Backend, MemoryBackend, Session, SessionOptions, Token};
use flash_sale::inventory::{Inventory, InventoryError, Item, Outcome};
use lab::locks::{STORE, StoreFence};
use testkit::shared::fresh_database;
use testkit::wait::within;

use crate::support::store::{connect, order};

const LOCK: &str = "lock";

/// A lock whose own tokens count for nothing here, and a stock.
async fn lab() -> (MemoryBackend, Inventory) {
    (MemoryBackend::new(), connect(&fresh_database().await).await)
}

/// A session of an instance of its own.
async fn session(lock: &MemoryBackend, inventory: &Inventory) -> Session {
    let lock: Arc<dyn Backend<Token = Token>> = Arc::new(lock.clone());
    let fenced = StoreFence::new(lock, inventory.clone(), LOCK);
    Session::open(Arc::new(fenced), SessionOptions::new(Duration::from_mins(1))).await.unwrap()
}

/// Goal: when two hold the lock at once, since it was taken from the first one without its knowledge, only the second one sells.
#[tokio::test]
async fn a_holder_that_was_overtaken_is_refused() {
    let (lock, inventory) = lab().await;
    inventory.start(&Item::DEFAULT, None, 10).await.unwrap();
    let sessions = [session(&lock, &inventory).await, session(&lock, &inventory).await];
    let first = sessions[0].mutex(LOCK).unwrap().lock().await.unwrap();
    let sell =
        async |token, id| inventory.reduce(&Item::DEFAULT, Some(token), "a", &[order(id, 1)]).await;
    assert!(matches!(&sell(first.token(), "1").await.unwrap()[..], [Outcome::Reserved(_)]));
    lock.delete(&first.key());
    let second = within("the second grant", sessions[1].mutex(LOCK).unwrap().lock()).await.unwrap();
    assert!(second.token() > first.token() && second.token().cluster() == STORE);
    // the first holder has not looked, as if it had been paused
    let refused = sell(first.token(), "2").await.unwrap_err();
    assert!(matches!(refused, InventoryError::StaleToken { .. }), "{refused}");
    assert!(matches!(&sell(second.token(), "3").await.unwrap()[..], [Outcome::Reserved(_)]));
}

/// Goal: each item has a fence of its own, also an item whose name begins as the lock's does.
#[tokio::test]
async fn items_have_fences_of_their_own() {
    let (lock, inventory) = lab().await;
    let session = session(&lock, &inventory).await;
    let revision = async |name: &str| {
        let guard = session.mutex(name).unwrap().lock().await.unwrap();
        let revision = guard.token().revision();
        guard.unlock().await.unwrap();
        revision
    };
    assert_eq!(revision(LOCK).await, 1);
    assert_eq!(revision("lock:lock").await, 1);
    assert_eq!(revision(LOCK).await, 2);
    assert_eq!(revision("lock:lock").await, 2);
}

/// Goal: the fence of another cluster stays as it is, and the sale says what is wrong, as under any lock.
#[tokio::test]
async fn a_foreign_fence_stays() {
    let (lock, inventory) = lab().await;
    let etcd = Token::new(fenced_lock::ClusterId(7), 70);
    inventory.start(&Item::DEFAULT, Some(etcd), 10).await.unwrap();
    let session = session(&lock, &inventory).await;
    let guard = session.mutex(LOCK).unwrap().lock().await.unwrap();
    let sold = inventory.reduce(&Item::DEFAULT, Some(guard.token()), "a", &[order("1", 1)]).await;
    let refused = sold.unwrap_err();
    assert!(
        matches!(refused, InventoryError::ForeignFence { fence, .. } if fence.revision() == 70),
        "{refused}"
    );
}
