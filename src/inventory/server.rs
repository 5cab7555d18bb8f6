//! The Redis process at the other end.

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, InfoDict, RedisResult, ServerErrorKind};

use super::sentinel::Watched;

/// The server that answered last, by its own account. Another process or role is logged. Whether it has all
/// acknowledged data is checked by each call.
#[derive(Debug, Default)]
pub(super) struct LastServer {
    /// Its run id, which changes at each start, and whether it is a replica.
    server: Mutex<Option<(String, bool)>>,
    /// The open connections to it, if sentinels named it.
    pub(super) watched: Watched,
}

impl LastServer {
    /// Asks the server of a new connection for its process and role.
    ///
    /// # Errors
    /// No answer; the server is a replica, which takes no orders and may have old data; or it is a node of a
    /// Redis Cluster, where other nodes have other items, and `is_node` says that it is none. A server that
    /// hides its role is accepted.
    pub(super) async fn identify(
        &self,
        connection: &mut MultiplexedConnection,
        is_node: bool,
    ) -> RedisResult<()> {
        let info: InfoDict = match redis::cmd("INFO").query_async(connection).await {
            Ok(info) => info,
            Err(error) if error.is_io_error() => return Err(error),
            Err(_) => return Ok(()),
        };
        let field = |name| info.get::<String>(name);
        let (Some(run_id), Some(role)) = (field("run_id"), field("role")) else { return Ok(()) };
        // the second name is Valkey's
        let mode = field("redis_mode").or_else(|| field("server_mode"));
        if mode.is_some_and(|mode| mode == "cluster") && !is_node {
            let kind = ErrorKind::InvalidClientConfig;
            let what =
                "this Redis is a node of a Redis Cluster: write redis-cluster:// for all of it";
            return Err((kind, what).into());
        }
        let is_replica = role == "slave";
        let last = self.server.lock().replace((run_id.clone(), is_replica));
        if let Some((before, _)) = last.as_ref().filter(|(before, _)| *before != run_id) {
            tracing::warn!(
                before,
                now = run_id,
                "another Redis process answers: after a restart or a failover"
            );
        }
        if last.is_some_and(|(_, was_replica)| was_replica) != is_replica {
            let role = if is_replica { "replica" } else { "primary" };
            tracing::warn!(run_id, role, "the role of Redis has changed, or is wrong");
        }
        if is_replica {
            let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
            return Err((kind, "this Redis is a replica, which takes no orders").into());
        }
        Ok(())
    }
}
