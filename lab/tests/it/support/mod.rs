//! What several areas need: sessions of the lock, orders, and the stock in servers of the tests.

use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionOptions};
use flash_sale::inventory::{Inventory, InventoryOptions, Item, Order, OrderId, Quantity, User};

/// One session at `endpoint` under this label.
pub(crate) async fn session(endpoint: &str, label: &str) -> Session {
    Session::open(backend(endpoint), session_options(label)).await.unwrap()
}

fn backend(endpoint: &str) -> Arc<EtcdBackend> {
    Arc::new(EtcdBackend::new(EtcdOptions::new([endpoint])).unwrap())
}

fn session_options(label: &str) -> SessionOptions {
    SessionOptions { label: label.into(), ..SessionOptions::new(Duration::from_secs(5)) }
}

pub(crate) async fn connect(url: &str) -> Inventory {
    Inventory::connect(url, InventoryOptions::default()).await.unwrap()
}

/// An order of the default item for nobody in particular.
pub(crate) fn order(id: &str, units: u32) -> Order {
    Order {
        id: OrderId::new(id).unwrap(),
        item: Item::DEFAULT,
        quantity: Quantity::new(units).unwrap(),
        user: User::default(),
    }
}
