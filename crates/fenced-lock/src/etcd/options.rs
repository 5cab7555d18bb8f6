//! How to reach etcd.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::ConnectOptions;
#[cfg(feature = "etcd-tls")]
use etcd_client::{Certificate, Identity, TlsOptions};
use tokio::task::spawn_blocking;

use crate::BackendError;
use crate::options::{debug_without_secrets, limit};

/// Characters that no host name has: in a URL they end the host, or stand before it.
const NOT_IN_A_HOST: &[char] = &['/', '?', '#', '@', '\\', ' '];

/// Reads a password.
type ReadPassword = dyn Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync;

/// A user of etcd's.
#[derive(Clone)]
pub struct EtcdUser {
    name: String,
    password: Arc<ReadPassword>,
}

impl EtcdUser {
    /// A user with this password.
    pub fn new(name: impl Into<String>, password: impl Into<String>) -> Self {
        let password = password.into();
        Self::with_password_from(name, move || Ok(password.clone()))
    }

    /// A user whose password is read anew at each authentication, so that it can change while a
    /// session lives. `read` may block.
    pub fn with_password_from(
        name: impl Into<String>,
        read: impl Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), password: Arc::new(read) }
    }

    /// The name, and the password as it is now.
    ///
    /// # Errors
    /// [`Permanent`](crate::BackendErrorKind::Permanent) if the password cannot be read.
    pub async fn credentials(&self) -> Result<(String, String), BackendError> {
        let read = Arc::clone(&self.password);
        let password =
            spawn_blocking(move || read()).await.unwrap_or_else(|error| Err(error.into()));
        Ok((self.name.clone(), password.map_err(BackendError::permanent)?))
    }
}

debug_without_secrets!(EtcdUser);

/// How to reach etcd.
///
/// ```
/// use fenced_lock::{EtcdOptions, EtcdUser};
///
/// let mut options = EtcdOptions::new(["http://127.0.0.1:2379"]);
/// options.user = Some(EtcdUser::new("app", "secret"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// The members' client URLs, such as `http://127.0.0.1:2379`, either all or none with `https`. A URL with
    /// a user, a path or a query is refused. If there are several, a request that one does not answer goes to the next.
    pub endpoints: Vec<String>,
    /// The user, if etcd asks for one.
    pub user: Option<EtcdUser>,
    /// With `https`: the CA certificates (PEM) that etcd's certificate is checked against; the system's if `None`.
    pub ca: Option<Vec<u8>>,
    /// With `https`: the client certificate and its key (PEM), if etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The longest that one member may take to answer a request that was sent. After that the next one is asked. At least a
    /// millisecond; more than a day counts as a day.
    pub request_timeout: Duration,
}

impl EtcdOptions {
    /// These endpoints, no user and no certificates, and two seconds for a request.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            ca: None,
            identity: None,
            request_timeout: Duration::from_secs(2),
        }
    }

    /// The options in the form that is used, or why they cannot be used.
    pub(crate) fn checked(mut self) -> Result<Self, BackendError> {
        self.request_timeout = limit("a request_timeout", self.request_timeout)?;
        let scheme = if self.is_tls() { "https://" } else { "http://" };
        let is_url = |endpoint: &String| {
            let address = endpoint
                .strip_prefix(scheme)
                .and_then(|rest| rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':'));
            address.is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(NOT_IN_A_HOST) && port.parse::<u16>().is_ok()
            })
        };
        let has_certificates = self.ca.is_some() || self.identity.is_some();
        let what = if self.endpoints.is_empty() || !self.endpoints.iter().all(is_url) {
            format!(
                "an etcd endpoint is written {scheme}HOST:PORT and has no user, which has a field of its own: not {:?}",
                self.endpoints.iter().map(|endpoint| shown(endpoint)).collect::<Vec<_>>()
            )
        } else if has_certificates && !self.is_tls() {
            "etcd's certificates are for endpoints with https://".to_owned()
        } else if self.is_tls() && !cfg!(feature = "etcd-tls") {
            "this program was built without TLS, which https:// needs: turn on the feature etcd-tls"
                .to_owned()
        } else {
            return Ok(self);
        };
        Err(BackendError::permanent(what))
    }

    /// One endpoint decides for all.
    fn is_tls(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"))
    }

    pub(crate) fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(self.request_timeout)
            // These pings find a dead connection within nine seconds; etcd refuses pings that come more often than every five
            // seconds (`--grpc-keepalive-min-time`). Some leases live for less than that: a renewal without an answer replaces
            // the connection sooner.
            .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3))
            .with_keep_alive_while_idle(true)
            // a member that is cut off from its cluster then ends its streams; otherwise it would stay silent
            .with_require_leader(true);
        #[cfg(feature = "etcd-tls")]
        if self.is_tls() {
            return options.with_tls(self.tls_options());
        }
        options
    }

    #[cfg(feature = "etcd-tls")]
    fn tls_options(&self) -> TlsOptions {
        let tls = match &self.ca {
            Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
            None => TlsOptions::new().with_native_roots(),
        };
        match &self.identity {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        }
    }
}

debug_without_secrets!(EtcdOptions);

/// An endpoint for an error. Not shown if it may contain a secret, such as a password.
fn shown(endpoint: &str) -> &str {
    if endpoint.contains(['@', '?', '#']) { "(not shown)" } else { endpoint }
}
