//! Makes a sale from the configuration.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use etcd_client::{Certificate, Identity, TlsOptions};
use etcd_client::{Client, ConnectOptions, StatusResponse};
use fenced_lock::{Backend, EtcdBackend, EtcdOptions, SessionKeeper, SessionOptions, Token};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::config::Config;
use crate::error_chain::ErrorChain;
use crate::inventory::Inventory;
use crate::sale::{BoxError, Sale, SaleOptions};

/// How long the start waits for the lock service, so that it can report a permanent error.
const FIRST_SESSION_TIMEOUT: Duration = Duration::from_secs(2);

/// The sale of `config`, for an instance that listens on `port`. The instance is not ready while the store or the lock service is
/// silent.
///
/// # Errors
/// A permanent error: an invalid address, a wrong password.
pub(super) async fn sale(config: &Config, port: u16) -> Result<Sale, BoxError> {
    let etcd = etcd(config)?;
    let options = SaleOptions { etcd: Some(Arc::clone(&etcd)), ..config.sale_options(port) };
    let inventory = inventory(config).await?;
    let place = config.servers.etcd_place();
    let sessions = lock_sessions(config, &options.instance, etcd, &place).await?;
    tokio::spawn(warn_of_members(config.servers.etcd_options()?));
    Ok(Sale::guarded(inventory, sessions, options))
}

/// The stock of `config`.
///
/// # Errors
/// A permanent error.
pub async fn inventory(config: &Config) -> Result<Inventory, BoxError> {
    let place = config.servers.redis_place();
    let refused = |error| refused(&format!("Redis at {place}"), &error);
    let inventory = config.servers.inventory().map_err(refused)?;
    match inventory.ping().await {
        Ok(()) => {}
        Err(error) if error.is_wrong_server() => return Err(refused(error)),
        Err(error) => tracing::warn!(
            error = &error as &dyn Error,
            "Redis at {place} does not answer yet: not ready until it does (its address begins with rediss:// if it \
             expects TLS)"
        ),
    }
    tokio::spawn(warn_of_weak_settings(inventory.clone()));
    Ok(inventory)
}

/// The lock service of `config`.
///
/// # Errors
/// A permanent error.
pub fn etcd(config: &Config) -> Result<Arc<EtcdBackend>, BoxError> {
    let refused = |error| refused(&config.servers.etcd_place(), &error);
    EtcdBackend::new(config.servers.etcd_options()?).map(Arc::new).map_err(refused)
}

/// The lock sessions of `config` in this lock service, for the instance of this name. `place` names the service in messages.
///
/// # Errors
/// A permanent error.
pub async fn lock_sessions(
    config: &Config,
    instance: &str,
    backend: Arc<dyn Backend<Token = Token>>,
    place: &str,
) -> Result<SessionKeeper, BoxError> {
    let session_options = SessionOptions::new(config.lock_ttl).label(instance);
    let sessions = SessionKeeper::start(backend, session_options);
    if config.wait_timeout < config.lock_ttl {
        let (wait, ttl) = (config.wait_timeout, config.lock_ttl);
        tracing::warn!(
            "--wait-timeout ({wait:?}) is shorter than --lock-ttl ({ttl:?}): while the lease of a dead instance ends, \
             orders are refused"
        );
    }
    match timeout(FIRST_SESSION_TIMEOUT, sessions.session()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(refused(place, &error)),
        Err(_) => tracing::warn!(
            "{place} does not answer yet: not ready until it does (its address begins with https:// if it expects TLS)"
        ),
    }
    Ok(sessions)
}

/// Checks the members of etcd once one of them answers.
async fn warn_of_members(options: EtcdOptions) {
    loop {
        let asked =
            join_all(options.endpoints.iter().map(|member| state_of(member, &options))).await;
        if asked.iter().all(Result::is_err) {
            sleep(Duration::from_secs(1)).await;
            continue;
        }
        for (member, state) in options.endpoints.iter().zip(asked) {
            match state {
                Ok(state) => warn_of_member(member, state.version(), state.errors()),
                Err(error) => tracing::warn!(
                    error = &*error,
                    "{member}: cannot be reached: check the version of etcd there by hand"
                ),
            }
        }
        return;
    }
}

async fn state_of(member: &str, options: &EtcdOptions) -> Result<StatusResponse, BoxError> {
    let mut client = etcd_client(options, &[member.to_owned()]).await?;
    Ok(timeout(options.request_timeout, client.status()).await??)
}

/// An etcd client for requests that the lock does not make.
///
/// # Errors
/// A permanent error; with a user, also if no member answers.
pub async fn etcd_client(options: &EtcdOptions, members: &[String]) -> Result<Client, BoxError> {
    let connect = ConnectOptions::new().with_connect_timeout(options.request_timeout);
    let mut connect = connect.with_require_leader(true);
    #[cfg(feature = "tls")]
    if members.iter().any(|member| member.starts_with("https://")) {
        let mut tls = match &options.ca {
            Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
            None => TlsOptions::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &options.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        connect = connect.with_tls(tls);
    }
    if let Some(user) = &options.user {
        let (name, password) = user.credentials().await?;
        connect = connect.with_user(name, password).with_auto_token_refresh(true);
    }
    Ok(timeout(options.request_timeout, Client::connect(members, Some(connect))).await??)
}

fn warn_of_member(member: &str, version: &str, alarms: &[String]) {
    if is_faulty(version) {
        tracing::warn!(
            "{member}: etcd {version} has a fault by which a holder may learn too late that it lost the lock: use \
             3.4.31, 3.5.13, 3.6 or later"
        );
    }
    if alarms.iter().any(|alarm| alarm.contains("NOSPACE")) {
        tracing::warn!(
            "{member}: etcd has no space (NOSPACE), and grants no lock until it is compacted and defragmented, and the \
             alarm is disarmed (`etcdctl alarm disarm`)"
        );
    }
}

/// Whether this version of etcd breaks promises of the lock.
fn is_faulty(version: &str) -> bool {
    let numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let numbers: Vec<_> = numbers.collect();
    let is_below = |least: &[u32]| numbers.as_slice() < least;
    numbers.len() > 1 && (is_below(&[3, 4, 31]) || (!is_below(&[3, 5]) && is_below(&[3, 5, 13])))
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
                let error = &error as &dyn Error;
                tracing::warn!(error, "the store's settings cannot be checked");
                return;
            }
        }
    }
}

fn refused(place: &str, error: &(dyn Error + 'static)) -> BoxError {
    format!("cannot connect to {place}: {}", ErrorChain(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_faults() {
        for version in ["2.3.8", "3.3.27", "3.4.23", "3.4.30", "3.5.0-rc.1", "3.5.12"] {
            assert!(is_faulty(version), "{version}");
        }
        for version in ["3.4.31", "3.5.13", "3.5.21", "3.6.0-rc.0", "3.6.1", "3.7.0", "4.0.0", "x"]
        {
            assert!(!is_faulty(version), "{version}");
        }
    }
}
