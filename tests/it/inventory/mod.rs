//! The inventory, against a real Redis.

mod damage;
mod durability;
mod faults;
mod fence;
mod naive;
mod reads;
mod replicas;
mod roll_back;
mod sale;

use flash_sale::inventory::{Accepted, Outcome};
use flash_sale::lock::{ClusterId, Token};

use crate::support::store::{Raw, connect, fresh_database, order};

fn token(revision: i64) -> Token {
    Token::new(ClusterId(0xcafe), revision)
}

fn accepted(outcome: &Outcome) -> &Accepted {
    match outcome {
        Outcome::Reserved(accepted) => accepted,
        other => panic!("reserved was expected, not {other:?}"),
    }
}
