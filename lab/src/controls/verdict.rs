//! Whether every unit was sold once, and what to say about it.

use std::collections::HashSet;
use std::fmt::Write as _;

use flash_sale::http::reply::grouped;
use flash_sale::inventory::{Inventory, Item, Stock};
use flash_sale::sale::{Sale, SaleError};

use super::fire::order_id;
use super::record::{Fault, Run, Verdict};

/// How many pages of the ledger are read: more than the largest run fills.
const MOST_PAGES: u64 = 1001;

/// How many of the orders of these numbers the ledger does not have.
pub(super) async fn count_lost(
    sale: &Sale,
    salvo: &str,
    sold: &HashSet<u64>,
) -> Result<u64, SaleError> {
    let mut missing = sold.clone();
    let prefix = order_id(salvo, 0);
    let prefix = prefix.trim_end_matches('0');
    let page = u64::from(Inventory::MAX_PAGE);
    for number in 0..MOST_PAGES {
        let orders = sale.ledger(&Item::DEFAULT, number * page, Inventory::MAX_PAGE).await?;
        for accepted in &orders {
            let number = accepted.order.as_str().strip_prefix(prefix);
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                missing.remove(&number);
            }
        }
        if (orders.len() as u64) < page {
            break;
        }
    }
    Ok(missing.len() as u64)
}

/// What the buyers were told, against what there was.
pub(super) fn judge(run: &Run, now: &Stock, lost: u64, stale_batches: u64) -> Verdict {
    let oversold = run.sold.saturating_sub(run.stock);
    let balanced = now.is_balanced();
    // units that stayed unsold although an order was answered "sold out"
    let left =
        if run.failed == 0 { run.stock.min(run.requests).saturating_sub(run.sold) } else { 0 };
    let pass = oversold == 0 && lost == 0 && balanced && left == 0;
    let mut verdict = Verdict {
        pass,
        sold: run.sold,
        sold_out: run.sold_out,
        unanswered: run.failed,
        oversold,
        lost,
        stock: now.stock,
        lucky: now.lucky,
        balanced,
        stale_batches,
        text: String::new(),
    };
    verdict.text = sentence(run, &verdict, left);
    verdict
}

fn sentence(run: &Run, verdict: &Verdict, left: u64) -> String {
    let [sold, sold_out, stock] = [verdict.sold, verdict.sold_out, run.stock].map(grouped);
    let Verdict { unanswered, oversold, lost, .. } = *verdict;
    let mut text = if oversold > 0 {
        let oversold = grouped(oversold);
        format!("Sold {sold} of {stock}: {oversold} too many. {}", cause(run))
    } else if lost > 0 {
        let lost = grouped(lost);
        format!(
            "{lost} buyers were told that they got one and are not in the ledger. {}",
            cause(run)
        )
    } else if !verdict.balanced {
        let [now, lucky] = [verdict.stock, verdict.lucky].map(grouped);
        format!(
            "{now} in stock and {lucky} sold are not the {stock} that there were. {}",
            cause(run)
        )
    } else if left > 0 {
        let left = grouped(left);
        format!("{left} units were left although buyers were told that nothing was. {}", cause(run))
    } else {
        format!("{sold} of {stock} sold, {sold_out} told sold out: every unit went to one buyer.")
    };
    if unanswered > 0 {
        let unanswered = grouped(unanswered);
        let _ = write!(text, " {unanswered} buyers got no answer.");
    }
    // writing to a text cannot fail
    let victim = run.victim.as_deref().unwrap_or("the holder");
    let _ = match (run.fault, verdict.stale_batches) {
        (Some(Fault::Pause), 0) if run.fence => {
            write!(text, " {victim} was paused while it held the lock.")
        }
        (Some(Fault::Pause), n) if n > 0 => write!(
            text,
            " {victim} was paused beyond its lease; when it went on, the fence refused its batch."
        ),
        (Some(Fault::Kill), _) => write!(
            text,
            " {victim} was killed while it held the lock; the next was served when its lease had ended."
        ),
        _ => Ok(()),
    };
    text
}

/// Why it went wrong, as far as the run's own settings explain it.
fn cause(run: &Run) -> &'static str {
    match (run.guard.as_str(), run.fence, run.fault) {
        ("none" | "unguarded", ..) => "That is what happens without a lock.",
        ("local", ..) => {
            "That is what happens without a lock between the instances: each one guards the stock only \
             against itself."
        }
        (_, false, Some(Fault::Pause)) => {
            "The holder was paused beyond its lease and then wrote what it had decided before: without a \
             fence, nothing stops it."
        }
        _ => "That must not happen: it is a fault of the service.",
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::State;
    use super::*;

    fn run(guard: &str, sold: u64, sold_out: u64) -> Run {
        Run {
            id: "1-8080".into(),
            at_ms: 1,
            by: "8080".into(),
            state: State::Checking,
            stock: 300,
            requests: 500,
            guard: guard.into(),
            fence: true,
            fault: None,
            victim: None,
            answered: sold + sold_out,
            sold,
            sold_out,
            failed: 0,
            elapsed_ms: 1,
            verdict: None,
            error: None,
        }
    }

    fn stock(stock: i64, lucky: i64) -> Stock {
        Stock { stock, lucky, initial: 300, fence: None, orders: 300, sale: Some(1) }
    }

    #[test]
    fn every_unit_sold_once_passes() {
        let verdict = judge(&run("etcd", 300, 200), &stock(0, 300), 0, 0);
        assert!(verdict.pass, "{verdict:?}");
        assert_eq!(
            verdict.text,
            "300 of 300 sold, 200 told sold out: every unit went to one buyer."
        );
    }

    #[test]
    fn each_fault_is_told() {
        let oversold = judge(&run("none", 500, 0), &stock(289, 500), 0, 0);
        assert!(!oversold.pass && oversold.oversold == 200, "{oversold:?}");
        assert!(oversold.text.contains("200 too many. That is what happens without a lock."));
        let lost = judge(&run("etcd", 300, 200), &stock(0, 300), 2, 0);
        assert!(!lost.pass && lost.text.starts_with("2 buyers were told"), "{lost:?}");
        let unbalanced = judge(&run("local", 300, 200), &stock(4, 300), 0, 0);
        assert!(!unbalanced.pass && unbalanced.text.contains("not the 300"), "{unbalanced:?}");
        let left = judge(&run("etcd", 290, 210), &stock(10, 290), 0, 0);
        assert!(!left.pass && left.text.starts_with("10 units were left"), "{left:?}");
    }

    #[test]
    fn a_refused_batch_is_told() {
        let mut paused = run("etcd", 300, 200);
        (paused.fault, paused.victim) = (Some(Fault::Pause), Some("8090".into()));
        let verdict = judge(&paused, &stock(0, 300), 0, 1);
        assert!(
            verdict.pass && verdict.text.ends_with("the fence refused its batch."),
            "{verdict:?}"
        );
    }
}
