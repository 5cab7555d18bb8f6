//! Holds and limits: a unit can be held, confirmed and given back; a sale can limit the units of an order or a user.
//!
//! Holds end by Redis' clock: a test writes an earlier end into the store, or waits for Redis.

use flash_sale::inventory::{
    Action, Event, Inventory, NewSale, Order, Outcome, Phase, Terms, Timestamp, Units, User,
};
use testkit::shared::fresh_database;

use super::{ITEM, Raw, accepted, connect, fresh, order, reduce, token};

/// A sale with holds of a minute.
fn held(units: u64) -> NewSale {
    with(units, Terms { hold_seconds: Some(60), ..Terms::default() })
}

fn with(units: u64, terms: Terms) -> NewSale {
    NewSale { terms, ..NewSale::from(units) }
}

fn of(user: &str, id: &str, units: u32) -> Order {
    Order { user: User::new(user).unwrap(), ..order(id, units) }
}

async fn one(inventory: &Inventory, order: Order) -> Outcome {
    reduce(inventory, Some(token(1)), &[order]).await.unwrap().remove(0)
}

async fn ask(inventory: &Inventory, id: &str, action: Action) -> Outcome {
    one(inventory, Order { action, ..order(id, 1) }).await
}

/// Stock, lucky, open holds.
async fn counts(inventory: &Inventory) -> (i64, i64, u64) {
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert!(stock.is_balanced(), "{stock:?}");
    (stock.stock, stock.lucky, stock.held)
}

/// Makes the hold of this order due: in its record, and in the set of holds.
pub(super) async fn end_hold(raw: &mut Raw, key: &str) {
    let record: String = raw.run(&format!("HGET orders {key}")).await;
    let mut fields: Vec<&str> = record.split('\t').collect();
    fields[7] = "1000000";
    raw.run_with::<()>(&format!("HSET orders {key}"), &fields.join("\t")).await;
    raw.run::<()>(&format!("ZADD holds 1000000 {key}")).await;
}

/// Goal: a hold ends once. Every later confirmation or cancellation hears how it ended.
#[tokio::test]
async fn the_first_end_of_a_hold_stands() {
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(1)), held(9)).await.unwrap();
    let ids = ["confirmed", "cancelled", "expired"];
    for id in ids {
        let hold = accepted(&one(&inventory, order(id, 2)).await).clone();
        let (from, until) = (hold.time, hold.hold_until.unwrap());
        assert_eq!(until.micros() - from.micros(), 60_000_000);
    }
    assert_eq!(counts(&inventory).await, (3, 6, 3));
    for (id, action) in [("confirmed", Action::Confirm), ("cancelled", Action::Cancel)] {
        let first = ask(&inventory, id, action).await;
        let Outcome::Changed { change, is_repeated: false } = first else { panic!("{first:?}") };
        assert_eq!((change.event.word(), change.quantity.get()), (id, 2));
        let again = ask(&inventory, id, action).await;
        assert_eq!(again, Outcome::Changed { change, is_repeated: true });
    }
    end_hold(&mut raw, "expired").await;
    assert_eq!(counts(&inventory).await, (5, 4, 1), "nobody asked yet");
    // its entry in the ledger comes later
    let time = Timestamp::new(1_000_000).unwrap();
    let ended = Outcome::Over { event: Event::Expired, time };
    assert_eq!(ask(&inventory, "expired", Action::Confirm).await, ended);
    assert_eq!(counts(&inventory).await, (7, 2, 0));
    let mut found = inventory.look_up(&ITEM, &["expired".to_owned()]).await.unwrap();
    let found = found.orders.remove(0).unwrap().unwrap();
    assert_eq!((found.event, found.changed), (Event::Expired, Some(time)));

    let dump = raw.dump().await;
    assert_eq!(ask(&inventory, "confirmed", Action::Cancel).await, Outcome::Final);
    for (id, action, event) in [
        ("cancelled", Action::Confirm, Event::Cancelled),
        ("cancelled", Action::Reserve, Event::Cancelled),
        ("expired", Action::Confirm, Event::Expired),
        ("expired", Action::Cancel, Event::Expired),
    ] {
        let order = Order { action, ..order(id, 2) };
        let over = one(&inventory, order).await;
        assert!(matches!(over, Outcome::Over { event: was, .. } if was == event), "{over:?}");
    }
    let first = one(&inventory, order("confirmed", 2)).await;
    assert!(matches!(first, Outcome::Repeated(_)), "{first:?}");
    assert_eq!(one(&inventory, order("confirmed", 1)).await, Outcome::Conflict);
    assert_eq!(ask(&inventory, "nobody", Action::Confirm).await, Outcome::Unknown);
    assert_eq!(raw.dump().await, dump, "nothing of this changed anything");

    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!((stock.orders, stock.entries), (3, 6));
}

/// Goal: if too few units are left for an order, it is told *all held* if the held units could serve it, and otherwise *sold
/// out*. The count of the held units follows each step, reads have it, too, and a refusal writes nothing. If the store lacks the
/// count, batches count its ledger, each a bounded number of entries; until then nobody is told *sold out*.
#[tokio::test]
async fn held_is_not_sold() {
    use Action::{Cancel, Confirm, Expire};
    const COUNT: &str = "\theld";
    let (inventory, mut raw) = fresh().await;
    inventory.start(&ITEM, Some(token(1)), held(5)).await.unwrap();
    let as_to = |id: &str, action| Order { action, ..order(id, 1) };
    // the orders; the units held and confirmed after them; the state; the largest order that the held units could serve
    let steps: [(Vec<Order>, i64, i64, Phase, u32); 6] = [
        (vec![order("a", 2), order("b", 2)], 4, 0, Phase::Running, 5),
        (vec![as_to("a", Confirm)], 2, 2, Phase::Running, 3),
        (vec![as_to("b", Cancel)], 0, 2, Phase::Running, 3),
        (vec![order("c", 1), order("d", 2)], 3, 2, Phase::AllHeld, 3),
        (vec![as_to("c", Confirm)], 2, 3, Phase::AllHeld, 2),
        (vec![as_to("-", Expire), order("e", 2), as_to("e", Confirm)], 0, 5, Phase::SoldOut, 0),
    ];
    for (orders, held, confirmed, state, most) in steps {
        if orders.len() == 3 {
            end_hold(&mut raw, "d").await;
        }
        reduce(&inventory, Some(token(1)), &orders).await.unwrap();
        let stock = inventory.stock(&ITEM).await.unwrap();
        let units = Units { held: Some(held), confirmed: Some(confirmed) };
        assert_eq!((stock.units, stock.state), (units, state));
        let remaining = u64::try_from(stock.stock).unwrap();
        let seen = inventory.look_up(&ITEM, &["new".to_owned()]).await.unwrap().available.held;
        assert_eq!(seen.and_then(|seen| seen.units), (held > 0).then_some(held));
        let count: String = raw.run_with("HGET buyers", COUNT).await;
        assert_eq!(count, format!("{held} {}", stock.entries));
        for quantity in u32::try_from(remaining).unwrap() + 1..7 {
            match one(&inventory, order("new", quantity)).await {
                Outcome::AllHeld { remaining: left, ends_in, hold_seconds: 60 } => {
                    assert!(quantity <= most && left == remaining, "{quantity}, {stock:?}");
                    assert!((30..=60).contains(&ends_in.as_secs()), "{ends_in:?}");
                }
                other => {
                    assert!(quantity > most, "{quantity}, {stock:?}");
                    assert_eq!(other, Outcome::SoldOut { remaining });
                }
            }
        }
        assert_eq!(inventory.stock(&ITEM).await.unwrap(), stock, "nothing was written");
        // the state after a write by an instance that does not count held units
        raw.run_with::<()>("HDEL buyers", COUNT).await;
        let counted = inventory.stock(&ITEM).await.unwrap().units.held;
        assert_eq!(counted, Some(0).filter(|_| held == 0));
        one(&inventory, order("new", 100)).await;
        assert_eq!(raw.run_with::<String>("HGET buyers", COUNT).await, count);
    }

    inventory.start(&ITEM, Some(token(1)), with(1100, held(0).terms)).await.unwrap();
    let batch: Vec<Order> = (0..550).map(|n| order(&format!("{n}"), 2)).collect();
    reduce(&inventory, Some(token(1)), &batch).await.unwrap();
    let batch: Vec<Order> = (0..500).map(|n| as_to(&n.to_string(), Confirm)).collect();
    reduce(&inventory, Some(token(1)), &batch).await.unwrap();
    raw.run_with::<()>("HDEL buyers", COUNT).await;
    for is_counted in [false, true] {
        let told = one(&inventory, order("new", 101)).await;
        assert_eq!(told == Outcome::SoldOut { remaining: 0 }, is_counted, "{told:?}");
    }
    assert!(matches!(one(&inventory, order("new", 100)).await, Outcome::AllHeld { .. }));

    // the hold of a damaged record never ends
    inventory.start(&ITEM, Some(token(1)), held(1)).await.unwrap();
    one(&inventory, order("a", 1)).await;
    raw.run::<()>("HSET orders a nonsense").await;
    raw.run::<()>("ZADD holds 1 a").await;
    one(&inventory, order("new", 1)).await;
    assert_eq!(one(&inventory, order("new", 1)).await, Outcome::SoldOut { remaining: 0 });
    let seen = inventory.look_up(&ITEM, &["new".to_owned()]).await.unwrap().available;
    assert!(seen.held.is_none() && !seen.is_due, "{seen:?}");
}

/// Goal: an order that was confirmed, or had no hold, comes back once: its units and the user's count return, and every later
/// call hears of it. An order that is held or over does not come back. An instance that remembers the confirmation sees no loss.
#[tokio::test]
async fn a_confirmed_order_comes_back() {
    let url = fresh_database().await;
    let [inventory, other] = [connect(&url).await, connect(&url).await];
    let terms = Terms { per_user: Some(2), ..held(0).terms };
    inventory.start(&ITEM, Some(token(1)), with(3, terms)).await.unwrap();
    let as_to = |action| Order { action, ..of("ann", "a", 2) };
    one(&inventory, as_to(Action::Reserve)).await;
    assert_eq!(one(&inventory, as_to(Action::Return)).await, Outcome::NotConfirmed);
    one(&other, as_to(Action::Confirm)).await;
    let returned = one(&inventory, as_to(Action::Return)).await;
    let Outcome::Changed { change, is_repeated: false } = returned else { panic!("{returned:?}") };
    assert_eq!((change.event, change.remaining, change.position), (Event::Returned, 3, 3));
    other.check(Some(token(1))).await.unwrap();
    let stock = inventory.stock(&ITEM).await.unwrap();
    assert_eq!(stock.units, Units { held: Some(0), confirmed: Some(0) });
    let again = Outcome::Changed { change: change.clone(), is_repeated: true };
    assert_eq!(one(&other, as_to(Action::Return)).await, again);
    let over = Outcome::Over { event: Event::Returned, time: change.time };
    for action in [Action::Reserve, Action::Confirm, Action::Cancel] {
        assert_eq!(one(&inventory, as_to(action)).await, over);
    }
    assert_eq!(one(&inventory, of("ann", "a", 1)).await, Outcome::Conflict);
    let found = other.look_up(&ITEM, &["ann\ta".to_owned()]).await.unwrap().orders.remove(0);
    let found = found.unwrap().unwrap();
    assert_eq!((found.event, found.changed), (Event::Returned, Some(change.time)));
    assert_eq!(other.stock(&ITEM).await.unwrap(), stock, "nothing of this changed anything");

    // all calls in one batch, together with another order of the user
    let as_to = |action| Order { action, ..of("ann", "b", 2) };
    let all = [Action::Reserve, Action::Confirm, Action::Return, Action::Return, Action::Confirm];
    let outcomes = reduce(&inventory, Some(token(1)), &all.map(as_to)).await.unwrap();
    assert!(matches!(outcomes[3], Outcome::Changed { is_repeated: true, .. }), "{outcomes:?}");
    assert!(matches!(outcomes[4], Outcome::Over { event: Event::Returned, .. }), "{outcomes:?}");
    let gone = [Action::Reserve, Action::Cancel, Action::Return]
        .map(|action| Order { action, ..of("ann", "c", 1) });
    let outcomes = reduce(&inventory, Some(token(1)), &gone).await.unwrap();
    assert!(matches!(outcomes[2], Outcome::Over { event: Event::Cancelled, .. }), "{outcomes:?}");
    assert_eq!(counts(&inventory).await, (3, 0, 0));
    assert_eq!(ask(&inventory, "nobody", Action::Return).await, Outcome::Unknown);

    // the loss of the holds is noticed, even if as many orders came back as are held
    inventory.start(&ITEM, Some(token(1)), held(4)).await.unwrap();
    for id in ["a", "b", "c", "d"] {
        one(&inventory, order(id, 1)).await;
    }
    for id in ["a", "b"] {
        ask(&inventory, id, Action::Confirm).await;
        ask(&inventory, id, Action::Return).await;
    }
    let mut raw = Raw::connect(&url).await;
    raw.run::<()>("DEL holds").await;
    let error = inventory.check(Some(token(1))).await.unwrap_err();
    assert!(error.1.to_string().contains("holds is missing"), "{error:?}");

    for (is_by_hand, returned) in [(false, "returned"), (true, "")] {
        inventory.start(&ITEM, Some(token(1)), 2).await.unwrap();
        if is_by_hand {
            raw.run::<()>("FLUSHDB").await;
            raw.run::<()>("SET stock 2").await;
        }
        let inventory = connect(&url).await;
        one(&inventory, order("final", 1)).await;
        let told = match ask(&inventory, "final", Action::Return).await {
            Outcome::Changed { change, .. } => change.event.word(),
            other => {
                assert_eq!(other, Outcome::Final);
                ""
            }
        };
        assert_eq!(told, returned);
    }
}
