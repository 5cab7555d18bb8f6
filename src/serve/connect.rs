//! From the configuration to a sale.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{
    Backend, BackendErrorKind, EtcdBackend, LockError, Session, SessionKeeper, SessionOptions,
    Token,
};
use tokio::time::{sleep, timeout};

use super::{Distrust, ServeError};
use crate::config::{Config, Servers};
use crate::error_chain::ErrorChain;
use crate::inventory::Inventory;
use crate::sale::Sale;

/// How long the start waits for the lock service, to report a permanent error at once.
const FIRST_SESSION_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the start checks why there is no session yet.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The sale of `config`, for an instance that listens on `port`. While the store or the lock service does not
/// answer, the instance is not ready.
///
/// # Errors
/// A permanent error: an invalid address, a wrong password.
pub(super) async fn sale(config: &Config, port: u16) -> Result<Sale, ServeError> {
    let options = config.sale_options(port);
    let inventory = inventory(config).await?;
    let sessions = lock_sessions(config, &options.instance, etcd(config)?).await?;
    Ok(Sale::guarded(inventory, sessions, options))
}

/// The stock of `config`.
///
/// # Errors
/// A permanent error.
pub async fn inventory(config: &Config) -> Result<Inventory, ServeError> {
    let inventory = store(&config.servers).await?;
    tokio::spawn(warn_of_weak_settings(inventory.clone()));
    Ok(inventory)
}

async fn store(servers: &Servers) -> Result<Inventory, ServeError> {
    let inventory = servers.inventory().map_err(refused)?;
    match inventory.ping().await {
        Ok(()) => {}
        Err(error) if error.is_wrong_server() => return Err(refused(error)),
        Err(error) if let Some(what) = distrust(&error) => {
            return Err(ServeError::Distrust { server: "redis", what, source: error.into() });
        }
        Err(error) => {
            let cause: &dyn Error = &error;
            let address = servers.redis_address().read();
            let is_plain = address.is_ok_and(|address| address.expose().starts_with("redis://"));
            let hint =
                if is_plain && hung_up(cause) { "; it may speak TLS: try rediss://" } else { "" };
            tracing::warn!(
                error = cause,
                "the store does not answer yet: not ready until it does{hint}"
            );
        }
    }
    Ok(inventory)
}

/// The lock service of `config`.
///
/// # Errors
/// A permanent error.
pub fn etcd(config: &Config) -> Result<Arc<EtcdBackend>, ServeError> {
    EtcdBackend::new(config.servers.etcd_options()?).map(Arc::new).map_err(refused)
}

/// The sessions of the lock of `config` on this lock service, for the instance of this name.
///
/// # Errors
/// A permanent error.
pub async fn lock_sessions(
    config: &Config,
    instance: &str,
    backend: Arc<dyn Backend<Token = Token>>,
) -> Result<SessionKeeper, ServeError> {
    let session_options =
        SessionOptions { label: instance.into(), ..SessionOptions::new(config.lock_ttl) };
    let sessions = SessionKeeper::start(backend, session_options);
    let opened = async {
        tokio::select! {
            opened = sessions.session() => opened.map_err(refused),
            (what, error) = until_distrust(&sessions) => {
                Err(ServeError::Distrust { server: "etcd", what, source: error.into() })
            }
        }
    };
    match timeout(FIRST_SESSION_TIMEOUT, opened).await {
        Ok(Ok(session)) => {
            let ttl = session.lease().ttl;
            if ttl != config.lock_ttl {
                let (ttl, asked) = (ttl.as_secs(), config.lock_ttl);
                tracing::warn!("etcd gave the lock a TTL of {ttl}s, not {asked:?}");
            }
            warn_of_refusal(&session, &config.servers.lock_name).await;
        }
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            let is_plain = config.servers.etcd.iter().any(|address| address.starts_with("http://"));
            let has_hung_up = sessions.latest_error().is_some_and(|error| hung_up(&error));
            let hint =
                if is_plain && has_hung_up { "; it may speak TLS: try https://" } else { "" };
            tracing::warn!("etcd does not answer yet: not ready until it does{hint}");
        }
    }
    Ok(sessions)
}

/// Warns if etcd refuses the lock.
async fn warn_of_refusal(session: &Session, lock: &str) {
    let Ok(mutex) = session.mutex(lock) else { return };
    if let Ok(Err(LockError::Backend(error))) = timeout(FIRST_SESSION_TIMEOUT, mutex.probe()).await
        && error.kind == BackendErrorKind::Permanent
    {
        let cause: &dyn Error = &error;
        tracing::warn!(
            lock,
            error = cause,
            "etcd refuses this lock: its user needs a role that may read and write the lock's keys"
        );
    }
}

/// Checks the settings of the store once it answers.
async fn warn_of_weak_settings(inventory: Inventory) {
    loop {
        match inventory.durability().await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                return;
            }
            Err(error) if error.is_retryable() => sleep(Duration::from_secs(1)).await,
            Err(error) => {
                let cause: &dyn Error = &error;
                tracing::warn!(error = cause, "the store's settings cannot be checked");
                return;
            }
        }
    }
}

/// The problem with a certificate, if the error has one. Both clients keep the errors of TLS as text alone.
fn distrust(error: &(dyn Error + 'static)) -> Option<Distrust> {
    let text = ErrorChain(error).to_string();
    if text.contains("received fatal alert") {
        return Some(Distrust::OfUs);
    }
    let (_, what) = text.split_once("invalid peer certificate: ")?;
    Some(match what {
        _ if what.starts_with("certificate expired") => Distrust::Outdated,
        _ if what.starts_with("certificate not valid yet") => Distrust::Outdated,
        _ if what.starts_with("certificate not valid for name") => Distrust::OtherName,
        _ => Distrust::Unknown,
    })
}

/// Whether the server closed the connection without an answer, as it does when it expects TLS.
fn hung_up(error: &(dyn Error + 'static)) -> bool {
    let text = ErrorChain(error).to_string();
    ["broken pipe", "Broken pipe", "reset by peer", "unexpected end of file"]
        .iter()
        .any(|how| text.contains(how))
}

/// Waits until an attempt to open a session has failed because of a certificate. The answer of a server that
/// refuses ours may be lost with its connection: then the next attempt shows it.
async fn until_distrust(sessions: &SessionKeeper) -> (Distrust, LockError) {
    loop {
        if let Some(error) = sessions.latest_error()
            && let Some(what) = distrust(&error)
        {
            return (what, error);
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn refused(error: impl Error + Send + Sync + 'static) -> ServeError {
    ServeError::Connect { source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tls_says_of_a_certificate_is_told_apart() {
        for (text, what) in [
            ("certificate expired: since 1", Some(Distrust::Outdated)),
            ("certificate not valid yet: until 1", Some(Distrust::Outdated)),
            ("certificate not valid for name \"a\"", Some(Distrust::OtherName)),
            ("UnknownIssuer", Some(Distrust::Unknown)),
        ] {
            let error = std::io::Error::other(format!("invalid peer certificate: {text}"));
            assert_eq!(distrust(&error), what, "{text}");
        }
        assert_eq!(distrust(&std::io::Error::other("connection refused")), None);
    }
}
