//! Running a script in Redis, and the answers of the one that writes.

use std::sync::LazyLock;

use fenced_lock::Token;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::connection::{Answers, Effect};
use super::shards::Shards;
use super::watermark::Watermark;
use super::{Fence, InventoryError, Item, Keys, Replicas};

/// The only writer of an item's keys.
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua\n", include_str!("watermark.lua"), include_str!("script.lua")))
});

/// A script and the digest under which Redis caches it. Its first arguments are the watermark.
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

/// Where a script runs.
pub(super) struct Place<'a> {
    pub(super) shards: &'a Shards,
    /// The item of the keys.
    pub(super) item: &'a Item,
    pub(super) effect: Effect,
    /// The replicas to wait for.
    pub(super) replicas: Option<Replicas>,
}

/// The content of the answer to a write that was done.
pub(super) struct Done {
    pub(super) sale: String,
    pub(super) fence: Option<Fence>,
    pub(super) values: Vec<Value>,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Runs the script by its digest, or by its source if Redis does not have it cached (a restart, a failover,
    /// `SCRIPT FLUSH`). Waits for the replicas in the same round trip.
    pub(super) async fn call(
        &self,
        place: Place<'_>,
        watermark: &Watermark,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Answers, InventoryError> {
        let Place { shards, item, effect, replicas } = place;
        let keys = Keys::of(item);
        let keys = &keys.all();
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(watermark.arguments());
            arguments(&mut command);
            command
        };
        let wait = replicas.map(Replicas::wait);
        let by_digest = command("EVALSHA", &self.digest);
        let mut answer = shards.send(item, &by_digest, wait.as_ref()).await?;
        if let Err(error) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let by_source = command("EVAL", self.source);
            // boxed: this is rare, and would double the size of every future around it
            answer = Box::pin(shards.send(item, &by_source, wait.as_ref())).await?;
        }
        answer.map_err(|error| match (rolled_back(&error), effect) {
            (Some(what), _) => InventoryError::RolledBack { what },
            (None, Effect::Write) => InventoryError::write(error),
            (None, Effect::Read) => InventoryError::read(error),
        })
    }
}

/// The missing data, if the script reported a roll-back.
fn rolled_back(error: &RedisError) -> Option<String> {
    let is_it = error.code() == Some("ROLLEDBACK");
    is_it.then(|| error.detail().unwrap_or("acknowledged data is missing").to_owned())
}

/// The answer is none of the script's: from another kind of server, or a proxy that rewrites answers. What was
/// done is unknown.
pub(super) fn not_understood() -> InventoryError {
    let source: RedisError =
        (ErrorKind::UnexpectedReturnType, "the answer of the script is not understood").into();
    InventoryError::Unanswered { source }
}

/// The meaning of the answer of the script that writes to a call under `token`.
pub(super) fn done(answer: Value, token: Option<Token>) -> Result<Done, InventoryError> {
    parse(answer, token).unwrap_or_else(|| Err(not_understood()))
}

fn parse(answer: Value, token: Option<Token>) -> Option<Result<Done, InventoryError>> {
    let Value::Array(values) = answer else { return None };
    let mut values = values.into_iter();
    let status = text(values.next()?)?;
    Some(match status.as_str() {
        "ok" => {
            let (sale, fence): (Option<String>, Option<String>) =
                redis::from_redis_value(Value::Array(values.by_ref().take(2).collect())).ok()?;
            let fence = match fence {
                Some(fence) => Some(Fence::from_record(&fence)?),
                None => None,
            };
            Ok(Done { sale: sale.unwrap_or_default(), fence, values: values.collect() })
        }
        "stale" => {
            let fence = Fence::from_record(&text(values.next()?)?)?;
            Err(InventoryError::StaleToken { token: token?, fence })
        }
        "foreign" => {
            let fence = Fence::from_record(&text(values.next()?)?)?;
            Err(InventoryError::ForeignFence { fence, token: token? })
        }
        "unknown" => Err(InventoryError::UnknownItem),
        "damaged" => Err(InventoryError::Damaged { what: text(values.next()?)? }),
        _ => return None,
    })
}

fn text(value: Value) -> Option<String> {
    redis::from_redis_value(value).ok()
}
