//! Reads the answer to an attempt.

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use crate::api::{Problem, is_passing};
use crate::checker::{Acknowledgement, Other, Outcome};
use crate::connection::{Answer, ConnectionError};

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Settled,
    /// Retry, at another instance if `elsewhere`, after `wait` at least.
    Again {
        elsewhere: bool,
        wait: Option<Duration>,
    },
    /// The client is gone.
    Never,
}

/// Borrowed where possible: it is read for every order. (No `flatten`: that would copy all of it.)
#[derive(Deserialize)]
struct Reserved<'a> {
    #[serde(borrow)]
    outcome: Cow<'a, str>,
    #[serde(borrow)]
    order: Cow<'a, str>,
    quantity: u64,
    remaining: i64,
    #[serde(borrow)]
    instance: Cow<'a, str>,
    token: Option<i64>,
    position: Option<u64>,
}

/// Without an answer.
pub(crate) fn read_error(error: &ConnectionError) -> (Outcome, Next) {
    let (why, nothing_taken) = match error {
        ConnectionError::Connect { .. } => ("connection refused", true),
        ConnectionError::ConnectTimeout { .. } => ("no connection in time", true),
        ConnectionError::Timeout(_) => ("no answer in time", false),
        ConnectionError::Broken(_) | ConnectionError::Body(_) => ("broken connection", false),
    };
    let other = Other { status: None, why: why.into(), nothing_taken, is_final: false };
    (Outcome::Other(other), Next::Again { elsewhere: true, wait: None })
}

/// The answer to a probe.
pub(crate) fn read_probe(answer: &Answer) -> Outcome {
    if answer.status.is_success() {
        return Outcome::Probed;
    }
    let status = Some(answer.status.as_u16());
    Outcome::Other(Other { status, why: "".into(), nothing_taken: false, is_final: true })
}

/// The answer to the order `id`.
pub(crate) fn read(answer: &Answer, id: &str, quantity: u64) -> (Outcome, Next) {
    let status = answer.status;
    let other = |why: Cow<'static, str>, nothing_taken, is_final| {
        Outcome::Other(Other { status: Some(status.as_u16()), why, nothing_taken, is_final })
    };
    if status == StatusCode::OK {
        let odd = |what: &'static str| other(what.into(), false, true);
        let outcome = match serde_json::from_slice::<Reserved<'_>>(&answer.body) {
            Ok(reserved) if reserved.outcome != "reserved" => odd("with an unknown outcome"),
            Ok(reserved) if reserved.order != id => odd("for another order"),
            Ok(reserved) if reserved.quantity != quantity => odd("with another quantity"),
            Ok(Reserved { quantity, remaining, instance, token, position, .. }) => {
                let instance = instance.into_owned();
                Outcome::Acknowledged(Acknowledgement {
                    quantity,
                    remaining,
                    instance,
                    token,
                    position,
                })
            }
            Err(_) => odd("without a readable order"),
        };
        return (outcome, Next::Settled);
    }
    let problem = Problem::read(&answer.body);
    let kind = problem.kind();
    if kind == "sold-out" && status == StatusCode::CONFLICT {
        return (Outcome::SoldOut, Next::Settled);
    }
    // the service's problem types show that nothing was taken; a gateway's answer does not
    let nothing_taken =
        !kind.is_empty() && (status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE);
    // the service sends Retry-After if a retry is worth it
    let again = is_passing(status) && (kind.is_empty() || answer.retry_after.is_some());
    let outcome = other(kind.to_owned().into(), nothing_taken, !again);
    if again {
        // a full queue needs time; for other errors, another instance may be better off
        let elsewhere = status != StatusCode::TOO_MANY_REQUESTS;
        let wait = Some(answer.retry_after.unwrap_or_default());
        (outcome, Next::Again { elsewhere, wait })
    } else {
        (outcome, Next::Settled)
    }
}
