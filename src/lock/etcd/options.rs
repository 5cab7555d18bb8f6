//! How to reach etcd.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::ConnectOptions;
use tokio::task::spawn_blocking;

use crate::lock::{BackendError, BackendErrorKind};

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
    pub(super) async fn credentials(&self) -> Result<(String, String), BackendError> {
        let read = Arc::clone(&self.password);
        let password =
            spawn_blocking(move || read()).await.unwrap_or_else(|error| Err(error.into()));
        let password =
            password.map_err(|error| BackendError::new(BackendErrorKind::Permanent, error))?;
        Ok((self.name.clone(), password))
    }
}

impl fmt::Debug for EtcdUser {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How to reach etcd.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// The members' client URLs, such as `http://127.0.0.1:2379`. With several, a request that one does
    /// not answer goes to the next.
    pub endpoints: Vec<String>,
    /// The user, if etcd asks for one.
    pub user: Option<EtcdUser>,
    /// The longest that one member may take to answer. After that the next one is asked; and what
    /// nobody answered is asked again where that is of use.
    pub request_timeout: Duration,
}

impl EtcdOptions {
    /// These endpoints, no user, and two seconds for a request.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            request_timeout: Duration::from_secs(2),
        }
    }

    pub(crate) fn check(&self) -> Result<(), BackendError> {
        let is_url = |endpoint: &String| {
            let address = endpoint
                .strip_prefix("http://")
                .and_then(|rest| rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':'));
            address.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !self.endpoints.is_empty() && self.endpoints.iter().all(is_url) {
            return Ok(());
        }
        let what =
            format!("an etcd endpoint is written http://HOST:PORT, not {:?}", self.endpoints);
        Err(BackendError::new(BackendErrorKind::Permanent, what))
    }

    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .with_connect_timeout(self.request_timeout)
            // a connection that died without a word is noticed; etcd refuses pings that come more
            // often than every five seconds (`--grpc-keepalive-min-time`)
            .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3))
            .with_keep_alive_while_idle(true)
            // a member that is cut off from its cluster ends its streams instead of staying silent
            .with_require_leader(true)
    }
}
