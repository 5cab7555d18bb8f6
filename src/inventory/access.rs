//! The address of Redis and the certificates for it.

use std::path::{Path, PathBuf};

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisResult, TlsCertificates,
};

use super::InventoryError;
use crate::secret::{Secret, SecretSource};

/// The address of Redis and the certificates for it. Files are read at each connection, so that a password or
/// a certificate can change while the service runs.
#[derive(Clone, Debug)]
pub struct RedisAccess {
    /// `redis://[[user]:password@]host[:port][/database]`, or with `rediss`, or `unix:///path`.
    pub address: SecretSource,
    /// With `rediss`: the PEM file with the CA certificate of Redis. `None`: the system's CAs.
    pub ca: Option<PathBuf>,
    /// With `rediss`: the PEM files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl From<&str> for RedisAccess {
    fn from(url: &str) -> Self {
        Self { address: SecretSource::Text(Secret::new(url)), ca: None, identity: None }
    }
}

impl From<&String> for RedisAccess {
    fn from(url: &String) -> Self {
        url.as_str().into()
    }
}

impl RedisAccess {
    /// A client for the next connection, with the present content of the files.
    pub(super) fn client(&self) -> Result<Client, InventoryError> {
        let invalid = |source| InventoryError::InvalidUrl { source };
        let address = self.address.read().map_err(|error| invalid(error.into()))?;
        let info = address.expose().into_connection_info().map_err(invalid)?;
        // with RESP3 the client reports a broken connection at once, not only at its next use
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // a small command must not wait for the acknowledgement of the one before
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
        let unusable = |source| InventoryError::InvalidCertificates { source };
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // where a second cryptography library is linked, rustls chooses none by itself; an error: it was chosen
            let _ = rustls::crypto::ring::default_provider().install_default();
            Client::build_with_tls(info, self.certificates().map_err(unusable)?).map_err(unusable)
        } else if self.ca.is_some() || self.identity.is_some() {
            let what = "certificates require an address that begins with rediss://";
            Err(unusable((ErrorKind::InvalidClientConfig, what).into()))
        } else {
            Client::open(info).map_err(invalid)
        }
    }

    fn certificates(&self) -> RedisResult<TlsCertificates> {
        let read = |path: &Path| std::fs::read(path);
        let identity = self.identity.as_ref().map(|(certificate, key)| -> RedisResult<_> {
            Ok(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        });
        let root_cert = self.ca.as_deref().map(read).transpose()?;
        Ok(TlsCertificates { client_tls: identity.transpose()?, root_cert })
    }
}
