//! How to reach ZooKeeper.

#[cfg(feature = "zookeeper-tls")]
use std::error::Error;
use std::time::Duration;

#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, CreateMode, CreateOptions};

use crate::BackendError;
use crate::options::{debug_without_secrets, limit};
#[cfg(feature = "zookeeper-tls")]
use crate::tls::{authorities, client_config, settle_cryptography};

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
    /// The servers, `HOST:PORT` each, separated by commas. A server of another kind, or one whose TLS setting differs from this
    /// one, looks like a silent server. The server's log has the reason, and so has the client library's, with the target
    /// `zookeeper_client`.
    pub servers: String,
    /// The node that contains the locks. The lock `NAME` is the lock of Curator's `InterProcessMutex` with the path `ROOT/NAME`,
    /// and for kazoo `client.Lock("ROOT/NAME", extra_lock_patterns=["-lock-"])`. The root is made if it does not exist. It must
    /// not be the node of a lock of another root, where locks would stand among claims.
    pub root: String,
    /// The user, `NAME:PASSWORD`, for ZooKeeper's scheme `digest`. With a user, only the same user can use what this
    /// library makes; without one, everybody can.
    pub user: Option<String>,
    /// The CA certificates (PEM) that the servers' certificates and names are checked against. `None` means connections without
    /// encryption.
    ///
    /// A program with the feature `zookeeper-tls` links two cryptography libraries, and must tell rustls which one to use
    /// (`CryptoProvider::install_default`) before it uses rustls elsewhere. If it has not done so when a backend with a `ca` is
    /// made, the backend chooses ring.
    pub ca: Option<Vec<u8>>,
    /// With a [`ca`](Self::ca): the client certificate and its key (PEM), which ZooKeeper asks for by default. A certificate
    /// gives the right to connect; the [`user`](Self::user) gives rights to nodes.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The longest that a request may take. After a longer silence, the client turns to the next server.
    pub request_timeout: Duration,
}

impl ZooKeeperOptions {
    /// Options for these servers: the root `/locks`, two seconds for a request; neither user nor certificates.
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            root: "/locks".to_owned(),
            user: None,
            ca: None,
            identity: None,
            request_timeout: Duration::from_secs(2),
        }
    }

    /// The options, with their limits applied.
    pub(super) fn checked(mut self) -> Result<Self, BackendError> {
        self.request_timeout = limit("a request_timeout", self.request_timeout)?;
        let is_server = |server: &str| {
            let host = server.split('/').next().unwrap_or_default();
            !host.is_empty() && !host.contains(['@', '?', '#', ' ']) && !server.contains("://")
        };
        if !self.servers.split(',').all(is_server) {
            let what = "a ZooKeeper server is written HOST:PORT, without a scheme, and without a user, which has a field of its own";
            return Err(BackendError::permanent(what));
        }
        Ok(self)
    }

    /// How nodes are made: with a user, only this user may change them.
    pub(super) fn node(&self, mode: CreateMode) -> CreateOptions<'static> {
        let acls = if self.user.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        mode.with_acls(acls)
    }

    /// The certificates and the key for the client library.
    #[cfg(feature = "zookeeper-tls")]
    pub(super) fn tls(&self) -> Result<Option<TlsOptions>, BackendError> {
        let Some(ca) = &self.ca else { return Ok(None) };
        settle_cryptography();
        let read = || -> Result<_, Box<dyn Error>> {
            // the client library would report a wrong key only when it connects
            client_config(authorities(ca)?, self.identity.as_ref())?;
            let options = TlsOptions::new().with_pem_ca(str::from_utf8(ca)?)?;
            let Some((certificate, key)) = &self.identity else { return Ok(options) };
            Ok(options.with_pem_identity(str::from_utf8(certificate)?, str::from_utf8(key)?)?)
        };
        read().map(Some).map_err(|error| BackendError::permanent(error.to_string()))
    }
}

debug_without_secrets!(ZooKeeperOptions);
