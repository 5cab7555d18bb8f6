//! The write without some safeguards: one script with a flag for each.

use std::collections::HashSet;

use flash_sale::inventory::{
    Accepted, Action, Answer, Attempt, Batch, Inventory, InventoryError, Order, Outcome,
    parse_token, token_record,
};
use redis::{ErrorKind, RedisError};

use super::fault::{self, Point};
use super::safeguard::Safeguard;
use super::writer::Writer;

/// The first of two commands, or the only one.
const TAKE: &str = concat!("#!lua\n", include_str!("by_flags.lua"));

const FINISH: &str = "#!lua
local LUCKY, ORDERS, LEDGER = unpack(KEYS)
redis.call('INCRBY', LUCKY, ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call('HSET', ORDERS, ARGV[i], ARGV[i + 1])
  redis.call('RPUSH', LEDGER, ARGV[i])
end
return 'ok'";

/// The same as [`Inventory::reduce`], without the safeguards that are off.
pub(super) async fn reduce(
    writer: &Writer,
    inventory: &Inventory,
    Batch { item, token, attempts }: Batch<'_>,
) -> Result<Vec<Answer>, InventoryError> {
    let flag = |safeguard| if writer.has(safeguard) { "1" } else { "" };
    let mut take = if writer.has(Safeguard::ScriptReload) {
        let mut take = redis::cmd("EVAL");
        take.arg(TAKE);
        take
    } else {
        let mut take = redis::cmd("EVALSHA");
        take.arg(writer.digest.get_or_try_init(|| load(inventory)).await?);
        take
    };
    take.arg(5).arg(&["stock", "lucky", "orders", "ledger", "fence"].map(|name| item.key(name)));
    take.arg(token.map(token_record).unwrap_or_default())
        .arg(flag(Safeguard::OrderIds))
        .arg(flag(Safeguard::AtomicLedger));
    take.arg(attempts[0].holder.unwrap_or(attempts[0].instance));
    for Attempt { order, .. } in attempts {
        take.arg(order.key()).arg(order.quantity.get()).arg(order.user.as_str());
    }
    let (status, detail, fields, answers): (String, String, Vec<String>, Vec<String>) =
        fault::once_sent(inventory.command(&take)).await?;
    match (&*status, token, parse_token(&detail)) {
        ("ok", ..) => {}
        ("stale", Some(token), Some(fence)) => {
            return Err(InventoryError::StaleToken { token, fence });
        }
        ("foreign", Some(token), Some(fence)) => {
            return Err(InventoryError::ForeignFence { fence, token });
        }
        _ => return Err(InventoryError::UnknownItem),
    }
    if !fields.is_empty() && !writer.has(Safeguard::AtomicLedger) {
        fault::at(Point::BetweenWrites).await;
        let mut finish = redis::cmd("EVAL");
        finish.arg(FINISH).arg(3).arg(&["lucky", "orders", "ledger"].map(|name| item.key(name)));
        finish.arg(detail).arg(&fields);
        let _: String = inventory.command(&finish).await?;
    }
    let mut new: HashSet<_> = fields.iter().step_by(2).map(String::as_str).collect();
    let outcome =
        |(attempt, answer): (&Attempt<'_>, &String)| outcome(attempt.order, answer, &mut new);
    attempts.iter().zip(&answers).map(outcome).collect()
}

/// Gives units back once more for each cancellation that the script refused, or had carried out before.
pub(super) async fn give_back_again(
    inventory: &Inventory,
    batch: Batch<'_>,
    answers: &[Answer],
) -> Result<(), InventoryError> {
    let [stock, lucky] = ["stock", "lucky"].map(|name| batch.item.key(name));
    let cancelled =
        batch.attempts.iter().zip(answers).filter(|(one, _)| one.order.action == Action::Cancel);
    for (_, (outcome, _)) in cancelled {
        if !matches!(outcome, Outcome::Changed { is_repeated: false, .. } | Outcome::Unknown) {
            inventory.command::<i64>(redis::cmd("INCR").arg(&stock)).await?;
            inventory.command::<i64>(redis::cmd("DECR").arg(&lucky)).await?;
        }
    }
    Ok(())
}

async fn load(inventory: &Inventory) -> Result<String, InventoryError> {
    inventory.command(redis::cmd("SCRIPT").arg("LOAD").arg(TAKE)).await
}

/// `answer` is the record of the accepted order, or the stock that did not suffice. An id in `new` was accepted by this batch;
/// the first answer for it says so, and further answers are repetitions. The texts are those of the service's script.
fn outcome(order: &Order, answer: &str, new: &mut HashSet<&str>) -> Result<Answer, InventoryError> {
    if let Ok(left) = answer.parse::<i64>() {
        let remaining = u64::try_from(left).unwrap_or(0);
        return Ok((Outcome::SoldOut { remaining }, format!("sold-out\t{remaining}")));
    }
    let first = Accepted::parse(&order.key(), answer).ok_or_else(|| {
        let source: RedisError = (ErrorKind::UnexpectedReturnType, "not understood").into();
        InventoryError::Unanswered { source }
    })?;
    let is_new = new.remove(&*order.key());
    Ok(match first.is_repeated_by(order) {
        true if is_new => (Outcome::Reserved(first), answer.to_owned()),
        true => (Outcome::Repeated(first), format!("repeated\t{answer}")),
        false => (Outcome::Conflict, "conflict".to_owned()),
    })
}
