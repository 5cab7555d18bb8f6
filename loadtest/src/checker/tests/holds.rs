//! Damage to a sale with holds and users: each must fail for its own reason.

use super::*;

/// What happened at a time in milliseconds, and whether a buyer was told.
#[derive(Clone, Copy)]
struct Step(u64, Event, usize, bool);

/// Ten units: six are paid (of them one twice), two cancelled, and three holds end, one under a buyer who pays too late.
fn steps() -> Vec<Step> {
    let number = |n: u64| usize::try_from(n).expect("small");
    let orders = (0..10).map(|n| Step(10 * n, Event::Reserved, number(n), true));
    let paid = (0..6).map(|n| Step(300 + 10 * n, Event::Confirmed, number(n), true));
    let others = [
        Step(400, Event::Cancelled, 6, true),
        Step(420, Event::Reserved, 11, true),
        Step(430, Event::Cancelled, 7, true),
        Step(2200, Event::Expired, 8, true),
        Step(2210, Event::Expired, 9, false),
        Step(2420, Event::Expired, 11, false),
    ];
    orders.chain(paid).chain(others).collect()
}

/// Each question takes 5 ms.
fn asked(at: u64, outcome: FinalOutcome) -> Order {
    Order { sent: at * 1000, ended: at * 1000 + 5000, ..order(0, outcome) }
}

fn run(steps: &[Step]) -> History {
    let terms = StockState { per_user: Some(1), hold_seconds: Some(2), ..StockState::default() };
    let mut sale = Sale::new(10, terms);
    let setup = setup(sale.before.clone(), 1, 12);
    let mut orders = vec![asked(500, FinalOutcome::LimitReached); 13];
    orders[10] = asked(200, SoldOut);
    for &Step(at, event, number, is_told) in steps {
        let answer = sale.write(event, &setup.id(number), &setup.user(number), 1);
        let told = asked(at, FinalOutcome::Acknowledged(answer));
        match event {
            _ if !is_told => {}
            Event::Reserved => orders[number] = told,
            Event::Expired => {
                *orders[number].change(Event::Confirmed) = asked(at, FinalOutcome::Over(event));
            }
            _ => *orders[number].change(event) = told,
        }
    }
    let again = orders[5].changes[0].1.clone();
    orders[5].changes.push((Event::Confirmed, again));
    *orders[7].change(Event::Confirmed) = asked(440, FinalOutcome::Over(Event::Cancelled));
    history(sale, setup, orders)
}

/// Goal: each damage to the steps of a sale, or to what is known of it, is found for its own reasons. What is in the ledger
/// twice or lost is tested with random sales.
#[test]
fn damages() {
    type Damage = (&'static str, &'static str, fn(&mut Vec<Step>), fn(&mut History));
    let damages: &[Damage] = &[
        ("", "6 of 10 units sold, each exactly once; 5 came back meanwhile; 1 was", |_| {}, |_| {}),
        (
            "misreported",
            "such as run-2",
            |_| {},
            |it| {
                it.orders[2].changes[0].1.outcome = acknowledged(5, Some(7));
            },
        ),
        ("untold", "such as run-9", |it| it[20].1 = Event::Cancelled, |_| {}),
        (
            "",
            "7 of 10",
            |it| it[20].1 = Event::Confirmed,
            |it| {
                let unknown = Order { abandoned: true, ..asked(600, Unknown) };
                *it.orders[9].change(Event::Confirmed) = unknown;
            },
        ),
        ("lost untold", "such as run-4", |_| {}, |it| it.ledger[4].user.clear()),
        ("token_went_down", "20, from 101 to 100", |_| {}, |it| it.ledger[19].token = Some(100)),
        (
            "over_limit",
            "1 order was accepted beyond the limit of its user, such as run-12 of run-u0",
            sell_twice,
            |_| {},
        ),
        (
            "still_held",
            "1 order was held after the end, such as run-11",
            |it| it.truncate(21),
            |_| {},
        ),
        ("sold_out_too_early", "such as run-10", |_| {}, |it| it.orders[10] = asked(2500, SoldOut)),
        // between the answer to a cancellation and the next order; and during that order
        ("sold_out_too_early", "such as run-10", |_| {}, |it| it.orders[10] = asked(410, SoldOut)),
        ("", "PASS", |_| {}, |it| it.orders[10] = asked(425, SoldOut)),
        (
            "limited_too_early",
            "such as run-12",
            |_| {},
            |it| it.setup.items[0].before.per_user = Some(2),
        ),
        ("hold_not_kept", "1 order was not held as long as it must", |it| it[19].0 = 1900, |_| {}),
        (
            "hold_not_kept",
            "such as run-5",
            |it| it[15..].rotate_left(1),
            |it| {
                for (_, asked) in &mut it.orders[5].changes {
                    (asked.sent, asked.ended) = (2_500_000, 2_505_000);
                }
            },
        ),
    ];
    for (expected, text, change_steps, mutate) in damages {
        let mut steps = steps();
        change_steps(&mut steps);
        let mut history = run(&steps);
        mutate(&mut history);
        judged(&history, Limits::default(), expected, text);
    }
}

fn sell_twice(steps: &mut Vec<Step>) {
    steps.extend([Event::Reserved, Event::Confirmed].map(|event| Step(2500, event, 12, true)));
}
