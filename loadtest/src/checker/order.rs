//! One order from its buyer's side: attempts and outcome.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Why an attempt is unsettled if its client closed the connection on purpose.
const WENT_AWAY: &str = "client went away";

/// The problem type of an order for which too few units were left.
const SOLD_OUT: &str = "sold-out";

/// One order of a run; by default one that was not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) outcome: FinalOutcome,
    /// Whether an attempt without an answer may have taken units.
    pub(crate) in_doubt: bool,
    /// Whether its buyer went away for good, on purpose.
    pub(crate) abandoned: bool,
    /// How often it was sent; 0 if all buyers had given up before.
    pub(crate) attempts: u32,
    /// When it was first sent, in microseconds since the run's start.
    pub(crate) sent: u64,
    /// When its last attempt ended, in microseconds since the run's start.
    pub(crate) ended: u64,
}

/// The final outcome of an order for its buyer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FinalOutcome {
    Acknowledged(Acknowledgement),
    /// Too few units were left.
    SoldOut,
    /// No definite answer.
    #[default]
    Unknown,
    /// Any other answer, such as `500 internal`: the status and the problem's type.
    Failed {
        status: u16,
        kind: String,
    },
}

/// The answer to an accepted order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Acknowledgement {
    /// The stock that was left after it.
    pub(crate) remaining: i64,
    /// The instance that accepted it.
    pub(crate) instance: String,
    /// The token under which it was accepted; `None` if nothing guarded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<i64>,
    /// Its place in the ledger, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<u64>,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The HTTP status, if there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(flatten)]
    pub(crate) effect: Effect,
}

/// What an attempt did to the stock, as far as the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Effect {
    /// The order was accepted.
    Ok(Acknowledgement),
    /// The attempt took nothing, for certain.
    Failed(Failure),
    /// Anything else.
    Unknown(Failure),
}

/// An attempt that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The problem's type, or what happened instead of an answer.
    pub(crate) why: Cow<'static, str>,
    /// Whether a retry is useless.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_final: bool,
}

impl Outcome {
    /// The outcome of an attempt whose client closed the connection before there was an answer.
    pub(crate) fn went_away() -> Self {
        let failure = Failure { why: WENT_AWAY.into(), is_final: false };
        Self { status: None, effect: Effect::Unknown(failure) }
    }

    fn is_sold_out(&self) -> bool {
        matches!(&self.effect, Effect::Failed(failure) if failure.why == SOLD_OUT)
            && self.status == Some(409)
    }

    /// `None` if the order was accepted.
    fn failure(&self) -> Option<&Failure> {
        match &self.effect {
            Effect::Ok(_) => None,
            Effect::Failed(failure) | Effect::Unknown(failure) => Some(failure),
        }
    }

    /// The status and the reason, as counted in the report, if the attempt is to be retried.
    pub(crate) fn unsettled(&self) -> Option<String> {
        let failure = self.failure().filter(|failure| !failure.is_final)?;
        Some(self.kind(failure))
    }

    fn kind(&self, failure: &Failure) -> String {
        match self.status {
            Some(status) => format!("{status} {}", failure.why).trim_end().to_owned(),
            None => failure.why.to_string(),
        }
    }
}

impl Order {
    /// Adds an attempt, which lasted from `sent` to `ended`. The attempts of an order follow each
    /// other.
    pub(crate) fn add(&mut self, sent: u64, ended: u64, outcome: Outcome) {
        if self.attempts == 0 {
            self.sent = sent;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.ended = ended;
        self.in_doubt |= matches!(outcome.effect, Effect::Unknown(_));
        let failure = outcome.failure();
        self.abandoned = failure.is_some_and(|failure| failure.why == WENT_AWAY);
        if outcome.is_sold_out() {
            self.outcome = FinalOutcome::SoldOut;
        } else if let Some(failure) = failure.filter(|failure| failure.is_final)
            && let Some(status) = outcome.status
        {
            self.outcome = FinalOutcome::Failed { status, kind: outcome.kind(failure) };
        } else if let Effect::Ok(answer) = outcome.effect {
            self.outcome = FinalOutcome::Acknowledged(answer);
        }
    }

    /// When its buyer got the acknowledgement.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        matches!(self.outcome, FinalOutcome::Acknowledged(_)).then_some(self.ended)
    }

    /// Whether it was accepted or refused.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.outcome, FinalOutcome::Acknowledged(_) | FinalOutcome::SoldOut)
    }

    /// Whether it has a definite answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcome != FinalOutcome::Unknown
    }

    /// Whether it must not be in the ledger: by its answers, no attempt can have taken anything. Sold out
    /// covers all attempts of an order, as an accepted one gets its first answer again.
    pub(crate) fn must_not_stand(&self) -> bool {
        match self.outcome {
            FinalOutcome::Acknowledged(_) => false,
            FinalOutcome::SoldOut => true,
            FinalOutcome::Unknown | FinalOutcome::Failed { .. } => !self.in_doubt,
        }
    }
}
