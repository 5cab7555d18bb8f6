//! The inventory, against a real Redis.

mod cluster;
mod damage;
mod durability;
mod faults;
mod fence;
mod reads;
mod replicas;
mod roll_back;
mod sale;
mod sentinel;

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::{Accepted, Outcome};
use testkit::shared::{Raw, fresh_database};

use crate::support::store::{connect, order};

fn token(revision: i64) -> Token {
    Token::new(ClusterId(0xcafe), revision)
}

fn accepted(outcome: &Outcome) -> &Accepted {
    match outcome {
        Outcome::Reserved(accepted) => accepted,
        other => panic!("reserved was expected, not {other:?}"),
    }
}
