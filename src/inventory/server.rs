//! The Redis process at the other end.

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::sentinel::Watched;

/// A Redis process, by its own account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    /// Changes at each start.
    run_id: String,
    is_replica: bool,
    is_cluster: bool,
}

/// The server that answered last. Another process or role is logged. Whether it has all acknowledged data is
/// checked by each call.
#[derive(Debug, Default)]
pub(super) struct LastServer {
    server: Mutex<Option<Server>>,
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
    ) -> Result<(), RedisError> {
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let answers = connection.send_packed_commands(&questions, 0, 2).await?;
        let Some(server) = parse(answers) else { return Ok(()) };
        if server.is_cluster && !is_node {
            let kind = ErrorKind::InvalidClientConfig;
            let what =
                "this Redis is a node of a Redis Cluster: write redis-cluster:// for all of it";
            return Err((kind, what).into());
        }
        let mut last = self.server.lock();
        if let Some(last) = last.as_ref().filter(|last| last.run_id != server.run_id) {
            tracing::warn!(
                before = last.run_id,
                now = server.run_id,
                "another Redis process answers: after a restart or a failover"
            );
        }
        if last.as_ref().is_some_and(|last| last.is_replica) != server.is_replica {
            let run_id = &server.run_id;
            let role = if server.is_replica { "replica" } else { "primary" };
            tracing::warn!(run_id, role, "the role of Redis has changed, or is wrong");
        }
        if last.insert(server).is_replica {
            let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
            return Err((kind, "this Redis is a replica, which takes no orders").into());
        }
        Ok(())
    }
}

fn parse(answers: Vec<Value>) -> Option<Server> {
    let mut texts =
        answers.into_iter().map(|answer| redis::from_redis_value::<String>(answer).ok());
    let (server, replication) = (texts.next()??, texts.next()??);
    let field = |text: &str, name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
    };
    let run_id = field(&server, "run_id")?;
    let is_replica = field(&replication, "role")? == "slave";
    // the second name is Valkey's
    let mode = field(&server, "redis_mode").or_else(|| field(&server, "server_mode"));
    let is_cluster = mode.is_some_and(|mode| mode == "cluster");
    Some(Server { run_id, is_replica, is_cluster })
}
