//! Mutual TLS between peers, in a build with the feature `tls`.

use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::sale::BoxError;

/// The stream of bytes under a connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The certificates that instances show each other. Each new connection reads the files, so that they can change while the
/// program runs.
#[derive(Clone, Debug)]
pub struct PeerTls {
    /// The certificate of this instance, at its own door and at those of its peers.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The certificate of the authority that signs the certificates of all instances, and no others.
    pub ca: PathBuf,
}

#[cfg(feature = "tls")]
mod rustls_backed {
    use std::path::Path;
    use std::sync::Arc;

    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::{BoxError, Io, PeerTls, TcpStream};

    impl PeerTls {
        /// Checks that the files can be used.
        ///
        /// # Errors
        /// Which file cannot be used, and why.
        pub fn check(&self) -> Result<(), BoxError> {
            self.server()?;
            self.client().map(drop)
        }

        /// Lets a peer in.
        pub(in super::super) async fn accept(
            &self,
            stream: TcpStream,
        ) -> Result<Box<dyn Io>, BoxError> {
            Ok(Box::new(TlsAcceptor::from(Arc::new(self.server()?)).accept(stream).await?))
        }

        /// Connects to the door at this address, and waits until the door has let this instance in. With TLS 1.3 the client's
        /// handshake ends before the door has seen its certificate, so the client waits for the door's first bytes.
        pub(in super::super) async fn connect(
            &self,
            address: &str,
            stream: TcpStream,
        ) -> Result<Box<dyn Io>, BoxError> {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let host = host.trim_matches(['[', ']']).to_owned().try_into()?;
            let connector = TlsConnector::from(Arc::new(self.client()?));
            let mut stream = BufReader::new(connector.connect(host, stream).await?);
            let refused = match stream.fill_buf().await.map(<[u8]>::is_empty) {
                Ok(false) => return Ok(Box::new(stream)),
                Ok(true) => "it closed the connection".to_owned(),
                Err(error) => error.to_string(),
            };
            Err(format!("the door refuses the certificate of this instance: {refused}").into())
        }

        fn server(&self) -> Result<ServerConfig, BoxError> {
            let (roots, chain, key) = self.read()?;
            let peers = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()?
                .with_client_cert_verifier(peers.build()?)
                .with_single_cert(chain, key)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(config)
        }

        fn client(&self) -> Result<ClientConfig, BoxError> {
            let (roots, chain, key) = self.read()?;
            let mut config = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(config)
        }

        #[allow(clippy::type_complexity, reason = "three things of three files")]
        fn read(
            &self,
        ) -> Result<(RootCertStore, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), BoxError>
        {
            let unusable = |path: &Path, why: &dyn std::fmt::Display| -> BoxError {
                format!("cannot use the file {}: {why}", path.display()).into()
            };
            let certificates = |path: &Path| {
                let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
                let all: Vec<_> = all.map_err(|error| unusable(path, &error))?;
                let is_empty = all.is_empty().then_some("it has no certificate in PEM");
                is_empty.map_or(Ok(all), |why| Err(unusable(path, &why)))
            };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&self.ca)? {
                roots.add(certificate).map_err(|error| unusable(&self.ca, &error))?;
            }
            let key = PrivateKeyDer::from_pem_file(&self.key);
            Ok((
                roots,
                certificates(&self.cert)?,
                key.map_err(|error| unusable(&self.key, &error))?,
            ))
        }
    }

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(ring::default_provider())
    }
}

#[cfg(not(feature = "tls"))]
const WITHOUT: &str = "this program was built without TLS";

#[cfg(not(feature = "tls"))]
#[expect(clippy::unused_async, reason = "with TLS, these calls wait")]
impl PeerTls {
    /// Refuses: this build has no TLS.
    ///
    /// # Errors
    /// This build has no TLS.
    pub fn check(&self) -> Result<(), BoxError> {
        Err(WITHOUT.into())
    }

    pub(super) async fn accept(&self, _: TcpStream) -> Result<Box<dyn Io>, BoxError> {
        Err(WITHOUT.into())
    }

    pub(super) async fn connect(&self, _: &str, _: TcpStream) -> Result<Box<dyn Io>, BoxError> {
        Err(WITHOUT.into())
    }
}
