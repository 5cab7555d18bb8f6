//! Running a script in Redis, and what the one that writes answers.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::{Connection, Effect};
use super::record::parse_fence;
use super::{Fence, InventoryError};
use crate::defence::Defence;

/// The only writer of an item's keys.
pub(super) static WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new(source(include_str!("script.lua"))));

#[cfg(feature = "chaos")]
use super::chaos::source;
#[cfg(not(feature = "chaos"))]
const fn source(source: &'static str) -> &'static str {
    source
}

/// A script and the digest under which Redis remembers it.
pub(super) struct Script {
    pub(super) source: &'static str,
    digest: String,
}

/// What the script that writes answers.
pub(super) enum Answer {
    Done(Vec<Value>),
    Stale(Fence),
    Foreign(Fence),
    Unknown,
    Damaged(String),
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Runs the script by its digest, or by its source if Redis does not remember it (a restart, a
    /// failover, `SCRIPT FLUSH`): in one step, so that no flush can come between loading and running.
    pub(super) async fn call(
        &self,
        connection: &Connection,
        effect: Effect,
        keys: &[&str],
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Value, InventoryError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys);
            arguments(&mut command);
            command
        };
        match connection.try_query(&command("EVALSHA", &self.digest)).await? {
            Err(error)
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
                    && Defence::ScriptReload.is_on() =>
            {
                connection.query(&command("EVAL", self.source), effect).await
            }
            Err(error) if effect == Effect::Write => Err(InventoryError::write(error)),
            Err(error) => Err(InventoryError::read(error)),
            Ok(answer) => Ok(answer),
        }
    }

    /// [`call`](Self::call), for the script that answers with a status.
    pub(super) async fn run(
        &self,
        connection: &Connection,
        effect: Effect,
        keys: &[&str],
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Answer, InventoryError> {
        let answer = self.call(connection, effect, keys, arguments).await?;
        parse_answer(answer).ok_or_else(not_understood)
    }
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
        "ok" => Answer::Done(values.collect()),
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
