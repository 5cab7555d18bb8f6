//! What only the clients' clock shows: I3, I5 and I6.

use std::time::Duration;

use super::*;

/// Goal: an order whose every attempt was refused must not be in the ledger; one attempt without an
/// answer is enough to allow it.
#[test]
fn refusals_must_have_taken_nothing() {
    let mut history = good();
    history.orders[5].outcome = FinalOutcome::Unknown;
    assert_eq!(kinds(&history), ["untold"]);
    let message = judge(&history).message;
    assert!(message.starts_with("FAIL: I3 unacknowledged: 1 order is in the ledger"), "{message}");
    history.orders[5].in_doubt = true;
    assert_eq!(kinds(&history), [""; 0]);

    let failed = FinalOutcome::Failed { status: 500, kind: "500 internal".to_owned() };
    history.orders[5].outcome = failed;
    assert_eq!(kinds(&history), ["failed"], "an earlier attempt may have taken it");
    history.orders[5].in_doubt = false;
    assert_eq!(kinds(&history), ["untold", "failed"]);

    history.orders[5] = Order { in_doubt: true, ..order(5, FinalOutcome::SoldOut) };
    assert_eq!(kinds(&history), ["untold"], "sold out speaks for all attempts");
}

/// Goal: a client that goes away on purpose is not counted against the service.
#[test]
fn abandoned_orders_are_not_unanswered() {
    let mut history = good();
    for number in 300..400 {
        history.orders[number] = Order { abandoned: true, ..order(number, FinalOutcome::Unknown) };
    }
    assert_eq!(kinds(&history), [""; 0]);
    assert_eq!((history.tally().unknown, history.tally().abandoned), (100, 100));
    for number in 300..306 {
        history.orders[number].abandoned = false;
    }
    assert_eq!(kinds(&history), ["unanswered"]);
}

/// Goal: an order that stands before another one which was answered before it was sent is found, and
/// overlapping orders may stand either way.
#[test]
fn ledger_against_real_time() {
    let mut history = good();
    history.orders.iter_mut().for_each(|order| order.ended += 10_000);
    // answered while the one before it was under way
    history.orders[7].sent = 5000;
    history.orders[8].ended = 5000;
    assert_eq!(kinds(&history), [""; 0]);
    history.orders[8].ended = 4999;
    assert_eq!(kinds(&history), ["out_of_order"]);
    let message = judge(&history).message;
    assert_eq!(
        message,
        "FAIL: I6 out of order: 1 order is in the ledger behind an order that was sent only after the \
         answer, such as run-8 at position 9, answered at 0.004999 s: run-7 at position 8 was first \
         sent at 0.005000 s"
    );
}

/// Goal: a refusal while an order that took units later had not been sent is found; one that
/// overlaps is right.
#[test]
fn sold_out_before_the_last_taker() {
    let mut history = good();
    (history.orders[299].sent, history.orders[299].ended) = (9000, 9500);
    for order in &mut history.orders[300..] {
        order.ended = 9000;
    }
    assert_eq!(kinds(&history), [""; 0]);
    history.orders[420].ended = 8999;
    assert_eq!(kinds(&history), ["sold_out_too_early"]);
    let message = judge(&history).message;
    let example = "such as run-420 at 0.008999 s, while units were left: run-299, which took one \
                   later, was first sent at 0.009000 s";
    assert!(message.starts_with("FAIL: I6 sold out too early: 1 order was told"), "{message}");
    assert!(message.ends_with(example), "{message}");
}

/// Goal: what does not fit the units that are left may be refused before the stock is empty.
#[test]
fn sold_out_for_large_orders() {
    let mut history = good();
    history.quantity = 10;
    // one of the nine that no longer count
    history.orders[295].sent = 1_000_000;
    history.orders[295].ended = 1_000_001;
    history.orders.iter_mut().skip(296).for_each(|order| order.ended = 1_000_000);
    assert_eq!(kinds(&history), [""; 0]);
}

/// An order that was sent and ended then, in milliseconds.
fn span(sent: u64, ended: u64, outcome: FinalOutcome) -> Order {
    Order { sent: sent * 1000, ended: ended * 1000, ..order(0, outcome) }
}

fn longest_pause(orders: &[Order]) -> (u64, u64) {
    let Pause { from, to } = pause::longest(orders);
    (from / 1000, to / 1000)
}

/// Goal: a pause is measured while orders are tried, up to the next answer that says yes or no.
#[test]
fn longest_pause_is_found() {
    let yes = || acknowledged(0, None);
    assert_eq!(longest_pause(&[]), (0, 0));
    assert_eq!(longest_pause(&[span(5, 9, yes())]), (5, 9));
    // no order was tried from 3 to 500
    assert_eq!(longest_pause(&[span(0, 3, yes()), span(500, 502, yes())]), (0, 3));
    // one waited from 0 to 60, and others were answered meanwhile
    let orders = [span(0, 60, yes()), span(1, 10, yes()), span(11, 30, FinalOutcome::SoldOut)];
    assert_eq!(longest_pause(&orders), (30, 60));
    // orders that fail or are not answered do not end it
    let orders = [
        span(0, 1, yes()),
        span(100, 120, FinalOutcome::Unknown),
        span(150, 160, FinalOutcome::Failed { status: 500, kind: "500".to_owned() }),
        span(200, 250, yes()),
    ];
    assert_eq!(longest_pause(&orders), (100, 250));
    // nor is there an end to it if nothing is answered any more
    assert_eq!(longest_pause(&orders[..2]), (100, 120));
    assert_eq!(longest_pause(&[Order::unsent(), span(7, 8, FinalOutcome::Unknown)]), (7, 8));
}

/// Goal: a pause that is too long fails, and without a limit it is only a note.
#[test]
fn pause_too_long() {
    let mut history = good();
    for order in &mut history.orders[200..] {
        order.ended += 4_000_000;
    }
    let verdict = judge(&history);
    assert_eq!(verdict.reasons, []);
    assert_eq!(verdict.longest_pause, Pause { from: 1199, to: 4_001_200 });
    let judge = |pause| {
        let limits = Limits { pause: Some(pause), ..Limits::default() };
        super::super::judge(&history, limits)
    };
    assert!(judge(Duration::from_millis(4001)).reasons.is_empty());
    let verdict = judge(Duration::from_secs(4));
    assert_eq!(
        verdict.message,
        "FAIL: I5 paused: for 4.000 s, from 0.001199 s on, orders were sent and none was decided; \
         4s are allowed"
    );
}

/// Goal: an order that hangs while others are answered is found, which no pause shows; and one that
/// never was answered as well.
#[test]
fn order_that_hangs() {
    let limits = |seconds| Limits {
        pause: Some(Duration::from_secs(1)),
        order: Some(Duration::from_secs(seconds)),
    };
    for outcome in [FinalOutcome::SoldOut, FinalOutcome::Unknown] {
        let mut history = good();
        history.orders[420].outcome = outcome;
        history.orders[420].ended = 5_000_001;
        for (number, order) in history.orders[421..].iter_mut().enumerate() {
            (order.sent, order.ended) =
                (u64_from(number) * 100_000, u64_from(number) * 100_000 + 9);
        }
        assert!(super::super::judge(&history, limits(6)).reasons.is_empty());
        let verdict = super::super::judge(&history, limits(5));
        assert_eq!(verdict.slowest.number, 420);
        assert_eq!(
            verdict.message,
            "FAIL: I5 slow: 1 order was tried for longer than 5s, the longest time run-420: for \
             5.000 s"
        );
    }
}
