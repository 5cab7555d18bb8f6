//! Writes batches as the service does, with the fault that the control asks for, and on request without the fence.

use std::sync::Arc;

use flash_sale::inventory::{Answer, Batch, BatchWriter, Inventory, InventoryError};
use futures_util::future::BoxFuture;

use super::rig::{FENCE, Rig};

/// The inventory's writer at an instance of the demo.
#[derive(Debug)]
pub(super) struct Writer(pub(super) Arc<Rig>);

impl BatchWriter for Writer {
    fn reduce<'a>(
        &'a self,
        inventory: &'a Inventory,
        batch: Batch<'a>,
    ) -> BoxFuture<'a, Result<Vec<Answer>, InventoryError>> {
        Box::pin(async move {
            let Some(token) = batch.token else { return inventory.reduce_by_script(batch).await };
            self.0.begin(batch.item, token);
            let written = if self.0.has(FENCE) {
                self.0.about_to_write(Some(token)).await;
                inventory.reduce_by_script(batch).await
            } else {
                write_what_was_seen(&self.0, inventory, batch).await
            };
            let refused_by = match &written {
                Err(InventoryError::StaleToken { fence, .. }) => Some(*fence),
                _ => None,
            };
            self.0.end(token, refused_by);
            written
        })
    }
}

/// Reads the stock, and sells by the number that it read; the store gets no token. This is correct while no holder is paused
/// beyond its lease: a holder that was paused for longer undoes the next one's sales.
pub async fn write_what_was_seen(
    rig: &Rig,
    inventory: &Inventory,
    batch: Batch<'_>,
) -> Result<Vec<Answer>, InventoryError> {
    let _one_at_a_time = rig.unfenced.lock().await;
    let seen = inventory.available(batch.item).await?;
    rig.about_to_write(batch.token).await;
    let mut set = redis::cmd("SET");
    inventory.command::<()>(set.arg(batch.item.key("stock")).arg(seen)).await?;
    inventory.reduce_by_script(Batch { token: None, ..batch }).await
}
