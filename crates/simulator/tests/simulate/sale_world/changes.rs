//! An operator who changes the sale while it runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flash_sale::inventory::{ChangeCall, Changed, Entry, Item, OrderId, SaleChange};
use simulator::Chance;
use tokio::time::{Instant, sleep};

use super::{NoAnswer, World};
use crate::trace::{Rare, happened, has_happened, is_violated, locked, note, too_late, violation};

/// The longest hold of a run, in seconds.
pub const LONGEST_HOLD: u32 = 5;

/// The chance of the changes in this run, if it has any.
pub fn chance(seed: u64) -> Option<Chance> {
    // a chance of its own: the rest of the run does not depend on it
    let mut chance = Chance::new(seed.rotate_left(32));
    chance.one_in(4).then_some(chance)
}

/// Changes the sale several times. At the end the sale is not paused.
pub async fn operate(world: Arc<World>, mut chance: Chance) {
    for number in 0..chance.between(1, 8) {
        let pause = chance.millis(0, 1500);
        sleep(pause).await;
        if is_violated() {
            break;
        }
        let terms = &world.shape.terms;
        let mut change = SaleChange::default();
        match chance.below(6) {
            0..2 => change.add = Some(*chance.pick(&[1, 1, 2, 3])),
            2 => change.add = Some(*chance.pick(&[-1, -1, -2, -9])),
            3 => change.paused = Some(chance.one_in(2)),
            4 => change.per_user = Some(*chance.pick(&[1, 2, 3])),
            _ => change.hold_seconds = terms.hold_seconds.map(|_| *chance.pick(&[1, LONGEST_HOLD])),
        }
        if chance.one_in(4) || change == SaleChange::default() {
            change.paused = Some(chance.one_in(2));
        }
        make(&world, &mut chance, &format!("k{number}"), change).await;
    }
    make(&world, &mut chance, "last", SaleChange { paused: Some(false), ..SaleChange::default() })
        .await;
    world.buyers.fetch_sub(1, Ordering::Relaxed);
}

/// Asks for one change until its outcome is known, and sometimes once more.
async fn make(world: &Arc<World>, chance: &mut Chance, key: &str, change: SaleChange) {
    let change = SaleChange { note: Some(key.into()), ..change };
    let (key, sales) = (OrderId::new(key).expect("a valid key"), vec!["s".parse().expect("an id")]);
    let call = ChangeCall { key, change, sales };
    let (began_at, mut first) = (Instant::now(), None::<Changed>);
    loop {
        let (call, to) = (call.clone(), chance.index(world.shape.instances));
        let patience =
            if chance.one_in(6) { chance.millis(0, 100) } else { world.shape.longest() * 3 };
        let key = call.key.as_str().to_owned();
        let said = world
            .call(to, patience, |sale| async move { sale.change(&Item::DEFAULT, &call).await })
            .await;
        let shown = said.as_ref().map_err(|_| "no answer");
        note("operator", || format!("{key} at {to}: {shown:?}"));
        match said {
            Ok(Ok(changed)) => {
                happened(Rare::TermsChanged);
                if changed.is_repeated {
                    happened(Rare::ChangeMadeBefore);
                }
                let is_other =
                    |first: &Changed| first.entry != changed.entry || !changed.is_repeated;
                if first.as_ref().is_some_and(is_other) {
                    violation(format!("the change {key} was made twice"));
                }
                let is_over = first.is_some() || !chance.one_in(3);
                locked(&world.state).changes.insert(key, Some(changed.entry.position));
                first = Some(changed);
                if is_over {
                    return;
                }
            }
            Ok(Err(error)) if matches!(error.word(), "too-few-units" | "term-final") => {
                if first.is_some() {
                    violation(format!("the change {key} was made, and then refused: {error}"));
                }
                locked(&world.state).changes.insert(key, None);
                return;
            }
            Ok(Err(_)) | Err(NoAnswer::Refused | NoAnswer::Broken | NoAnswer::Left) => {}
        }
        if is_violated() || began_at.elapsed() > Duration::from_mins(5) {
            too_late("the sale could not be changed");
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Checks that the ledger has each change that was made, once and at the place that the operator was told, and no change that was
/// refused.
pub fn check(world: &World, ledger: &[Entry]) {
    let told = locked(&world.state).changes.clone();
    let mut made = BTreeSet::new();
    for entry in ledger {
        let Entry::Other(entry) = entry else { continue };
        let key = entry.content["note"].as_str().unwrap_or_default();
        // a failover can lose the fence that a refusal raised
        let is_known = told.get(key).is_some_and(|place| *place == Some(entry.position));
        if !made.insert(key) || !is_known && !has_happened(Rare::FailedOverWithLoss) {
            violation(format!(
                "the change {key} at {}, of which was told {:?}",
                entry.position,
                told.get(key)
            ));
        }
    }
    for (key, _) in told.iter().filter(|(key, place)| place.is_some() && !made.contains(&***key)) {
        violation(format!("the change {key} was made, and is not there"));
    }
}
