//! TLS for ZooKeeper.

use std::error::Error;

use zookeeper_client::TlsOptions;

use crate::tls::{authorities, client_config, settle_cryptography};
use crate::{BackendError, BackendErrorKind};

/// How connections to ZooKeeper are encrypted. The servers' certificates and names are checked.
///
/// A program with the feature `zookeeper-tls` links two cryptography libraries, and has to tell rustls which one to use
/// (`CryptoProvider::install_default`) before it uses rustls elsewhere. If it has not done so by the time when a backend
/// is made with this, the backend chooses ring.
#[derive(Clone)]
pub struct ZooKeeperTls {
    /// The CA certificates (PEM) that the servers' certificates are checked against.
    pub ca: Vec<u8>,
    /// The client certificate and its key (PEM), which ZooKeeper asks for by default. A certificate gives the right to
    /// connect; [`ZooKeeperOptions::user`](super::ZooKeeperOptions::user) gives rights to nodes.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for ZooKeeperTls {
    /// Without the certificates and the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZooKeeperTls").finish_non_exhaustive()
    }
}

impl ZooKeeperTls {
    /// What the client makes of it.
    ///
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if there is something wrong with a certificate or the key.
    pub(super) fn read(&self) -> Result<TlsOptions, BackendError> {
        settle_cryptography();
        let read = || -> Result<_, Box<dyn Error>> {
            // the client itself finds out as late as it connects
            client_config(authorities(&self.ca)?, self.identity.as_ref())?;
            let options = TlsOptions::new().with_pem_ca(str::from_utf8(&self.ca)?)?;
            let Some((certificate, key)) = &self.identity else { return Ok(options) };
            let (certificate, key) = (str::from_utf8(certificate)?, str::from_utf8(key)?);
            Ok(options.with_pem_identity(certificate, key)?)
        };
        read().map_err(|error| BackendError::new(BackendErrorKind::Permanent, error.to_string()))
    }
}
