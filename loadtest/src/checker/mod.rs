//! Judges a recorded run, by pure functions, so that tests can feed them broken histories.
//!
//! A run is judged by its buyers' answers, order by order, against the ledger and the stock at its
//! end. The invariants:
//!
//! | | invariant |
//! |---|---|
//! | I1 | at every moment no more units are held or sold than there were, or than a user or an order may have; only units that were taken come back; stock + lucky = initial; the ledger adds up, and its counts are those of the sale |
//! | I2 | every acknowledged order is in the ledger exactly once, as it was acknowledged, and so is what its buyer was told of it: confirmed, cancelled or expired; sent again, it gets the same answer, or after its end that of its end; no order of others is there twice, and no hold ends twice |
//! | I3 | every order, confirmation and cancellation in the ledger was acknowledged, or its buyer got no answer; with `--alone`, there are no orders of others |
//! | I4 | the tokens in the ledger never go down, and under each only one instance wrote; where an answer has one, or with `--tokens`, each entry has one |
//! | I5 | the sale goes on: no pause, order or change of an order lasts longer than allowed; every hold of at most a minute ends |
//! | I6 | if A was answered before B was first sent, A stands before B in the ledger; *sold out* (too few units were left, even with those that are held), *all held* (too few, and enough with them) and *limit reached* were true at some moment while the attempt was under way that was told so; no hold ends before its time or before its buyer asked for it, and none is confirmed after its time |
//!
//! A run can also fail for other reasons, such as answers that are neither yes nor no. Then it violates nothing, but proves
//! little.
//!
//! An order that was refused is not in the ledger, with one exception: in a sale that can gain units (one with holds), an
//! earlier attempt without an answer may arrive after the refusal. Then the buyer cancels the order, and need not be told more.
//!
//! # Layout
//! - [`history`], [`order`]: what was recorded.
//! - [`model`]: the reference model, which is stepped through the ledger and the buyers' records (I1 to I4).
//! - [`real_time`]: compares the ledger with the clients' clock (I6).
//! - [`pause`]: finds pauses and slow orders (I5).
//! - [`verdict`]: steps the model, compares the sums, and judges.
//! - [`finding`]: what can be wrong.

mod finding;
mod history;
pub mod model;
mod order;
mod pause;
mod real_time;
mod verdict;

#[cfg(test)]
mod tests;

pub(crate) use finding::{Found, Kind, count, meaning};
pub use history::Tally;
pub(crate) use history::{History, u64_from};
#[cfg(test)]
pub(crate) use model::Units;
pub(crate) use model::{
    Acknowledgement, Effect, Event, Failure, LedgerEntry, Order, Outcome, StockState,
};
pub(crate) use order::{ALL_HELD, FinalOutcome};
pub(crate) use verdict::judge;
