//! Reads the body of a request, with limits on its size and time.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::params::MAX_REASON;
use super::problem::{Problem, ProblemType};
use crate::safeguard::LIMITS;

/// The most bytes of a body.
pub const MAX_BODY_BYTES: usize = 16 * 1024;

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How much of a body that is too large is read before it is refused. If the connection closed while the client still sends, the
/// client would get a reset, not the answer.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;

/// The whole body.
///
/// # Errors
/// `body-too-large`, `request-timeout`, and `bad-body` if the body is incomplete.
pub async fn read(body: Body) -> Result<Bytes, Problem> {
    if !LIMITS.is_on() {
        let broken = |_| Problem::new(ProblemType::BAD_BODY, "the body is incomplete");
        return Ok(body.collect().await.map_err(broken)?.to_bytes());
    }
    timeout(BODY_TIMEOUT, collect(body)).await.unwrap_or_else(|_elapsed| {
        let seconds = BODY_TIMEOUT.as_secs();
        let detail = format!("the body did not arrive within {seconds} seconds");
        Err(Problem::new(ProblemType::REQUEST_TIMEOUT, detail))
    })
}

/// Parses a JSON object. serde alone would accept an array for a struct.
///
/// # Errors
/// The fault, and the field that has it.
pub fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("it is no JSON object".to_owned());
    }
    let parsed = Json::from_bytes(body).map(|Json(parsed)| parsed);
    parsed.map_err(|refusal| {
        let text = refusal.body_text();
        // leave out the beginning that all of axum's errors share
        let reason = text.split_once(": ").map_or(&*text, |(_, reason)| reason);
        reason.chars().take(MAX_REASON).collect()
    })
}

/// Explains a reason that [`object`] gave for an object of these fields: the field, and the values that it may have.
pub(super) fn explained(fields: &[(&str, &str)], reason: &str) -> String {
    let of = |name: &str| fields.iter().find(|(field, _)| *field == name);
    let missing = reason.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    if let Some((field, allowed)) = missing.and_then(of) {
        return format!("`{field}` is missing: it is {allowed}");
    }
    let (path, why) = reason.split_once(": ").unwrap_or_default();
    if let Some((field, allowed)) = of(path) {
        return format!("`{field}` is {allowed} ({why})");
    }
    let all = fields.iter().map(|(field, allowed)| format!("`{field}` ({allowed})"));
    let all: Vec<_> = all.collect();
    format!("{reason}: the body is a JSON object with {}", all.join(", "))
}

/// Refuses a body in a call that takes none: it would be ignored.
///
/// # Errors
/// `bad-body`, and those of [`read`].
pub(super) async fn refuse(body: Body) -> Result<(), Problem> {
    if body.is_end_stream() || read(body).await?.is_empty() {
        return Ok(());
    }
    let detail = "this call takes no body: its parameters go into the query of the URL";
    Err(Problem::new(ProblemType::BAD_BODY, detail))
}

async fn collect(mut body: Body) -> Result<Bytes, Problem> {
    let mut bytes = Vec::new();
    let mut total = 0_usize;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    while total.max(announced) <= MAX_DISCARDED_BYTES
        && let Some(frame) = body.frame().await
    {
        let broken = |_| Problem::new(ProblemType::BAD_BODY, "the body is incomplete");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        total = total.saturating_add(data.len());
        if total <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&data);
        }
    }
    if total.max(announced) > MAX_BODY_BYTES {
        let detail = format!("a body has at most {MAX_BODY_BYTES} bytes");
        return Err(Problem::new(ProblemType::BODY_TOO_LARGE, detail));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn chunks(count: usize) -> Body {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        Body::from_stream(stream::iter(
            (0..count).map(move |_| Ok::<_, std::io::Error>(chunk.clone())),
        ))
    }

    /// Goal: a body up to the limit is read; a body that is too large, breaks off or does not come is refused.
    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_the_limit() {
        assert_eq!(read(chunks(16)).await.expect("16 KiB").len(), MAX_BODY_BYTES);
        let never = stream::pending::<Result<Bytes, std::io::Error>>();
        let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("gone"))]);
        for (body, kind) in [
            (chunks(17), ProblemType::BODY_TOO_LARGE),
            (chunks(usize::MAX), ProblemType::BODY_TOO_LARGE),
            (Body::from(vec![b'x'; MAX_BODY_BYTES + 1]), ProblemType::BODY_TOO_LARGE),
            (Body::from_stream(never), ProblemType::REQUEST_TIMEOUT),
            (Body::from_stream(broken), ProblemType::BAD_BODY),
        ] {
            assert_eq!(read(body).await.expect_err("refused").kind(), kind);
        }
    }
}
