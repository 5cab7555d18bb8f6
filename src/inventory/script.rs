//! The calls of the scripts in Redis, and their answers.
//!
//! `script.lua` is the only writer, and `read.lua` reads. Both begin with `state.lua`, which compares the watermark.

use std::sync::LazyLock;
use std::time::Duration;

use fenced_lock::Token;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

use super::connection::Answers;
use super::error::Effect;
use super::shards::Shards;
use super::stock::{parse_token, token_record};
use super::watermark::Watermark;
use super::{Action, Batch, InventoryError, Item};

static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!("#!lua\n", include_str!("state.lua"), include_str!("script.lua")))
});

static READ: LazyLock<Script> = LazyLock::new(|| {
    let source =
        concat!("#!lua flags=allow-oom\n", include_str!("state.lua"), include_str!("read.lua"));
    Script::new(source)
});

/// A script and the digest under which Redis caches it.
struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }
}

/// One call of a script. The Lua files describe the arguments.
pub(super) struct Call<'a> {
    script: &'static Script,
    pub(super) item: &'a Item,
    pub(super) effect: Effect,
    token: Option<Token>,
    /// Whether the script compares the store with the watermark.
    pub(super) compares: bool,
    /// The call of the script by its digest.
    command: Cmd,
}

impl<'a> Call<'a> {
    fn new(script: &'static Script, operation: &str, item: &'a Item, sent: &Watermark) -> Self {
        let mut command = redis::cmd("EVALSHA");
        let keys = item.keys();
        command.arg(&script.digest).arg(keys.len()).arg(&keys).arg(&sent.compared()).arg(operation);
        let compares = !matches!(operation, "recover-cluster" | "forget");
        Self { script, item, effect: Effect::Read, token: None, compares, command }
    }

    /// An operation that only reads. The store is compared with the watermark `sent`.
    pub(super) fn read(operation: &str, item: &'a Item, sent: &Watermark) -> Self {
        Self::new(&READ, operation, item, sent)
    }

    /// An operation of the script that writes.
    pub(super) fn write(
        operation: &str,
        item: &'a Item,
        token: Option<Token>,
        sent: &Watermark,
    ) -> Result<Self, InventoryError> {
        if token.is_some_and(|token| token.revision() <= 0) {
            return Err(InventoryError::InvalidArgument("a token's revision is 1 or more"));
        }
        let call = Self::new(&WRITE, operation, item, sent);
        let call = call.arg(token.map(token_record).unwrap_or_default());
        let effect = if operation == "probe" { Effect::Read } else { Effect::Write };
        Ok(Self { effect, token, ..call })
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// Sells a batch. With `writes_always` the script writes even if nothing changes, so that a `WAIT` behind the call
    /// covers all data that the script read.
    pub(super) fn reduce(
        Batch { item, token, attempts }: Batch<'a>,
        sent: &Watermark,
        writes_always: bool,
    ) -> Result<Self, InventoryError> {
        let mut call = Self::write("reduce", item, token, sent)?
            .arg(if writes_always { "1" } else { "" })
            .arg(attempts[0].own_writer());
        for attempt in attempts {
            let order = attempt.order;
            call = match order.action {
                Action::Reserve => call.arg(order.key()).arg(order.quantity.get()),
                Action::Confirm => call.arg(order.key()).arg("confirm"),
                Action::Cancel => call.arg(order.key()).arg("cancel"),
                Action::Return => call.arg(order.key()).arg("return"),
                Action::Expire => call.arg("").arg("expire"),
            };
            let sent_under = attempt.sent_under.map(token_record).unwrap_or_default();
            call = call.arg(order.user.as_str()).arg(attempt.writer()).arg(sent_under);
        }
        Ok(call)
    }

    /// Runs the script by its digest, or by its source if Redis does not have it in its cache (after a restart, a
    /// failover or `SCRIPT FLUSH`). The `WAIT` for replicas goes in the same round trip.
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
        answer.map_err(|error| {
            let fence = error.detail().and_then(parse_token);
            match (error.code(), self.token, fence) {
                (Some("STALE"), Some(token), Some(fence)) => {
                    InventoryError::StaleToken { token, fence }
                }
                (Some("FOREIGN"), Some(token), Some(fence)) => {
                    InventoryError::ForeignFence { fence, token }
                }
                _ => self.effect.failed(error),
            }
        })
    }

    fn by_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.source);
        // without the name of the command and the digest
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// How many replicas must have a write before it is acknowledged: Redis' `WAIT`, once for a batch and in the same round trip.
///
/// This makes a loss by a failover unlikely, not impossible: unless all replicas must
/// confirm a write, the promoted one may lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas. 0: a write waits for none.
    pub count: u32,
    /// How long to wait for them. At least a millisecond is used: to Redis, 0 means for ever.
    pub timeout: Duration,
}

impl Replicas {
    fn wait(self) -> Cmd {
        let milliseconds = self.timeout.as_millis().max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(self.count).arg(u64::try_from(milliseconds).unwrap_or(u64::MAX));
        command
    }

    /// Checks whether enough replicas confirmed the write.
    pub(super) fn check(self, answer: Result<Value, RedisError>) -> Result<(), InventoryError> {
        match answer.map_err(|source| InventoryError::Unanswered { source })? {
            Value::Int(count) if count >= i64::from(self.count) => Ok(()),
            Value::Int(count) => Err(InventoryError::NotReplicated { count, wanted: self.count }),
            _ => Err(not_understood()),
        }
    }
}

/// The answer of the script that writes.
pub(super) struct Done {
    pub(super) sale: String,
    pub(super) fence: Option<Token>,
    pub(super) has_holds: bool,
    pub(super) values: Vec<Value>,
}

impl Done {
    pub(super) fn parse(answer: Value) -> Result<Self, InventoryError> {
        type Content = (Option<String>, Option<String>, bool, Vec<Value>);
        let content = redis::from_redis_value::<Content>(answer);
        let (sale, fence, has_holds, values) = content.map_err(|_| not_understood())?;
        let fence = fence.as_deref().and_then(parse_token);
        Ok(Self { sale: sale.unwrap_or_default(), fence, has_holds, values })
    }
}

/// The error for an answer that the script cannot have given: another kind of server gave it, or a proxy changed it. It
/// is unknown whether the call had an effect.
pub(super) fn not_understood() -> InventoryError {
    let what = "the answer of the script is not understood";
    Effect::Write.failed((ErrorKind::UnexpectedReturnType, what).into())
}
