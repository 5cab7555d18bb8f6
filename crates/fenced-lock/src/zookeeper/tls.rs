//! TLS for ZooKeeper.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zookeeper_client::TlsOptions;

use super::failure::{WORD, another_kind, ask, ask_plainly, is_of_zookeeper};
use super::{BackendError, BackendErrorKind, ZooKeeperOptions};
use crate::tls::{authorities, client_config, settle_cryptography};

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
    /// connect; [`ZooKeeperOptions::user`] gives rights to nodes.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for ZooKeeperTls {
    /// Without the certificates and the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZooKeeperTls").finish_non_exhaustive()
    }
}

/// What was read from the options.
pub(super) struct Tls {
    pub(super) client: TlsOptions,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// # Errors
    /// [`BackendErrorKind::Permanent`] if there is something wrong with a certificate, the key or a server's name.
    pub(super) fn new(options: &ZooKeeperOptions) -> Result<Option<Self>, BackendError> {
        let Some(tls) = &options.tls else { return Ok(None) };
        settle_cryptography();
        let read = || -> Result<_, Box<dyn Error>> {
            for server in options.servers.split(',') {
                name_of(server)?;
            }
            let config = client_config(authorities(&tls.ca)?, tls.identity.as_ref())?;
            let mut client = TlsOptions::new().with_pem_ca(str::from_utf8(&tls.ca)?)?;
            if let Some((certificate, key)) = &tls.identity {
                let pem = (str::from_utf8(certificate)?, str::from_utf8(key)?);
                client = client.with_pem_identity(pem.0, pem.1)?;
            }
            Ok(Some(Self { client, config: Arc::new(config) }))
        };
        read().map_err(|error| BackendError::new(BackendErrorKind::Permanent, error.to_string()))
    }

    /// Why a server never opens a session, if it is such a one.
    pub(super) async fn refusal(&self, server: &str, limit: Duration) -> Option<String> {
        match timeout(limit, self.ask(server)).await.unwrap_or_else(|late| Err(late.into())) {
            Ok(answer) if !answer.is_empty() => another_kind(server, &answer),
            // not of the network
            Err(error)
                if error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>) =>
            {
                Some(format!("{server} and we do not agree on TLS: {error}"))
            }
            _ => is_of_zookeeper(&ask_plainly(server, WORD, limit).await)
                .then(|| format!("{server} speaks no TLS")),
        }
    }

    async fn ask(&self, server: &str) -> io::Result<Vec<u8>> {
        let name = name_of(server).map_err(io::Error::other)?;
        let stream = TcpStream::connect(server).await?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        ask(connector.connect(name, stream).await?, WORD).await
    }
}

/// The name that a server's certificate must have.
fn name_of(server: &str) -> Result<ServerName<'static>, String> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|error| format!("a server is written HOST:PORT, not {server:?}: {error}"))
}
