//! Whose run of a demo it is: instances of one demo share their store, and one run goes on at a time.

use std::time::Duration;

use super::connection::Effect;
use super::{Inventory, InventoryError};

/// No item is called so. The rights that an instance needs for the keys of items are enough for it.
const KEY: &str = "sale:{.run}";

const HOLD: &str = "#!lua
local by = redis.call('GET', KEYS[1])
if by and by ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1";

impl Inventory {
    /// Makes the run of the demo that of `run` for `time` from now on, or gives it back if that is zero.
    /// `false` if it is another's.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn hold_run(&self, run: &str, time: Duration) -> Result<bool, InventoryError> {
        let mut hold = redis::cmd("EVAL");
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        hold.arg(HOLD).arg(1).arg(KEY).arg(run).arg(time);
        self.connection.query(&hold, Effect::Write).await
    }
}
