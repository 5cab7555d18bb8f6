//! Certificates for a private server: its own authority, and the certificates that it signs.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A directory with the certificate of an authority, one for the server at 127.0.0.1, one for its clients, and the keys of the
/// last two. The authority's own key is discarded, so it can sign no further certificates.
#[derive(Clone, Debug)]
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes the certificates and keys in the new directory `tls` in `parent`.
    ///
    /// # Errors
    /// When a file cannot be written. Without the feature `certificates` there are none.
    pub fn create_in(parent: &Path) -> io::Result<Self> {
        let all = Self(parent.join("tls"));
        std::fs::create_dir(&all.0)?;
        #[cfg(feature = "certificates")]
        all.write().map_err(io::Error::other)?;
        Ok(all)
    }

    #[cfg(feature = "certificates")]
    fn write(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        use rcgen::{
            BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, IsCa, KeyPair,
        };

        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        write_secret(&self.ca(), &authority.pem())?;
        for (certificate, key) in [self.server(), self.client()] {
            let mut params = CertificateParams::new(["127.0.0.1".to_owned()])?;
            // without a name: etcd takes a client's name for a user's
            params.distinguished_name = DistinguishedName::new();
            let pair = KeyPair::generate()?;
            write_secret(&certificate, &params.signed_by(&pair, &authority)?.pem())?;
            write_secret(&key, &pair.serialize_pem())?;
        }
        Ok(())
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    pub(crate) fn server(&self) -> (PathBuf, PathBuf) {
        self.pair("server")
    }

    /// A client's certificate and key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        self.pair("client")
    }

    fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.0.join(format!("{name}.pem")), self.0.join(format!("{name}-key.pem")))
    }

    /// The flags by which an instance gets the certificates, as a client of the server `etcd` or `redis`.
    pub(crate) fn flags(&self, server: &str) -> impl Iterator<Item = String> + use<> {
        let (certificate, key) = self.client();
        let flags = [("ca", self.ca()), ("cert", certificate), ("key", key)];
        let flags = flags.map(|(flag, path)| [format!("--{server}-{flag}"), text(&path)]);
        flags.into_iter().flatten()
    }
}

impl std::fmt::Display for Certificates {
    /// The flags by which `etcdctl` and `redis-cli` get the certificates.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ca, (certificate, key)) = (self.ca(), self.client());
        let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
        write!(f, "--cacert {ca} --cert {certificate} --key {key}")
    }
}

/// The path as an argument. Paths of this crate contain no characters that need care.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Writes a file that only this user may read. A reader sees either the whole new content or the old one.
pub(crate) fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut file = NamedTempFile::new_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

pub(crate) fn password() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
