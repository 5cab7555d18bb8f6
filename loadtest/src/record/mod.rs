//! A run in a file: one JSON object a line, so that a run that was killed leaves what it had.
//!
//! # Format
//! Each line is an object with one field, which names the kind of the line. In this order:
//!
//! | line | how often | what |
//! |---|---|---|
//! | `run` | first | `version` (1), `run` (what all order ids begin with), `started` (wall clock), `requests` and `seconds` (the bounds; null is none in time), `connections`, `rate` (or null), `abandon`, `seed`, `quantity`, `alone` (whether there must be no other buyers), `tokens` (whether each order must have one), `instances` (the URLs), `items` |
//! | `attempt` | one each, as they end | see below |
//! | `order` | one each | the ledger: `item`, `position`, `order`, `quantity`, `remaining`, `instance`, `token` |
//! | `state` | one for an item and instance that answers | `item`, `instance` (an index into `instances`), `state`: `stock`, `lucky`, `initial`, `orders`, `sale` if it is known; null if there is no such sale any more |
//! | `end` | last | `attempts`, `ledger`: how many lines of each there must be; `orders`: how many orders the run had, by item |
//!
//! `items` has, for each item: `name` (null is the default item), `run` (what its order ids begin
//! with; a dash and a number follow), `before` (the state before the first order).
//! Elsewhere an item is an index into `items`, and left out if it is 0.
//!
//! An `attempt` has:
//!
//! | field | meaning |
//! |---|---|
//! | `order`, `item` | its order's id, and the item |
//! | `quantity` | the units that it asked for |
//! | `to` | where it was sent: an index into `instances` |
//! | `sent`, `ended` | microseconds since the run's start, of one monotonic clock |
//! | `outcome` | `ok`: accepted. `failed`: nothing was taken, for certain, by this attempt. `unknown`: anything else |
//! | `status` | the HTTP status; left out without an answer |
//! | `why` | of `failed` and `unknown`: `sold-out`, another problem's type, or what happened instead of an answer (`client went away`: on purpose) |
//! | `final` | `true` of `failed` and `unknown`, if the order ends with this answer; else left out: it was asked for again while retries and time were left |
//! | `remaining`, `instance`, `token`, `position` | of `ok`, as the service reported them; `token` and `position` are left out if it did not |
//!
//! A line is written when its attempt has ended. Of a run that was killed, the attempts that were
//! under way are missing, and so is all that comes at the end: there is nothing to judge then.
//!
//! # Layout
//! - [`lines`]: the lines.
//! - [`writer`]: writes them, on a thread of its own.
//! - [`reader`]: reads them again.

mod lines;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use lines::{ItemLine, RunLine, VERSION};
pub(crate) use reader::{ReadError, read};
pub(crate) use writer::{Attempt, Recorder, RecorderGone, Writer};
