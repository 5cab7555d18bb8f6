//! The buyers' conduct after an order was accepted: they pay, late, twice or never, or give it back.

use std::time::Duration;

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;
use serde::{Deserialize, Serialize};

use crate::checker::{Event, u64_from};
use crate::cli::{Count, SHARES, number};

/// The share of the buyers who confirm or cancel that ask once more, for the same or for the opposite.
const ASKS_AGAIN: f64 = 0.1;

/// Who the buyers are, and what they do with their orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub(crate) struct Conduct {
    /// Order for so many users in turn, 1 to 1000000 [default: without a user].
    #[arg(long, value_name = "N", value_parser = Count::new().range(1..=1_000_000))]
    pub(crate) users: Option<usize>,

    /// Share of the buyers, 0 to 1, that confirm their order at once. A tenth of those who confirm or cancel asks again,
    /// for the same or for the opposite. Who does neither lets the hold end.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = number(SHARES))]
    pub(crate) pay: f64,

    /// Share of the buyers that confirm shortly before or after the end of the hold.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = number(SHARES))]
    pub(crate) pay_late: f64,

    /// Share of the buyers that cancel at once.
    #[arg(long, default_value = "0", value_name = "SHARE", value_parser = number(SHARES))]
    pub(crate) cancel: f64,

    /// Share of the confirmed orders, or of the accepted ones in a sale without holds, that come back. Needs the admin token.
    #[arg(long = "return", default_value = "0", value_name = "SHARE", value_parser = number(SHARES))]
    #[serde(default)]
    pub(crate) returns: f64,

    /// Share of the accepted orders that are sent again after their answer, at the next instance, over a connection of their
    /// own, before or after what their buyers do then. The answer must be the same until their units have come back.
    #[arg(long, default_value = "0.02", value_name = "SHARE", value_parser = number(SHARES))]
    pub(crate) again: f64,
}

/// A buyer's request after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) wait: Duration,
    pub(crate) event: Event,
}

impl Step {
    /// Whether the buyer's next orders go on without waiting for it.
    pub(crate) fn is_aside(&self) -> bool {
        !self.wait.is_zero() || self.event == Event::Reserved
    }
}

/// The source of random choices for order `number`. The same seed and number give the same choices, so that a run can be
/// repeated.
pub(crate) fn choices(seed: u64, number: usize) -> SplitMix64 {
    let seed = SplitMix64::seed_from_u64(seed).next_u64() ^ u64_from(number);
    SplitMix64::seed_from_u64(seed)
}

impl Conduct {
    /// The sum of the shares that change an order.
    pub(crate) fn changing(&self) -> f64 {
        self.pay + self.pay_late + self.cancel
    }

    /// If order `number` belongs to the share [`again`](Self::again): sends it again after its answer, before or after one of
    /// these steps.
    pub(crate) fn ask_again(&self, seed: u64, number: usize, steps: &mut Vec<Step>) {
        let mut random = choices(!seed, number);
        if random.random_bool(self.again) {
            let place = random.random_range(0..=steps.len());
            steps.insert(place, Step { wait: Duration::ZERO, event: Event::Reserved });
        }
    }

    /// If order `number` belongs to the share [`returns`](Self::returns): returns it after these steps, once it is final.
    pub(crate) fn take_back(
        &self,
        seed: u64,
        number: usize,
        has_holds: bool,
        steps: &mut Vec<Step>,
    ) {
        let is_final = !has_holds || steps.iter().any(|step| step.event == Event::Confirmed);
        if is_final && choices(seed.wrapping_add(9), number).random_bool(self.returns) {
            steps.push(Step { wait: Duration::ZERO, event: Event::Returned });
        }
    }

    /// The requests of the buyer of order `number`, one after the other, for a hold of this length.
    pub(crate) fn steps(&self, seed: u64, number: usize, hold: Duration) -> Vec<Step> {
        let mut random = choices(seed.wrapping_add(1), number);
        let lot = random.random_range(0.0..1.0);
        let soon = Duration::ZERO;
        let (wait, event) = if lot < self.pay {
            (soon, Event::Confirmed)
        } else if lot < self.pay + self.pay_late {
            (hold.mul_f64(random.random_range(0.8..1.2)), Event::Confirmed)
        } else if lot < self.changing() {
            (soon, Event::Cancelled)
        } else {
            return Vec::new();
        };
        let mut steps = vec![Step { wait, event }];
        if random.random_bool(ASKS_AGAIN) {
            let event = if random.random_bool(0.5) { Event::Confirmed } else { Event::Cancelled };
            steps.push(Step { wait: soon, event });
        }
        steps
    }
}
