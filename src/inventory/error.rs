//! Why the store did not do what was asked.

use fenced_lock::Token;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::Fence;

/// Why the store did not do what was asked.
///
/// Two questions matter to a caller that gets one: was anything written
/// ([`nothing_written`](Self::nothing_written)), and can the same call succeed later
/// ([`is_retryable`](Self::is_retryable))? Repeating a batch of orders with the same ids is safe after
/// any of these errors: an order is never taken twice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// The URL does not name a Redis server. The message never shows the URL, which may hold a
    /// password.
    #[error(
        "the Redis URL is not valid: write redis://[[user]:password@]host[:port][/database], \
         with rediss for TLS, or unix:///path"
    )]
    InvalidUrl {
        /// What is wrong with it.
        #[source]
        source: RedisError,
    },
    /// The files for a TLS connection cannot be used.
    #[error("the certificates for Redis cannot be used")]
    InvalidCertificates {
        /// What is wrong with them.
        #[source]
        source: RedisError,
    },
    /// The call itself makes no sense; nothing was sent.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The store has accepted a later token: the holder of this one was overtaken.
    #[error("token {token} is stale: the store has accepted {}", fence.revision)]
    StaleToken {
        /// The token that was refused.
        token: Token,
        /// What the store has.
        fence: Fence,
    },
    /// The store's fence comes from another cluster, so neither is the later. Only an operator can
    /// know which cluster counts: [`Inventory::recover_cluster`](super::Inventory::recover_cluster).
    #[error("the fence comes from cluster {} and the token from cluster {}", fence.cluster, token.cluster())]
    ForeignFence {
        /// What the store has.
        fence: Fence,
        /// The token that was refused.
        token: Token,
    },
    /// Nobody has set a stock for this item.
    #[error("there is no stock of this item")]
    UnknownItem,
    /// The item's keys hold what this crate does not write there.
    #[error("the item's data is damaged: {what}")]
    Damaged {
        /// Which key, and what is wrong with it.
        what: String,
    },
    /// The store lacks what it once acknowledged to this inventory: it lost its last writes, or an older
    /// copy of its data was brought back. Nothing is sold from it until it has them again, the sale is
    /// [started](super::Inventory::start) afresh, or the loss is
    /// [accepted](super::Inventory::recover_store).
    #[error("the store was rolled back: {what}")]
    RolledBack {
        /// What it lacks.
        what: String,
    },
    /// A write was done, and too few replicas had it in time: a failover may yet undo it. The same call
    /// again waits for them again.
    #[error("{count} of {wanted} replicas have what was written")]
    NotReplicated {
        /// How many have it.
        count: i64,
        /// How many must.
        wanted: u32,
    },
    /// No answer, and nothing was written: the call was never sent, or was only a read.
    #[error("the store cannot be reached")]
    Unreachable {
        /// What went wrong.
        #[source]
        source: RedisError,
    },
    /// A write was sent, and no answer came: it may have happened, may yet happen, or not.
    #[error("the store did not answer, and what was sent may have been done")]
    Unanswered {
        /// What went wrong.
        #[source]
        source: RedisError,
    },
    /// The server answered that it will not: out of memory, read-only, loading, not permitted.
    #[error("the store refuses: {}", source.code().unwrap_or("unknown error"))]
    Refused {
        /// The server's words.
        #[source]
        source: RedisError,
    },
}

impl InventoryError {
    /// Whether it is certain that this call changed nothing in the store.
    pub fn nothing_written(&self) -> bool {
        !matches!(self, Self::Unanswered { .. } | Self::NotReplicated { .. })
    }

    /// Whether it is about the server that the URL leads to, and waiting mends nothing: a wrong password, a
    /// Redis Cluster.
    pub fn is_wrong_server(&self) -> bool {
        match self {
            Self::Refused { .. } => !self.is_retryable(),
            // the connection logs in and asks who is there before anything else
            Self::Unreachable { source } => {
                source.kind() == ErrorKind::InvalidClientConfig
                    || matches!(source.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
            }
            _ => false,
        }
    }

    /// Whether the same call can succeed later, without anybody repairing anything. A stale token
    /// never can; the orders can, under a new token.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unanswered { .. } | Self::NotReplicated { .. } => true,
            Self::Refused { source } => is_transient(source),
            _ => false,
        }
    }

    /// `error` happened before anything was sent: there is nobody, or only a replica.
    pub(super) fn not_sent(source: RedisError) -> Self {
        let is_replica = source.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        if is_replica { Self::Refused { source } } else { Self::Unreachable { source } }
    }

    /// `error` came back from a read.
    pub(super) fn read(source: RedisError) -> Self {
        if is_answer(&source) { Self::answered(source) } else { Self::Unreachable { source } }
    }

    /// `error` came back from a write.
    pub(super) fn write(source: RedisError) -> Self {
        if is_answer(&source) { Self::answered(source) } else { Self::Unanswered { source } }
    }

    fn answered(source: RedisError) -> Self {
        if source.code() == Some("WRONGTYPE") {
            Self::Damaged { what: "a key is of another type".to_owned() }
        } else {
            Self::Refused { source }
        }
    }
}

/// Whether the server itself said so. Everything else (I/O, an answer that cannot be parsed) leaves
/// open what the server did.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_)) || error.code().is_some()
}

fn is_transient(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    match error.kind() {
        // Read-only: a failover is under way.
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain) => true,
        _ => matches!(error.code(), Some("BUSY" | "MISCONF" | "NOREPLICAS" | "OOM")),
    }
}
