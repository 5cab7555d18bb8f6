//! A model of lock, fence, batch and retry, checked in every order of events.
//!
//! Two instances sell a stock of two to the buyers of three orders. Each step is an action with the name of the code that takes
//! it (in `state`). The checker tries every sequence of actions, and checks the properties below in every state that it reaches:
//! some 275,000 under three claims, 140,000 with two batches at a time, 400,000 with holds, and 34,000 in two steps. Under the
//! fence of the store no lock is trusted: 500,000, and 55,000 in two steps.
//!
//! # What can go wrong in it
//!
//! - A **pause** is no action: an instance takes its next step at any time, or never. No clock is trusted, so a holder that was
//!   overtaken goes on as if it held, and safety rests on the fence.
//! - A lease **expires** at any moment. A renewed lease is one that has not expired yet. An instance may take a lock that it
//!   still has for **lost**, or **crash**.
//! - A batch that was sent may arrive **never, late or several times**, also when its sender has given it up. Its answer may be
//!   lost every time.
//! - A buyer asks **again**, at either instance, at any time and any number of times.
//!
//! # The parts that it leaves out, and why that hides nothing
//!
//! - Events that other actions stand for: a grant that is noticed late (grant, and a pause), an enqueue without an answer
//!   (enqueue, lost), a release that etcd sees late (lost, expire), the end of a lease with several claims (expire, expire), an
//!   instance that stops (release).
//! - The waiting orders. An instance may run any batch at any time, which allows everything that a queue does. The model
//!   therefore keeps nothing about a batch that is put back, and a loss and a crash leave the same state.
//! - The way from an instance to a buyer. A buyer without an answer asks again, and in this model every buyer may.
//! - Copies of a batch that would change nothing in Redis. Fence and ledger only grow and the stock only falls, so these copies
//!   will never change anything. With holds the stock rises, and only copies that are stale, or whose orders are decided, are
//!   left out.
//! - Names. Orders have numbers in the order in which they are first asked for, and of two instances without a claim A is the one
//!   that enqueues.
//!
//! The model ends after three claims and has batches of one or two orders: enough for an instance to hold again while its own
//! first batch is still under way. It ends after two claims if an instance has two batches on their way at a time, in any order,
//! or works in two steps. The first token of an order that was sent before is left out, since it matters only when one sale
//! replaces another. Redis keeps its answers, and etcd's revisions only grow; other tests cover the loss of either, re-entry and
//! quantities.
//!
//! # Holds
//!
//! A second sale, of one unit for two buyers, of two claims, and of two batches of one order on their way, has holds. A buyer
//! asks for an order, to confirm it and to cancel it, also all at once and at both instances; another buyer never pays. A hold is
//! **due** at any moment, as Redis' clock decides, and ends with the next batch.
//!
//! # How to read a counterexample
//!
//! The controls print theirs, one action a line: `cargo test --package simulator --test model -- --nocapture`. In `Run(B, [0, 1])`, B sends the
//! orders 0 and 1; 3 more confirms an order, 6 more cancels it. The number in `Expire(1)` is a token.

mod state;

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use state::{Action, Answer, Ask, Claim, EXPIRED, Event, ORDERS, State, units_taken};

/// A sale and its safeguards.
#[derive(Clone, Copy, Debug)]
struct Sale {
    /// The fence that refuses the batch of a holder that was overtaken.
    fence: Fence,
    /// The lock grants one claim after the other. Otherwise it grants every claim at once, which allows everything that any other
    /// lock does.
    lock_excludes: bool,
    /// An order that is in the ledger gets its first answer again.
    order_ids: bool,
    /// Redis reads and writes in one step. Otherwise the holder reads (GET) and then writes (SET), and may be paused in between.
    script: bool,
    /// How many batches an instance has on their way at a time.
    in_flight: usize,
    holds: Option<Holds>,
}

/// A sale with holds.
#[derive(Clone, Copy, Debug)]
struct Holds {
    /// The end of a hold is recorded with the order, and happens once.
    once: bool,
    /// An order is in one batch at a time.
    apart: bool,
    /// If nothing was done for an order, and an earlier attempt under the same token got no answer, the order is not answered but
    /// sent again under a larger token: units may come back, and the earlier attempt may take them.
    larger_token: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fence {
    /// Nothing refuses.
    None,
    /// Redis refuses a token below the largest that it has seen.
    Lock,
    /// Redis counts the tenures, and refuses a number below the latest.
    Store,
}

/// The service as it is built.
const AS_BUILT: Sale = Sale {
    fence: Fence::Lock,
    lock_excludes: true,
    order_ids: true,
    script: true,
    in_flight: 2,
    holds: None,
};
/// Guarded work of more than one step, for which a lock is needed.
const IN_TWO_STEPS: Sale = Sale { script: false, in_flight: 1, ..AS_BUILT };
/// A lock that excludes nobody, and the fence of the store.
const ANY_LOCK: Sale = Sale { fence: Fence::Store, lock_excludes: false, ..IN_TWO_STEPS };

/// Holds for two buyers of one unit.
const HOLDS: Holds = Holds { once: true, apart: true, larger_token: true };

const fn with(holds: Holds) -> Sale {
    Sale { holds: Some(holds), ..AS_BUILT }
}

const NO_OVERSELL: &str = "no more is sold than there was";
const NO_LOST_UPDATE: &str = "stock and ledger make up the initial stock";
const NO_ORDER_TWICE: &str = "no order is twice in the ledger";
const ONE_END: &str = "what ended a hold is once in the ledger, behind its order";
const TOLD_IN_TIME: &str = "who is told that nothing was done gets nothing by that call later";
const TOKENS_RISE: &str = "tokens in the ledger never go down";

/// The properties of every state, then properties that some states show: they prove that the model gets that far.
fn properties() -> Vec<Property<Sale>> {
    fn holders(state: &State, counts: fn(&Claim) -> bool) -> usize {
        state.claims.iter().flatten().filter(|claim| claim.is_granted && counts(claim)).count()
    }
    fn times(state: &State, ask: Ask) -> usize {
        state.ledger.iter().filter(|(entry, _)| *entry == ask).count()
    }
    let (always, sometimes) = (Property::<Sale>::always, Property::<Sale>::sometimes);
    vec![
        always(NO_OVERSELL, |sale, s| units_taken(s) <= sale.units()),
        always(NO_LOST_UPDATE, |sale, s| s.stock + units_taken(s) == sale.units()),
        always(ONE_END, |_, s| {
            (0..ORDERS).all(|order| {
                let ends: usize = (1..=EXPIRED).map(|end| times(s, order + end * ORDERS)).sum();
                ends <= times(s, order)
            })
        }),
        always(NO_ORDER_TWICE, |_, s| (0..ORDERS).all(|order| times(s, order) <= 1)),
        always(
            "an acknowledged order is in the ledger, and one that is sold out is not",
            |_, s| {
                (0..s.answers.len()).all(|ask| match s.answers[ask] {
                    Some(Answer::Entry { position }) => s
                        .ledger
                        .get(position)
                        .is_some_and(|(entry, _)| entry % ORDERS == ask % ORDERS),
                    Some(Answer::SoldOut) => s.stock == 0 && times(s, ask) == 0,
                    None => true,
                })
            },
        ),
        always("no order gets another answer", |_, s| s.event != Some(Event::Contradicted)),
        always(TOLD_IN_TIME, |_, s| s.event != Some(Event::ToldTooEarly)),
        always(TOKENS_RISE, |_, s| s.ledger.is_sorted_by_key(|(_, token)| *token)),
        always("one holder whose lease lives", |sale, s| {
            !sale.lock_excludes || holders(s, |claim| !claim.has_expired) <= 1
        }),
        sometimes("the lock passes on while its old holder believes", |sale, s| {
            let is_old = |claim: &Claim| claim.has_expired || !sale.lock_excludes;
            s.claims.iter().flatten().any(is_old) && holders(s, |_| true) == 2
        }),
        sometimes("a stale batch is refused", |_, s| s.event == Some(Event::StaleRefused)),
        sometimes("an order is answered again", |_, s| s.event == Some(Event::AnsweredAgain)),
        sometimes("all is sold and all are answered", |sale, s| {
            let is_answered = s.answers[..ORDERS].iter().all(Option::is_some);
            sale.holds.is_some() || s.stock == 0 && is_answered
        }),
        sometimes("two batches are on their way", |sale, s| {
            let mut claims = s.claims.iter().flatten();
            sale.in_flight == 1 || claims.any(|claim| claim.flights.len() == 2)
        }),
        sometimes("two tenures have sold", |sale, s| {
            let two = matches!(s.ledger[..], [(_, first), (_, second)] if first != second);
            sale.holds.is_some() || two
        }),
        sometimes("a unit that came back is sold again", |sale, s| {
            let sold = s.ledger.iter().filter(|(entry, _)| *entry < ORDERS).count();
            sale.holds.is_none() || sold == 2
        }),
        sometimes("a confirmation comes too late", |sale, s| {
            let expired = |position: usize| s.ledger[position].0 >= EXPIRED * ORDERS;
            sale.holds.is_none()
                || matches!(s.answers[ORDERS], Some(Answer::Entry { position }) if expired(position))
        }),
        sometimes("an order is confirmed", |sale, s| {
            sale.holds.is_none() || s.ledger.iter().any(|(entry, _)| *entry == ORDERS)
        }),
    ]
}

/// Visits every state, or stops at the first broken property.
fn check(sale: Sale) {
    let until = HasDiscoveries::AnyFailures;
    let checker = sale.checker().finish_when(until).spawn_bfs().join();
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{sale:?}: {states} states, {steps} steps");
    for property in sale.properties() {
        let found = checker.discovery(property.name);
        if let Some(path) = found.filter(|_| property.expectation.discovery_is_failure()) {
            show(sale, &property, path);
            panic!("not always {:?}", property.name);
        }
    }
    checker.assert_properties();
}

/// Finds a short way to a state in which the property is broken, and prints it.
fn assert_broken(sale: Sale, property: &'static str) {
    let until = HasDiscoveries::AnyOf([property].into());
    let checker = sale.checker().finish_when(until).spawn_bfs().join();
    show(sale, &sale.property(property), checker.assert_any_discovery(property));
}

/// Prints the way to the first state on this path in which the property is broken.
fn show(sale: Sale, property: &Property<Sale>, path: Path<State, Action>) {
    println!("{sale:?}: not always {:?}:", property.name);
    let until_broken =
        path.into_vec().into_iter().take_while(|(state, _)| (property.condition)(&sale, state));
    until_broken.filter_map(|(_, action)| action).for_each(|action| println!("  {action:?}"));
}

/// Goal: in every order of events, the service as it is built keeps its promises.
#[test]
fn nothing_is_lost_and_nothing_is_sold_twice() {
    check(AS_BUILT);
    check(Sale { in_flight: 1, ..AS_BUILT });
}

/// Goal: the fence also protects work of more than one step, since reading raises the fence, too.
#[test]
fn the_fence_protects_two_steps() {
    check(IN_TWO_STEPS);
}

/// Goal: the fence makes the difference. The same sale without it loses an update, and oversells.
#[test]
fn without_the_fence_an_update_is_lost() {
    assert_broken(Sale { fence: Fence::None, ..IN_TWO_STEPS }, NO_LOST_UPDATE);
    assert_broken(Sale { fence: Fence::None, ..IN_TWO_STEPS }, NO_OVERSELL);
}

/// Goal: one atomic step sells no unit twice by itself, but without the fence a holder that was overtaken sells on.
#[test]
fn without_the_fence_an_old_holder_sells_on() {
    assert_broken(Sale { fence: Fence::None, ..AS_BUILT }, TOKENS_RISE);
}

/// Goal: the fence of the store protects under any lock, even under one that excludes nobody.
#[test]
fn the_fence_of_the_store_needs_no_lock() {
    check(ANY_LOCK);
    check(Sale { script: true, ..ANY_LOCK });
    assert_broken(Sale { fence: Fence::None, ..ANY_LOCK }, NO_OVERSELL);
}

/// Goal: without order ids, a batch that arrives twice buys twice.
#[test]
fn without_order_ids_an_order_is_taken_twice() {
    assert_broken(Sale { order_ids: false, ..AS_BUILT }, NO_ORDER_TWICE);
}

/// Goal: however confirmations, cancellations and ends of holds cross, repeat or come late, they have one outcome, no buyer hears
/// two, no unit is lost and none is sold twice.
#[test]
fn a_hold_ends_once() {
    check(with(HOLDS));
}

/// Goal: each of three rules is needed. Without a record of the end, a cancellation that arrives twice gives two units back.
/// Without either other rule, a buyer is told that nothing was done, and a late attempt takes a unit that came back.
#[test]
fn each_rule_of_holds_is_needed() {
    assert_broken(with(Holds { once: false, ..HOLDS }), ONE_END);
    assert_broken(with(Holds { larger_token: false, ..HOLDS }), TOLD_IN_TIME);
    assert_broken(with(Holds { apart: false, ..HOLDS }), TOLD_IN_TIME);
}
