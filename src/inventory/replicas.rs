//! Waiting for replicas, so that a failover loses no acknowledged order.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};

use super::InventoryError;

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
    pub(super) fn wait(self) -> Cmd {
        let milliseconds = self.timeout.as_millis().max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(self.count).arg(u64::try_from(milliseconds).unwrap_or(u64::MAX));
        command
    }

    /// Checks whether enough of them confirmed.
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
