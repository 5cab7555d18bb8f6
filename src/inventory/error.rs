//! The errors of calls to the store.

use std::io;

use fenced_lock::Token;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The reason for which a call to the store failed.
///
/// [`nothing_written`](Self::nothing_written) says whether the call certainly changed nothing, and
/// [`is_retryable`](Self::is_retryable) whether the same call can succeed later. After any error it is safe to repeat a
/// batch with the same order ids: no order is taken twice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// The URL does not name a Redis server. The message hides the URL, which may hold a password.
    #[error(
        "the Redis URL is not valid: write redis://[[user]:password@]host[:port][/database], \
         redis-cluster://[[user]:password@]host[:port][,host...], \
         redis-sentinel://[[user]:password@]host[:port][,host...][/database]#primary, \
         with rediss for TLS, or unix:///path"
    )]
    InvalidUrl {
        /// The cause.
        source: RedisError,
    },
    /// The files for a TLS connection cannot be used.
    #[error("the certificates for Redis cannot be used")]
    InvalidCertificates {
        /// The cause.
        source: RedisError,
    },
    /// The default item cannot be in a Redis Cluster: its keys have no hash tag, and so are in several slots.
    #[error("the store is a Redis Cluster, which sells named items only: name an item")]
    ItemRequired,
    /// An argument is invalid; nothing was sent.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The store has accepted a later token.
    #[error("token {token} is stale: the store has accepted {fence}")]
    StaleToken {
        /// The token that was refused.
        token: Token,
        /// The fence of the store.
        fence: Token,
    },
    /// The fence comes from another etcd cluster, so the tokens cannot be compared. Only an operator knows
    /// which cluster is right: [`Inventory::recover_cluster`](super::Inventory::recover_cluster).
    #[error("the fence comes from cluster {} and the token from cluster {}", fence.cluster(), token.cluster())]
    ForeignFence {
        /// The fence of the store.
        fence: Token,
        /// The token that was refused.
        token: Token,
    },
    /// The item has no stock.
    #[error("there is no stock of this item")]
    UnknownItem,
    /// The start, change or deletion of a sale, or a read of a ledger, does not fit the running sale or the sales that are kept.
    #[error("refused: {why}")]
    SaleRefused {
        /// One of the [`REFUSALS`](Self::REFUSALS): the code in the error of a script, and the type of the problem.
        why: &'static str,
        /// The id of the running sale, if there is one.
        running: Option<String>,
    },
    /// Fewer units are left than a change of the sale would withdraw.
    #[error("{left} units are left")]
    TooFewUnits {
        /// The units left.
        left: u64,
    },
    /// The item's keys contain data that the service does not write.
    #[error("the item's data is damaged: {what}")]
    Damaged {
        /// The key, and what is wrong with it.
        what: String,
    },
    /// The store lost data that it acknowledged to this inventory. Nothing is sold until the data is restored, a new sale is
    /// [started](super::Inventory::start), or an operator [accepts](super::Inventory::recover_store) the loss.
    #[error("the store was rolled back: {what}")]
    RolledBack {
        /// The missing data.
        what: String,
    },
    /// The write was done, but too few replicas confirmed it in time: a failover may undo it. A retry waits for the
    /// replicas again.
    #[error("{count} of {wanted} replicas have what was written")]
    NotReplicated {
        /// How many confirmed it.
        count: i64,
        /// How many must confirm it.
        wanted: u32,
    },
    /// No answer, and nothing was written: the call was not sent, or was only a read.
    #[error("the store cannot be reached")]
    Unreachable {
        /// The cause.
        source: RedisError,
    },
    /// A write was sent and not answered: it may have been done, or may still be done.
    #[error("the store did not answer, and may have done what was sent")]
    Unanswered {
        /// The cause.
        source: RedisError,
    },
    /// The server refused: out of memory, read-only, loading, not permitted.
    #[error("the store refuses: {}", source.code().unwrap_or("unknown error"))]
    Refused {
        /// The server's words.
        source: RedisError,
    },
}

impl InventoryError {
    /// The reasons of [`SaleRefused`](Self::SaleRefused).
    pub const REFUSALS: [&'static str; 11] = [
        // the sale of this id runs, and has other terms
        "sale-conflict",
        // the sale of this id was replaced; or a position in a ledger is of another sale or behind its end
        "sale-replaced",
        // the end of the new sale, or the new end, is in the past
        "already-ended",
        // another sale runs that has orders; or it was started under an id, and the new sale has none
        "sale-running",
        // the running sale is not one that may be replaced
        "sale-mismatch",
        // the most replaced sales are kept already
        "too-many-sales",
        // the key of this change belongs to another change
        "change-conflict",
        // the sale has no terms, began without this term, or has started
        "term-final",
        // the change would add more units than a sale may have
        "too-many-units",
        // no sale of this id was kept
        "unknown-sale",
        // the sale to be deleted is the running one
        "not-replaced",
    ];

    /// Whether the call certainly changed nothing in the store.
    pub fn nothing_written(&self) -> bool {
        !matches!(self, Self::Unanswered { .. } | Self::NotReplicated { .. })
    }

    /// Whether the call may still be carried out later, when nobody waits for it any more.
    pub fn may_still_arrive(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// Whether the same call can succeed later without a repair. A call with a stale token cannot. Its orders can,
    /// under a new token.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unanswered { .. } | Self::NotReplicated { .. } | Self::Unreachable { .. } => true,
            Self::Refused { source } => is_transient(source),
            _ => false,
        }
    }

    /// Whether the store did not answer at all. It may answer other instances.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::Unreachable { .. })
            && !self.is_wrong_server()
    }

    /// Whether an operator must act, since the server is wrong or refuses for good: a wrong password, a node of a Redis Cluster.
    pub fn is_wrong_server(&self) -> bool {
        match self {
            // a connection logs in and asks for the server's role before anything else
            Self::Unreachable { source } => is_refused_login(source),
            Self::Refused { source } => !is_transient(source),
            _ => false,
        }
    }

    /// The error of a call that was not sent: there is no server, or only a replica.
    pub(super) fn not_sent(source: RedisError) -> Self {
        let is_replica = source.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        if is_replica { Self::Refused { source } } else { Self::Unreachable { source } }
    }

    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// The error of a read that took too long.
    pub(crate) fn too_late() -> Self {
        Effect::Read.failed(io::Error::from(io::ErrorKind::TimedOut).into())
    }
}

/// Whether a command changes data. This decides what a missing answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    Write,
}

impl Effect {
    pub(super) fn failed(self, source: RedisError) -> InventoryError {
        let Some(code) = source.code() else {
            return match self {
                Self::Read => InventoryError::Unreachable { source },
                Self::Write => InventoryError::Unanswered { source },
            };
        };
        let detail = source.detail().unwrap_or_default().to_owned();
        match code {
            "WRONGTYPE" => InventoryError::damaged("a key is of another type"),
            "DAMAGED" => InventoryError::damaged(detail),
            "ROLLEDBACK" => InventoryError::RolledBack { what: detail },
            "UNKNOWNITEM" => InventoryError::UnknownItem,
            "too-few-units" => {
                InventoryError::TooFewUnits { left: detail.parse().unwrap_or_default() }
            }
            _ => match InventoryError::REFUSALS.into_iter().find(|why| *why == code) {
                Some(why) => {
                    let running = Some(detail).filter(|running| !running.is_empty());
                    InventoryError::SaleRefused { why, running }
                }
                None => InventoryError::Refused { source },
            },
        }
    }
}

fn is_refused_login(error: &RedisError) -> bool {
    // the client replaces the code of a refused SELECT, which may also mean that the server is busy
    let text = error.to_string();
    let reasons = ["out of range", "no permissions", "not allowed in cluster mode"];
    let has_no_such_database = text.contains("refused to switch database")
        && reasons.iter().any(|reason| text.contains(reason));
    error.kind() == ErrorKind::InvalidClientConfig
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
        || has_no_such_database
}

pub(super) fn is_transient(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    match error.kind() {
        // read-only: a failover is under way; moved: the nodes redirected the call too often
        ErrorKind::Server(
            Ask | BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain,
        ) => true,
        _ => matches!(error.code(), Some("BUSY" | "MISCONF" | "NOREPLICAS" | "OOM")),
    }
}
