//! Waiting for replicas, so that a failover loses nothing that was acknowledged.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};

use super::InventoryError;

/// How many replicas must have a write before it counts as acknowledged. Redis' `WAIT`, once for a
/// whole batch and in the same round trip.
///
/// It makes a loss by failover unlikely, not impossible: Redis does not promise that the replica which
/// is promoted is one of those that answered. With as many as there are, it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many.
    pub count: u32,
    /// How long to wait for them: at least a millisecond, since none would mean for ever to Redis.
    pub timeout: Duration,
}

impl Replicas {
    /// The command that waits.
    pub(super) fn wait(self) -> Cmd {
        let milliseconds = self.timeout.as_millis().max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(self.count).arg(u64::try_from(milliseconds).unwrap_or(u64::MAX));
        command
    }

    /// Whether enough of them have it.
    pub(super) fn check(self, answer: Result<Value, RedisError>) -> Result<(), InventoryError> {
        let unanswered = |source| InventoryError::Unanswered { source };
        match answer.map_err(unanswered)? {
            Value::Int(count) if count >= i64::from(self.count) => Ok(()),
            Value::Int(count) => Err(InventoryError::NotReplicated { count, wanted: self.count }),
            _ => {
                let kind = ErrorKind::UnexpectedReturnType;
                Err(unanswered((kind, "the answer to WAIT is not understood").into()))
            }
        }
    }
}
