//! What follows from a recorded run: pure functions, so that they can be shown broken histories.
//!
//! A run is judged by what its buyers were told, order by order, compared with the ledger and the
//! stock at its end. What must hold whatever breaks:
//!
//! | | invariant |
//! |---|---|
//! | I1 | acknowledged units are at most those there were; stock + lucky = initial; the ledger adds up |
//! | I2 | every acknowledged order is in the ledger exactly once, as it was acknowledged; no order of others is there twice |
//! | I3 | every order in the ledger was acknowledged, or its buyer does not know what became of it; where nobody else buys, none is of others |
//! | I4 | the tokens in the ledger never go down; where an answer tells of one, or they are asked for, each entry has one |
//! | I5 | the sale goes on: no pause is longer than allowed, and no order takes longer than allowed |
//! | I6 | if A was answered before B was first sent, A stands before B in the ledger; and *sold out* was true at some moment between question and answer |
//!
//! A run can fail for other reasons as well, such as answers that are neither yes nor no: then it
//! proves little, but violates nothing.
//!
//! # Layout
//! - [`history`], [`order`]: what was recorded.
//! - [`audit`]: the ledger, entry by entry (I2, I3, I4).
//! - [`real_time`]: the ledger and the clients' clock (I6).
//! - [`pause`]: whether the sale went on (I5).
//! - [`verdict`]: all of it, and the sums (I1).
//! - [`reason`], [`message`]: what can be wrong, and how it is told.

pub(crate) mod audit;
pub(crate) mod history;
pub(crate) mod message;
pub(crate) mod order;
pub(crate) mod pause;
mod real_time;
pub(crate) mod reason;
pub(crate) mod verdict;

#[cfg(test)]
mod tests;

pub(crate) use history::{History, LedgerEntry, Tally, order_id, u64_from};
pub use history::{StockState, Turns};
pub(crate) use order::{Acknowledgement, Order, Other, Outcome, Told};
pub(crate) use pause::Pause;
pub(crate) use verdict::{Limits, Verdict, judge};
