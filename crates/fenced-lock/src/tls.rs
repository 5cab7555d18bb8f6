//! TLS for the clients of several services.

use std::error::Error;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Makes rustls use ring, unless the program has chosen already. If any crate of the program links a second cryptography library,
/// rustls does not choose by itself, and clients that leave the choice to it panic.
pub(crate) fn settle_cryptography() {
    // an error means that the program has chosen
    let _ = ring::default_provider().install_default();
}

/// The authorities with these certificates, in PEM.
pub(crate) fn authorities(ca: &[u8]) -> Result<RootCertStore, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        roots.add(certificate.map_err(|_| "the CA certificates cannot be read")?)?;
    }
    Ok(roots)
}

/// A configuration that trusts these authorities and presents this certificate and its key, in PEM. Its errors repeat nothing of
/// these texts: the reader's own error repeats a line, and a key that lost its line breaks is a single line.
pub(crate) fn client_config(
    roots: RootCertStore,
    identity: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<ClientConfig, Box<dyn Error>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some((certificates, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>();
    let chain = chain.map_err(|_| "the client certificate cannot be read")?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "the client's key cannot be read")?;
    Ok(config.with_client_auth_cert(chain, key)?)
}
