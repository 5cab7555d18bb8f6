//! The script that writes, without what was taken away. For tests: see [`crate::defence`].

use redis::Value;

use super::connection::Effect;
use super::script::{WRITE, not_understood};
use super::{Inventory, InventoryError, Item, Keys, read};
use crate::defence::Defence;
use crate::fault::{self, Point};

/// What is replaced so that a known order id is taken again.
const IDS: [(&str, &str); 2] = [
    ("local record = known[i] or accepted[id]\n", "local record = nil\n"),
    // an id that comes twice is twice in the ledger and once among the orders
    ("if position ~= records then", "if false then"),
];

/// What is replaced so that the units sold and the ledger are left for a second command.
const LEDGER: [(&str, &str); 2] = [
    (
        "  writes[#writes + 1] = LUCKY\n  writes[#writes + 1] = decimal(lucky + sold)\n",
        "  answers[#answers + 1] = {decimal(sold), added, fields}\n",
    ),
    (
        "  redis.call('HSET', ORDERS, unpack(fields))\n  redis.call('RPUSH', LEDGER, unpack(added))\n",
        "",
    ),
];

/// The second command.
const FINISH: &str = "#!lua
local LUCKY, ORDERS, LEDGER = KEYS[2], KEYS[4], KEYS[5]
local added, fields = {}, {}
for i = 2, #ARGV, 2 do
  added[#added + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
end
redis.call('INCRBY', LUCKY, ARGV[1])
redis.call('HSET', ORDERS, unpack(fields))
redis.call('RPUSH', LEDGER, unpack(added))
return 'ok'";

/// The script as this process runs it.
pub(super) fn source(source: &'static str) -> &'static str {
    let mut changes = Vec::new();
    if !Defence::OrderIds.is_on() {
        changes.extend(IDS);
    }
    if !Defence::AtomicLedger.is_on() {
        changes.extend(LEDGER);
    }
    // once in a process
    Box::leak(changed(source, &changes).into_boxed_str())
}

fn changed(source: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(source.to_owned(), |source, (from, to)| {
        assert!(source.matches(from).count() == 1, "the script has no longer: {from}");
        source.replacen(from, to, 1)
    })
}

/// Writes what the first command left, if it left anything.
pub(super) async fn finish(
    inventory: &Inventory,
    item: &Item,
    mut answers: Vec<Value>,
    orders: usize,
) -> Result<Vec<Value>, InventoryError> {
    if Defence::AtomicLedger.is_on() || answers.len() != orders + 1 {
        return Ok(answers);
    }
    let left = answers.pop().ok_or_else(not_understood)?;
    fault::at(Point::BetweenWrites).await;
    let (sold, _, fields): (String, Vec<String>, Vec<String>) =
        redis::from_redis_value(left).map_err(|_| not_understood())?;
    let keys = Keys::of(item);
    let arguments = |command: &mut redis::Cmd| {
        command.arg(&sold).arg(&fields);
    };
    let mut run = redis::cmd("EVAL");
    run.arg(FINISH).arg(keys.all().len()).arg(&keys.all()[..]);
    arguments(&mut run);
    let _: String = inventory.connection.query(&run, Effect::Write).await?;
    Ok(answers)
}

impl Inventory {
    /// Has the store learn all scripts, for a service that will not send them again.
    ///
    /// # Errors
    /// See [`InventoryError`].
    pub async fn load_scripts(&self) -> Result<(), InventoryError> {
        let sources =
            [&*WRITE, &*read::STOCK, &*read::LEDGER, &*read::LOOK, &*read::FOUND].map(|s| s.source);
        for source in sources.into_iter().chain([FINISH]) {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(source);
            let _: String = self.connection.query(&load, Effect::Read).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the script still has what is replaced in it.
    #[test]
    fn the_script_can_be_changed() {
        let source = include_str!("script.lua");
        let without_ids = changed(source, &IDS);
        assert!(!without_ids.contains("known[i]"), "{without_ids}");
        let in_two = changed(source, &LEDGER);
        let pushes = "redis.call('RPUSH'";
        assert!(!in_two.contains(pushes), "{in_two}");
        assert!(!changed(&without_ids, &LEDGER).contains(pushes));
    }
}
