//! One order from its buyer's side: attempts and outcome.

use std::borrow::Cow;

/// One order of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Its final outcome.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FinalOutcome {
    /// It was accepted.
    Acknowledged(Acknowledgement),
    /// Too few units were left.
    SoldOut,
    /// It was no order, and was answered.
    Probed,
    /// No definite answer.
    Unknown,
    /// Anything else.
    Failed {
        /// The HTTP status.
        status: u16,
        /// The status and the problem's type.
        kind: String,
    },
}

/// The answer to an accepted order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    /// The units taken.
    pub(crate) quantity: u64,
    /// The stock that was left after it.
    pub(crate) remaining: i64,
    /// The instance that accepted it.
    pub(crate) instance: String,
    /// The token under which it was accepted; `None` if nothing guarded it.
    pub(crate) token: Option<i64>,
    /// Its place in the ledger, if known.
    pub(crate) position: Option<u64>,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acknowledged(Acknowledgement),
    SoldOut,
    /// Its request was no order, and was answered.
    Probed,
    /// The client closed the connection before there was an answer.
    WentAway,
    /// Anything else.
    Other(Other),
}

/// An attempt without a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    /// The HTTP status, if there was an answer.
    pub(crate) status: Option<u16>,
    /// The problem's type, or what happened instead of an answer.
    pub(crate) why: Cow<'static, str>,
    /// Whether it certainly took nothing.
    pub(crate) nothing_taken: bool,
    /// Whether a retry is useless.
    pub(crate) is_final: bool,
}

impl Other {
    /// The status and the reason, as counted in the report.
    pub(crate) fn kind(&self) -> String {
        match self.status {
            Some(status) => format!("{status} {}", self.why).trim_end().to_owned(),
            None => self.why.clone().into_owned(),
        }
    }
}

impl Outcome {
    /// The name in the report if it is to be retried.
    pub(crate) fn unsettled(&self) -> Option<String> {
        match self {
            Self::WentAway => Some("client went away".to_owned()),
            Self::Other(other) if !other.is_final => Some(other.kind()),
            Self::Acknowledged(_) | Self::SoldOut | Self::Probed | Self::Other(_) => None,
        }
    }
}

impl Order {
    /// An order that was not sent.
    pub(crate) fn unsent() -> Self {
        Self {
            outcome: FinalOutcome::Unknown,
            in_doubt: false,
            abandoned: false,
            attempts: 0,
            sent: 0,
            ended: 0,
        }
    }

    /// Adds an attempt, which lasted from `sent` to `ended`. The attempts of an order follow each
    /// other.
    pub(crate) fn add(&mut self, sent: u64, ended: u64, outcome: Outcome) {
        if self.attempts == 0 {
            self.sent = sent;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.ended = ended;
        self.abandoned = outcome == Outcome::WentAway;
        match outcome {
            Outcome::Acknowledged(answer) => self.outcome = FinalOutcome::Acknowledged(answer),
            Outcome::SoldOut => self.outcome = FinalOutcome::SoldOut,
            Outcome::Probed => self.outcome = FinalOutcome::Probed,
            Outcome::WentAway => self.in_doubt = true,
            Outcome::Other(other) => {
                self.in_doubt |= !other.nothing_taken;
                if let Some(status) = other.status.filter(|_| other.is_final) {
                    self.outcome = FinalOutcome::Failed { status, kind: other.kind() };
                }
            }
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
            FinalOutcome::SoldOut | FinalOutcome::Probed => true,
            FinalOutcome::Unknown | FinalOutcome::Failed { .. } => !self.in_doubt,
        }
    }
}
