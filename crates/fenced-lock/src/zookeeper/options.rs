//! How to reach ZooKeeper.

use std::fmt;
use std::time::Duration;

use zookeeper_client::{Acls, CreateMode, CreateOptions};

/// How to reach ZooKeeper.
///
/// ```
/// use fenced_lock::ZooKeeperOptions;
///
/// let mut options = ZooKeeperOptions::new("10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181");
/// options.user = Some("app:secret".to_owned());
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ZooKeeperOptions {
    /// The servers, `HOST:PORT` each, separated by commas. One that is no ZooKeeper, or does not agree with us on TLS,
    /// looks like one that does not answer: why is in the server's log, and in the client's, with the target
    /// `zookeeper_client`.
    pub servers: String,
    /// The node in which the locks are. The lock `NAME` is that of Curator's `InterProcessMutex` with the path
    /// `ROOT/NAME`, and for kazoo `client.Lock("ROOT/NAME", extra_lock_patterns=["-lock-"])`. It is made if it does not
    /// exist. No root may be the node of another root's lock, since locks would stand among claims.
    pub root: String,
    /// The user, `NAME:PASSWORD`, for ZooKeeper's scheme `digest`. With a user, only the same user can use what this
    /// library makes; without one, everybody can.
    pub user: Option<String>,
    /// How the connections are encrypted; not at all if `None`. With the feature `zookeeper-tls`.
    #[cfg(feature = "zookeeper-tls")]
    pub tls: Option<super::ZooKeeperTls>,
    /// The longest that a request may take. A server that is silent for so long is left for the next one.
    pub request_timeout: Duration,
}

impl ZooKeeperOptions {
    /// These servers, the root `/locks`, no user, no TLS, and two seconds for a request.
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            root: "/locks".to_owned(),
            user: None,
            #[cfg(feature = "zookeeper-tls")]
            tls: None,
            request_timeout: Duration::from_secs(2),
        }
    }
}

impl ZooKeeperOptions {
    /// How nodes are made: what nobody else may use nobody else can break.
    pub(super) fn node(&self, mode: CreateMode) -> CreateOptions<'static> {
        let acls = if self.user.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        mode.with_acls(acls)
    }
}

impl fmt::Debug for ZooKeeperOptions {
    /// Without the user's password and the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperOptions")
            .field("servers", &self.servers)
            .field("root", &self.root)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}
