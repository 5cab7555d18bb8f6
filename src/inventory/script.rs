//! The scripts in Redis: what a call of one is made of, how it is sent, and what its answer means.
//!
//! `script.lua` is the only writer. It checks the token and the watermark before it writes.

use std::sync::LazyLock;
use std::time::Duration;

use fenced_lock::Token;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

use super::connection::Answers;
use super::error::Effect;
use super::shards::Shards;
use super::stock::{parse_token, token_record};
use super::watermark::Watermark;
use super::{Action, Batch, InventoryError, Item, Keys, Refusal};

/// The only writer of an item's keys.
static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua\n", include_str!("watermark.lua"), include_str!("script.lua")))
});

/// A script and the digest under which Redis caches it.
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }
}

/// One call of a script. The Lua says which argument is which.
pub(super) struct Call<'a> {
    script: &'static Script,
    pub(super) item: &'a Item,
    pub(super) effect: Effect,
    pub(super) token: Option<Token>,
    /// The call of the script by its digest.
    command: Cmd,
}

impl<'a> Call<'a> {
    /// A script that reads, with the watermark as its first arguments.
    pub(super) fn read(script: &'static Script, item: &'a Item, watermark: &Watermark) -> Self {
        let mut command = redis::cmd("EVALSHA");
        let keys = Keys::all(item);
        command.arg(&script.digest).arg(keys.len()).arg(&keys).arg(watermark.arguments());
        Self { script, item, effect: Effect::Read, token: None, command }
    }

    /// With another argument behind the others.
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// An operation of the script that writes.
    pub(super) fn write(
        operation: &str,
        item: &'a Item,
        token: Option<Token>,
        watermark: &Watermark,
    ) -> Result<Self, InventoryError> {
        if token.is_some_and(|token| token.revision() <= 0) {
            return Err(InventoryError::InvalidArgument("a token's revision is 1 or more"));
        }
        let token_text = token.map(token_record).unwrap_or_default();
        let call = Self::read(&WRITE, item, watermark).arg(operation).arg(token_text);
        Ok(Self { effect: Effect::Write, token, ..call })
    }

    /// Sells a batch. `writes_always`: also if there is nothing to write, so that a `WAIT` behind the call covers all
    /// that it read.
    pub(super) fn reduce(
        Batch { item, token, instance, orders }: Batch<'a>,
        watermark: &Watermark,
        writes_always: bool,
    ) -> Result<Self, InventoryError> {
        let mut call = Self::write("reduce", item, token, watermark)?
            .arg(if writes_always { "1" } else { "" })
            .arg(instance);
        for order in orders {
            call = match order.action {
                Action::Reserve => call.arg(order.key()).arg(order.quantity.get()),
                Action::Confirm => call.arg(order.key()).arg("confirm"),
                Action::Cancel => call.arg(order.key()).arg("cancel"),
                Action::Expire => call.arg("").arg("expire"),
            };
            call = call.arg(order.user.as_str());
        }
        Ok(call)
    }

    /// Whether a batch could be sold; writes nothing.
    pub(super) fn probe(
        item: &'a Item,
        token: Option<Token>,
        watermark: &Watermark,
    ) -> Result<Self, InventoryError> {
        // an order without an id
        let call = Self::write("probe", item, token, watermark)?.arg(&[""; 5]);
        Ok(Self { effect: Effect::Read, ..call })
    }

    /// Runs the script by its digest, or by its source if Redis does not have it cached (a restart, a failover,
    /// `SCRIPT FLUSH`). Waits for the replicas in the same round trip.
    pub(super) async fn send(
        &self,
        shards: &Shards,
        replicas: Option<Replicas>,
    ) -> Result<Answers, InventoryError> {
        let wait = replicas.map(Replicas::wait);
        let mut answer = shards.send(self.item, &self.command, wait.as_ref()).await?;
        if let Err(error) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let by_source = self.by_source();
            // boxed: this is rare, and would double the size of every future around it
            answer = Box::pin(shards.send(self.item, &by_source, wait.as_ref())).await?;
        }
        answer.map_err(|error| self.effect.failed(error))
    }

    fn by_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.source);
        // behind the name of the command and the digest
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// How many replicas must have a write before it is acknowledged: Redis' `WAIT`, once for a batch and in the
/// same round trip.
///
/// It makes a loss by failover unlikely, not impossible: the promoted replica may be one that did not confirm,
/// unless all must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many; 0: none.
    pub count: u32,
    /// How long to wait for them. At least a millisecond is used: 0 means for ever to Redis.
    pub timeout: Duration,
}

impl Replicas {
    /// The command that waits.
    fn wait(self) -> Cmd {
        let milliseconds = self.timeout.as_millis().max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(self.count).arg(u64::try_from(milliseconds).unwrap_or(u64::MAX));
        command
    }

    /// Checks whether enough of them confirmed.
    pub(super) fn check(self, answer: Result<Value, RedisError>) -> Result<(), InventoryError> {
        match answer.map_err(|source| InventoryError::Unanswered { source })? {
            Value::Int(count) if count >= i64::from(self.count) => Ok(()),
            Value::Int(count) => Err(InventoryError::NotReplicated { count, wanted: self.count }),
            _ => Err(not_understood()),
        }
    }
}

/// The content of the answer to a write that was done.
pub(super) struct Done {
    pub(super) sale: String,
    pub(super) fence: Option<Token>,
    pub(super) values: Vec<Value>,
}

/// The answer is none of the script's: from another kind of server, or a proxy that rewrites answers. What was
/// done is unknown.
pub(super) fn not_understood() -> InventoryError {
    let what = "the answer of the script is not understood";
    Effect::Write.failed((ErrorKind::UnexpectedReturnType, what).into())
}

/// The meaning of the answer of the script that writes to a call under `token`.
pub(super) fn done(answer: Value, token: Option<Token>) -> Result<Done, InventoryError> {
    parse(answer, token).unwrap_or_else(|| Err(not_understood()))
}

fn parse(answer: Value, token: Option<Token>) -> Option<Result<Done, InventoryError>> {
    let Value::Array(values) = answer else { return None };
    let mut values = values.into_iter();
    let mut next_text = || redis::from_redis_value::<Option<String>>(values.next()?).ok();
    let status = next_text()??;
    Some(match status.as_str() {
        "ok" => {
            let sale = next_text()?.unwrap_or_default();
            let fence = match next_text()? {
                Some(fence) => Some(parse_token(&fence)?),
                None => None,
            };
            Ok(Done { sale, fence, values: values.collect() })
        }
        "stale" => {
            Err(InventoryError::StaleToken { token: token?, fence: parse_token(&next_text()??)? })
        }
        "foreign" => {
            Err(InventoryError::ForeignFence { fence: parse_token(&next_text()??)?, token: token? })
        }
        "unknown" => Err(InventoryError::UnknownItem),
        "damaged" => Err(InventoryError::Damaged { what: next_text()?? }),
        "refused" => Err(Refusal::error(&next_text()??, next_text()??)?),
        _ => return None,
    })
}
