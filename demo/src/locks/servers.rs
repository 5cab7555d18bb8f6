//! Private servers of a lock.

use std::fmt::Debug;
use std::io;

use futures_util::future::LocalBoxFuture;
use testkit::{Child, OwnedDir, ServerError};

use super::LockMode;
#[cfg(feature = "other-locks")]
use super::Server;
use crate::error::DemoError;

/// A private server of a lock.
pub trait LockServer: Debug + Send + Sync {
    /// In messages.
    fn name(&self) -> String;

    /// Where it is, as for `--lock-at`.
    fn address(&self) -> String;

    fn child(&mut self) -> &mut Child;

    /// Kills all of its processes; the data stay.
    fn kill(&mut self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Starts it again, and waits until it answers. A `launcher` is a program that becomes the server, with its arguments.
    fn restart<'a>(
        &'a mut self,
        launcher: &'a [String],
    ) -> LocalBoxFuture<'a, Result<(), ServerError>>;

    /// Whether it is the leader of several.
    fn is_leader(&self) -> LocalBoxFuture<'_, bool>;

    /// Makes it count requests, if it does not by itself. Ends its connections.
    fn count_requests(&mut self) -> LocalBoxFuture<'_, Result<(), ServerError>>;

    /// How many requests it has got so far by its own counters; `None` without such a counter. They include this
    /// question, with the same number each time. At a Redis these commands count, which has scripts that call others.
    fn requests<'a>(&'a self, redis_commands: &'a [&'a str]) -> LocalBoxFuture<'a, Option<u64>>;

    /// Stops it, and removes its files.
    fn remove(self: Box<Self>) -> LocalBoxFuture<'static, io::Result<()>>;
}

/// The private servers of a lock.
#[derive(Debug, Default)]
pub struct LockServers {
    pub members: Vec<Box<dyn LockServer>>,
    /// Of a lock without servers.
    pub(super) directory: Option<String>,
}

impl LockServers {
    /// Those that run already.
    pub fn of<S: LockServer + 'static>(servers: impl IntoIterator<Item = S>) -> Self {
        let members = servers.into_iter().map(|server| Box::new(server) as _).collect();
        Self { members, directory: None }
    }

    /// Starts what a sale under this lock needs besides its etcd, in a directory in `parent`. The flags of the demo
    /// refuse what is not built in.
    #[cfg_attr(not(feature = "other-locks"), allow(unused_variables, clippy::unused_async))]
    pub async fn start(lock: LockMode, parent: &OwnedDir) -> Result<Self, DemoError> {
        match lock.server() {
            #[cfg(feature = "other-locks")]
            server if server != Server::Etcd => Self::start_members(server, 1, parent).await,
            _ => Ok(Self::default()),
        }
    }

    /// Where they are, as for `--lock-at`.
    pub fn addresses(&self) -> Vec<String> {
        let servers = self.members.iter().map(|server| server.address());
        servers.chain(self.directory.clone()).collect()
    }

    /// Their processes, with their names.
    pub fn children(&mut self) -> Vec<(String, &mut Child)> {
        self.members.iter_mut().map(|server| (server.name(), server.child())).collect()
    }

    /// Waits until their processes and files are gone.
    pub async fn remove(self) -> io::Result<()> {
        for server in self.members {
            server.remove().await?;
        }
        Ok(())
    }
}
