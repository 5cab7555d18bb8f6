//! The lines of the file. They are described at the top of the module.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::checker::{Acknowledgement, LedgerEntry, Other, Outcome, StockState};

/// The format that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;

/// What a client that went away on purpose left behind.
const WENT_AWAY: &str = "client went away";

const SOLD_OUT: &str = "sold-out";

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line<'a> {
    Run(RunLine),
    #[serde(borrow)]
    Attempt(AttemptLine<'a>),
    Order(OrderLine),
    State(StateLine),
    End(EndLine),
}

/// What was asked for, and what was found before the first order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunLine {
    pub(crate) version: u32,
    pub(crate) run: String,
    pub(crate) started: String,
    pub(crate) requests: usize,
    pub(crate) seconds: Option<f64>,
    pub(crate) connections: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) abandon: f64,
    pub(crate) seed: u64,
    pub(crate) quantity: u64,
    #[serde(default)]
    pub(crate) alone: bool,
    #[serde(default)]
    pub(crate) tokens: bool,
    pub(crate) instances: Vec<String>,
    pub(crate) items: Vec<ItemLine>,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ItemLine {
    pub(crate) name: Option<String>,
    pub(crate) run: String,
    pub(crate) before: StockState,
}

/// One attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AttemptLine<'a> {
    #[serde(borrow)]
    pub(super) order: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_first")]
    pub(super) item: usize,
    pub(super) quantity: u64,
    pub(super) to: usize,
    pub(super) sent: u64,
    pub(super) ended: u64,
    outcome: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    why: Option<Cow<'a, str>>,
    #[serde(default, rename = "final", skip_serializing_if = "is_false")]
    is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remaining: Option<i64>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    instance: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
}

/// What the client knows after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Ok,
    Failed,
    Unknown,
}

/// One order of the ledger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OrderLine {
    #[serde(default, skip_serializing_if = "is_first")]
    pub(super) item: usize,
    #[serde(flatten)]
    pub(super) entry: LedgerEntry,
}

/// The state in the end, as one instance tells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StateLine {
    #[serde(default, skip_serializing_if = "is_first")]
    pub(super) item: usize,
    pub(super) instance: usize,
    pub(super) state: Option<StockState>,
}

/// How much there must be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndLine {
    pub(super) attempts: u64,
    pub(super) ledger: u64,
    pub(super) orders: Vec<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first(item: &usize) -> bool {
    *item == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(is: &bool) -> bool {
    !*is
}

impl<'a> AttemptLine<'a> {
    /// An attempt of the order `order` of the item at `item`.
    pub(super) fn new(order: String, item: usize, quantity: u64, outcome: &'a Outcome) -> Self {
        let mut line = Self {
            order: order.into(),
            item,
            quantity,
            to: 0,
            sent: 0,
            ended: 0,
            outcome: Kind::Unknown,
            status: None,
            why: None,
            is_final: false,
            remaining: None,
            instance: None,
            token: None,
            position: None,
        };
        match outcome {
            Outcome::Acknowledged(answer) => {
                line.outcome = Kind::Ok;
                line.status = Some(200);
                line.remaining = Some(answer.remaining);
                line.instance = Some(answer.instance.as_str().into());
                line.token = answer.token;
                line.position = answer.position;
            }
            Outcome::SoldOut => {
                line.outcome = Kind::Failed;
                line.status = Some(409);
                line.why = Some(SOLD_OUT.into());
                line.is_final = true;
            }
            Outcome::WentAway => line.why = Some(WENT_AWAY.into()),
            Outcome::Other(other) => {
                line.outcome = if other.nothing_taken { Kind::Failed } else { Kind::Unknown };
                line.status = other.status;
                line.why = Some(other.why.as_ref().into());
                line.is_final = other.is_final;
            }
            Outcome::Probed => {}
        }
        line
    }

    /// How the attempt ended.
    ///
    /// # Errors
    /// A field is missing.
    pub(super) fn outcome(&self) -> Result<Outcome, &'static str> {
        if self.outcome == Kind::Ok {
            let (Some(remaining), Some(instance)) = (self.remaining, &self.instance) else {
                return Err("an attempt that is ok needs `remaining` and `instance`");
            };
            return Ok(Outcome::Acknowledged(Acknowledgement {
                quantity: self.quantity,
                remaining,
                instance: instance.clone().into_owned(),
                token: self.token,
                position: self.position,
            }));
        }
        let Some(why) = &self.why else {
            return Err("an attempt that is not ok needs `why`");
        };
        Ok(match (self.outcome, why.as_ref()) {
            (Kind::Failed, SOLD_OUT) => Outcome::SoldOut,
            (Kind::Unknown, WENT_AWAY) => Outcome::WentAway,
            (kind, why) => Outcome::Other(Other {
                status: self.status,
                why: why.to_owned().into(),
                nothing_taken: kind == Kind::Failed,
                is_final: self.is_final,
            }),
        })
    }
}
