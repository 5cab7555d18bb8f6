//! A store that was told its scripts at the start. For tests: see [`crate::defence`].

use super::connection::Effect;
use super::script::WRITE;
use super::{Inventory, InventoryError, read};

impl Inventory {
    /// Has the store learn all scripts, for a service that will not send them again.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn load_scripts(&self) -> Result<(), InventoryError> {
        for script in
            [&*WRITE, &*read::STOCK, &*read::LEDGER, &*read::STOCK_AND_ORDER, &*read::INSPECT]
        {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.source);
            let _: String = self.connection.query(&load, Effect::Read).await?;
        }
        Ok(())
    }
}
