//! Running a script in Redis, and what the one that writes answers.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::{Connection, Effect};
use super::record::parse_fence;
use super::watermark::Watermark;
use super::{Fence, InventoryError, Replicas};
use crate::defence::Defence;

/// The only writer of an item's keys.
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua\n", include_str!("watermark.lua"), include_str!("script.lua")))
});

/// A script and the digest under which Redis remembers it. Each begins with the part that checks what
/// the store acknowledged.
pub(super) struct Script {
    pub(super) source: &'static str,
    digest: String,
}

/// Where a script runs.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) connection: &'a Connection,
    pub(super) effect: Effect,
    /// The replicas to wait for.
    pub(super) replicas: Option<Replicas>,
}

/// What the script that writes answers.
pub(super) enum Answer {
    Done(Done),
    Stale(Fence),
    Foreign(Fence),
    Unknown,
    Damaged(String),
}

/// What comes with every write that was done.
pub(super) struct Done {
    pub(super) sale: Option<String>,
    pub(super) fence: Option<Fence>,
    pub(super) values: Vec<Value>,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Runs the script by its digest, or by its source if Redis does not remember it (a restart, a
    /// failover, `SCRIPT FLUSH`): in one step, so that no flush can come between loading and running.
    ///
    /// Where there are replicas to wait for, they are waited for in the same round trip.
    pub(super) async fn call(
        &self,
        place: Place<'_>,
        keys: &[&str],
        watermark: &Watermark,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<(Value, Option<RedisAnswer>), InventoryError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(watermark.arguments());
            arguments(&mut command);
            command
        };
        let Place { connection, effect, replicas } = place;
        let wait = replicas.map(Replicas::wait);
        let by_digest = command("EVALSHA", &self.digest);
        let mut answer = connection.try_query_then(&by_digest, wait.as_ref()).await?;
        if let Err(error) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
            && Defence::ScriptReload.is_on()
        {
            let by_source = command("EVAL", self.source);
            // off the stack: this is rare, and would make each future around it twice as large
            answer = Box::pin(connection.try_query_then(&by_source, wait.as_ref())).await?;
        }
        answer.map_err(|error| match (rolled_back(&error), effect) {
            (Some(what), _) => InventoryError::RolledBack { what },
            (None, Effect::Write) => InventoryError::write(error),
            (None, Effect::Read) => InventoryError::read(error),
        })
    }

    /// [`call`](Self::call), for the script that answers with a status.
    pub(super) async fn run(
        &self,
        place: Place<'_>,
        keys: &[&str],
        watermark: &Watermark,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Answer, InventoryError> {
        let (answer, waited) = self.call(place, keys, watermark, arguments).await?;
        let answer = parse_answer(answer).ok_or_else(not_understood)?;
        // a refusal wrote nothing that a replica could have
        if let (Answer::Done(_), Some(replicas), Some(waited)) = (&answer, place.replicas, waited) {
            replicas.check(waited)?;
        }
        Ok(answer)
    }
}

/// What the server said to the command behind a script.
pub(super) type RedisAnswer = Result<Value, RedisError>;

/// What the store lacks, if that is what the script says.
fn rolled_back(error: &RedisError) -> Option<String> {
    let is_it = error.code() == Some("ROLLEDBACK");
    is_it.then(|| error.detail().unwrap_or("it lacks what it acknowledged").to_owned())
}

/// The script answered something that it cannot answer: somebody else's server, or a proxy that
/// rewrites answers. What it did is unknown.
pub(super) fn not_understood() -> InventoryError {
    let source: RedisError =
        (ErrorKind::UnexpectedReturnType, "the script's answer is not understood").into();
    InventoryError::Unanswered { source }
}

fn parse_answer(answer: Value) -> Option<Answer> {
    let Value::Array(values) = answer else { return None };
    let mut values = values.into_iter();
    let status = text(values.next()?)?;
    Some(match status.as_str() {
        "ok" => {
            let (sale, fence): (Option<String>, Option<String>) =
                redis::from_redis_value(Value::Array(values.by_ref().take(2).collect())).ok()?;
            let fence = match fence {
                Some(fence) => Some(parse_fence(&fence)?),
                None => None,
            };
            Answer::Done(Done { sale, fence, values: values.collect() })
        }
        "stale" => Answer::Stale(parse_fence(&text(values.next()?)?)?),
        "foreign" => Answer::Foreign(parse_fence(&text(values.next()?)?)?),
        "unknown" => Answer::Unknown,
        "damaged" => Answer::Damaged(text(values.next()?)?),
        _ => return None,
    })
}

fn text(value: Value) -> Option<String> {
    redis::from_redis_value(value).ok()
}
