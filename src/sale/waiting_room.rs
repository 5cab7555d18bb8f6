//! The bound on waiting orders.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::SaleError;
use crate::inventory::Item;

/// Bounds the waiting orders of each item separately, so that a run on one item does not block another.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    places: usize,
    /// One entry for each item with waiting orders. Unused entries are removed when a new item comes in.
    items: Mutex<HashMap<Item, Arc<Semaphore>>>,
}

/// A place in the waiting room. Its drop returns it.
pub type WaitingPlace = OwnedSemaphorePermit;

impl WaitingRoom {
    pub(super) fn new(places: usize) -> Self {
        // a semaphore cannot count further
        Self { places: places.min(Semaphore::MAX_PERMITS), items: Mutex::default() }
    }

    /// The number of taken places, of all items.
    pub(super) fn taken(&self) -> usize {
        let items = self.items.lock();
        items.values().map(|room| self.places - room.available_permits()).sum()
    }

    pub(super) fn enter(&self, item: &Item) -> Result<WaitingPlace, SaleError> {
        let room = {
            let mut items = self.items.lock();
            if let Some(room) = items.get(item) {
                Arc::clone(room)
            } else {
                items.retain(|_, room| room.available_permits() < self.places);
                let room = Arc::new(Semaphore::new(self.places));
                items.insert(item.clone(), Arc::clone(&room));
                room
            }
        };
        let full = |_| SaleError::QueueFull { item: item.clone(), limit: self.places };
        room.try_acquire_owned().map_err(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bound holds for each item separately, and a returned place can be taken again.
    #[test]
    fn places_are_bounded_for_each_item() {
        let room = WaitingRoom::new(1);
        let other: Item = "other".parse().expect("a valid name");
        let place = room.enter(&Item::DEFAULT).expect("the room is empty");
        assert!(matches!(room.enter(&Item::DEFAULT), Err(SaleError::QueueFull { limit: 1, .. })));
        let _other = room.enter(&other).expect("another item has a room of its own");
        assert!(room.enter(&Item::DEFAULT).is_err(), "sweeping keeps rooms in use");
        drop(place);
        drop(room.enter(&Item::DEFAULT).expect("the place was given back"));
    }
}
