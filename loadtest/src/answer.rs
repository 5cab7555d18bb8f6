//! Reads the answer to an attempt.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use crate::api::{Problem, is_passing};
use crate::checker::{Acknowledgement, Effect, Event, Failure, MAY_PASS, Outcome};
use crate::connection::{Answer, ConnectionError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// Whether to try at another instance.
    pub(crate) elsewhere: bool,
    /// The shortest pause before it.
    pub(crate) wait: Option<Duration>,
}

/// Borrows where possible, because it is parsed for every order. (`flatten` would copy all of it.)
#[derive(Deserialize)]
struct Reserved<'a> {
    outcome: Event,
    #[serde(borrow)]
    order: Cow<'a, str>,
    quantity: u64,
    remaining: i64,
    instance: String,
    token: Option<i64>,
    position: Option<u64>,
}

/// The outcome of an attempt that got no answer.
pub(crate) fn read_error(error: &ConnectionError) -> (Outcome, Option<Retry>) {
    let (effect, why): (fn(Failure) -> Effect, _) = match error {
        ConnectionError::Connect { source, .. } if source.kind() == ErrorKind::TimedOut => {
            (Effect::Failed, "no connection in time")
        }
        ConnectionError::Connect { .. } => (Effect::Failed, "connection refused"),
        ConnectionError::Timeout(_) => (Effect::Unknown, "no answer in time"),
        ConnectionError::Broken(_) => (Effect::Unknown, "broken connection"),
    };
    let effect = effect(Failure { why: why.into(), is_final: false });
    (Outcome { status: None, effect }, Some(Retry { elsewhere: true, wait: None }))
}

/// The outcome of a probe: a good answer counts as an accepted order without details.
pub(crate) fn read_probe(answer: &Answer) -> Outcome {
    let effect = if answer.status.is_success() {
        Effect::Ok(Acknowledgement::default())
    } else {
        Effect::Unknown(Failure { why: "".into(), is_final: true })
    };
    Outcome { status: Some(answer.status.as_u16()), effect }
}

/// The outcome of the order `id`; if it was accepted, the answer says `event`.
pub(crate) fn read(
    answer: &Answer,
    id: &str,
    quantity: u64,
    event: Event,
) -> (Outcome, Option<Retry>) {
    let outcome = |effect| Outcome { status: Some(answer.status.as_u16()), effect };
    if answer.status == StatusCode::OK {
        let why = match serde_json::from_slice::<Reserved<'_>>(&answer.body) {
            Err(_) => "without a readable order",
            Ok(it) if it.outcome != event => "with another outcome",
            Ok(it) if it.order != id => "for another order",
            Ok(it) if it.quantity != quantity => "with another quantity",
            Ok(Reserved { remaining, instance, token, position, .. }) => {
                let replayed = answer.replayed;
                let it = Acknowledgement { remaining, instance, token, position, replayed };
                return (outcome(Effect::Ok(it)), None);
            }
        };
        return (outcome(Effect::Unknown(Failure { why: why.into(), is_final: true })), None);
    }
    let problem = Problem::read(&answer.body);
    let kind = problem.kind();
    // the service sends Retry-After if a retry is worth it
    let is_held = answer.status == StatusCode::CONFLICT && MAY_PASS.contains(&kind);
    let may_pass = is_held || is_passing(answer.status);
    let again = may_pass && (kind.is_empty() || answer.retry_after.is_some());
    let failure = Failure { why: kind.to_owned().into(), is_final: !again };
    // one of the service's problem types proves that nothing was taken; a gateway's answer does not
    let nothing_taken = !kind.is_empty()
        && (answer.status.is_client_error() || answer.status == StatusCode::SERVICE_UNAVAILABLE);
    let effect = if nothing_taken { Effect::Failed(failure) } else { Effect::Unknown(failure) };
    let retry = again.then(|| Retry {
        // a full queue, held units and a pause need time; after other errors, another instance may do better
        elsewhere: !is_held && answer.status != StatusCode::TOO_MANY_REQUESTS,
        wait: Some(answer.retry_after.unwrap_or_default()),
    });
    (outcome(effect), retry)
}
