//! Judges a recorded run, by pure functions, so that tests can feed them broken histories.
//!
//! A run is judged by its buyers' answers, order by order, against the ledger and the stock at its
//! end. The invariants:
//!
//! | | invariant |
//! |---|---|
//! | I1 | at every moment, no more units are held or sold than there were, or than a user or an order may have; only units that were taken come back; stock + lucky = initial; the ledger adds up, and its counts are those of the sale |
//! | I2 | the ledger has each acknowledged order exactly once, as it was acknowledged, and each confirmation, cancellation and end that a buyer was told of; an order that is sent again gets its first answer, or after its end the answer that tells its end; the ledger has no other client's order twice, and ends no hold twice |
//! | I3 | each order, confirmation and cancellation in the ledger was acknowledged, or its buyer got no answer; with `--alone`, the ledger has no orders of other clients |
//! | I4 | the tokens in the ledger never go down, and one instance alone wrote under each; if an answer has a token, or with `--tokens`, each entry has one |
//! | I5 | the sale goes on: no pause, and no order or change of an order, lasts longer than allowed; every hold of at most a minute ends |
//! | I6 | if A was answered before B was first sent, A stands before B in the ledger; each refusal was true at some moment while the refused attempt was under way: *sold out* (too few units were left, even with the held ones), *all held* (too few, but enough with the held ones), *limit reached*; no hold ends before its time or before its buyer asked for it, and none is confirmed after its time |
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
#[cfg(test)]
pub(crate) use order::ALL_HELD;
pub(crate) use order::{FinalOutcome, MAY_PASS};
pub(crate) use verdict::judge;
