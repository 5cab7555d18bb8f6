//! Calls of the page to the service: the control passes them on to the first instance that is up.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;
use flash_sale::http::problem::Problem;
use futures_util::{StreamExt as _, TryStreamExt as _};
use testkit::probe;
use tokio::time::sleep;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::{ASK_EVERY, Control, nobody_answers};

/// The longest line of an event stream, in bytes.
const MAX_LINE: usize = 1 << 20;

/// The answer of the first instance that is up. It ends when the instance does not answer any more.
pub(super) async fn call(
    State(control): State<Arc<Control>>,
    request: Request,
) -> Result<Response, Problem> {
    let first = control.up().into_iter().next().ok_or_else(nobody_answers)?;
    let answer = probe::send(&first.authority, request).await.map_err(|_| nobody_answers())?;
    let is_missed = async move {
        while control.up().iter().any(|one| one.name == first.name) {
            sleep(ASK_EVERY).await;
        }
    };
    Ok(answer
        .map(|body| Body::from_stream(Body::new(body).into_data_stream().take_until(is_missed))))
}

/// The same for the events. Each gets the control's view as its member `demo`.
pub(super) async fn events(
    State(control): State<Arc<Control>>,
    request: Request,
) -> Result<Response, Problem> {
    let answer = call(State(Arc::clone(&control)), request).await?;
    if !answer.status().is_success() || answer.headers().contains_key(CONTENT_LENGTH) {
        return Ok(answer);
    }
    Ok(answer.map(|body| {
        let bytes = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
        let lines = FramedRead::new(bytes, LinesCodec::new_with_max_length(MAX_LINE));
        Body::from_stream(lines.map_ok(move |line| match line.strip_prefix("data: {") {
            Some(rest) => format!("data: {{\"demo\":{},{rest}\n", control.view()),
            None => line + "\n",
        }))
    }))
}
