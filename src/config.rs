//! The flags of `serve` and their environment variables. [`Servers`] has those that other commands share.
//!
//! The variable of `--lock-ttl` is `FLASH_SALE_LOCK_TTL`. A flag overrides its variable.

mod servers;
mod variables;

pub use servers::Servers;
#[cfg(feature = "otel")]
pub(crate) use servers::is_plain_url;
pub use variables::unknown_variables;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use clap::Args;

use crate::http::MAX_HEADER_BYTES;
use crate::http::rate_limit::Rate;
use crate::inventory::Inventory;
use crate::peers::{Credentials, HttpLink, PeerTls, Peers};
use crate::sale::SaleOptions;
use crate::secret::{Secret, SecretSource};

/// The flags of `serve`: one instance of the service.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Address and port to listen on; with --admin-listen, for buyers only
    #[arg(long, env = "FLASH_SALE_LISTEN", default_value = "127.0.0.1:8080", value_parser = address)]
    pub listen: SocketAddr,

    /// Address and port for operators: start, ledger, lock, page, metrics, probes [default: the same]
    #[arg(long, env = "FLASH_SALE_ADMIN_LISTEN", value_name = "ADDRESS", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,

    /// Name of this instance, recorded with each order [default: the port that it listens on]
    #[arg(long, env = "FLASH_SALE_INSTANCE", value_parser = instance_name)]
    pub instance: Option<String>,

    /// Where the servers are
    #[command(flatten)]
    pub servers: Servers,

    /// How long the lock outlives an instance that died
    #[arg(long, env = "FLASH_SALE_LOCK_TTL", value_name = "TIME", default_value = "8s", value_parser = duration("2s", "10m"))]
    pub lock_ttl: Duration,

    /// Most orders in a batch
    #[arg(long, env = "FLASH_SALE_BATCH_SIZE", value_name = "N", default_value = "500", value_parser = number::<usize>(1..=Inventory::MAX_BATCH))]
    pub batch_size: usize,

    /// Longest time to keep the lock while another instance waits for it
    #[arg(long, env = "FLASH_SALE_TENURE", value_name = "TIME", default_value = "50ms", value_parser = duration("0ms", "1m"))]
    pub tenure: Duration,

    /// Worker threads [default: one for each core]
    #[arg(long, env = "FLASH_SALE_WORKERS", value_name = "N", value_parser = number::<usize>(1..=1024))]
    pub workers: Option<usize>,

    /// Most orders of one item that may wait at this instance
    #[arg(long, env = "FLASH_SALE_QUEUE_LENGTH", value_name = "N", default_value = "10000", value_parser = number::<usize>(1..=1_000_000))]
    pub queue_length: usize,

    /// Longest wait of an order for the lock, and then for the store
    #[arg(long, env = "FLASH_SALE_WAIT_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration("1ms", "10m"))]
    pub wait_timeout: Duration,

    /// Admin token for `PUT /stock`; other users of this machine can see it, so prefer the file
    #[arg(long, env = "FLASH_SALE_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true, conflicts_with = "admin_token_file", value_parser = admin_token)]
    pub admin_token: Option<Secret>,

    /// File with the admin token for `PUT /stock`, read at each start of a sale
    #[arg(long, env = "FLASH_SALE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Most watchers at GET /events
    #[arg(long, env = "FLASH_SALE_MAX_WATCHERS", value_name = "N", default_value = "64", value_parser = number::<usize>(0..=10_000))]
    pub max_watchers: usize,

    /// Header in which the gateway names the buyer, such as X-User-Id; `?user=` is refused then
    #[arg(long, env = "FLASH_SALE_USER_HEADER", value_name = "NAME")]
    pub user_header: Option<HeaderName>,

    /// Time to go on after a stop signal, not ready, until load balancers have noticed
    #[arg(long, env = "FLASH_SALE_DRAIN_DELAY", value_name = "TIME", default_value = "0s", value_parser = duration("0s", "1h"))]
    pub drain_delay: Duration,

    /// Time for requests in flight after that
    #[arg(long, env = "FLASH_SALE_SHUTDOWN_GRACE", value_name = "TIME", default_value = "30s", value_parser = duration("0s", "1h"))]
    pub shutdown_grace: Duration,

    /// Time for a client to send the head of a request, and for a connection to stay idle
    #[arg(long, env = "FLASH_SALE_HEADER_TIMEOUT", value_name = "TIME", default_value = "10s", value_parser = duration("10ms", "1h"))]
    pub header_timeout: Duration,

    /// Most orders of one client, such as 20/s or 100/m: of a user if a header names it, else of an address [default: no
    /// limit]
    #[arg(long, env = "FLASH_SALE_RATE_LIMIT", value_name = "N/s", value_parser = rate)]
    pub rate_limit: Option<Rate>,

    /// Address and port for other instances, which send their orders here while this one holds the lock [default: none, and
    /// instances take turns]
    #[arg(long, env = "FLASH_SALE_PEER_LISTEN", value_name = "ADDRESS", value_parser = address)]
    pub peer_listen: Option<SocketAddr>,

    /// Host and port under which other instances reach that address [default: the same]
    #[arg(long, env = "FLASH_SALE_PEER_ADDRESS", value_name = "HOST:PORT", requires = "peer_listen", value_parser = peer_address)]
    pub peer_address: Option<String>,

    /// File with the token that instances show each other; required without TLS unless --peer-listen is a loopback address
    #[arg(long, env = "FLASH_SALE_PEER_TOKEN_FILE", value_name = "FILE", requires = "peer_listen")]
    pub peer_token_file: Option<PathBuf>,

    /// PEM file with the certificate of this instance, for TLS between instances; those of all are signed by one authority
    #[arg(long, env = "FLASH_SALE_PEER_TLS_CERT", value_name = "FILE", requires = "peer_tls_key")]
    pub peer_tls_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate
    #[arg(long, env = "FLASH_SALE_PEER_TLS_KEY", value_name = "FILE", requires = "peer_ca")]
    pub peer_tls_key: Option<PathBuf>,

    /// PEM file with the certificate of that authority, which signs no others
    #[arg(long, env = "FLASH_SALE_PEER_CA", value_name = "FILE", requires_all = ["peer_tls_cert", "peer_listen"])]
    pub peer_ca: Option<PathBuf>,

    /// Most open connections at --listen
    #[arg(long, env = "FLASH_SALE_MAX_CONNECTIONS", value_name = "N", default_value = "20000", value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections: usize,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the file {path} that {flag} names", path = .path.display())]
pub struct FileError {
    /// The flag that names it.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

impl Config {
    /// Reads the file with the admin token for the first time, and checks that the other files can be read.
    ///
    /// # Errors
    /// [`FileError`] names the flag and the file.
    pub fn read_files(&mut self) -> Result<(), FileError> {
        self.servers.check_files()?;
        if let Some(path) = &self.admin_token_file {
            let flag = "--admin-token-file";
            let token = read_secret(flag, path)?;
            let token = admin_token(token.expose()).map_err(|what| {
                let source = io::Error::new(io::ErrorKind::InvalidData, what);
                FileError { flag, path: path.clone(), source }
            })?;
            // a pipe can be read once only
            let is_file = std::fs::metadata(path).is_ok_and(|path| path.is_file());
            self.admin_token = (!is_file).then_some(token);
        }
        let token = self.peer_token_file.as_deref();
        token.map(|path| read_secret("--peer-token-file", path)).transpose()?;
        Ok(())
    }

    /// What peers show each other; a file is read at each use.
    pub fn peer_credentials(&self) -> Credentials {
        let pair = self.peer_tls_cert.clone().zip(self.peer_tls_key.clone());
        let tls = pair.zip(self.peer_ca.clone());
        Credentials {
            token: self.peer_token_file.clone().map(SecretSource::File),
            tls: tls.map(|((cert, key), ca)| PeerTls { cert, key, ca }),
        }
    }

    /// The admin token; a file is read at each use.
    pub fn admin_token(&self) -> Option<SecretSource> {
        let text = self.admin_token.clone().map(SecretSource::Text);
        text.or_else(|| self.admin_token_file.clone().map(SecretSource::File))
    }

    /// The options of the sale, for an instance that listens on `port`.
    pub fn sale_options(&self, port: u16) -> SaleOptions {
        SaleOptions {
            lock_name: self.servers.lock_name.clone(),
            instance: self.instance.clone().unwrap_or_else(|| port.to_string()),
            queue_length: self.queue_length,
            batch_size: self.batch_size,
            tenure: self.tenure,
            wait_timeout: self.wait_timeout,
            etcd: None,
            peers: self.peer_address.as_ref().map(|address| {
                let link = HttpLink::new(self.peer_credentials());
                Arc::new(Peers::new(address, Arc::new(link)))
            }),
        }
    }
}

fn read_secret(flag: &'static str, path: &Path) -> Result<Secret, FileError> {
    let read = SecretSource::File(path.to_owned()).read();
    read.map_err(|source| FileError { flag, path: path.to_owned(), source })
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "an address is an IP and a port, such as 127.0.0.1:8080 or [::]:8080")
}

fn peer_address(text: &str) -> Result<String, &'static str> {
    let is_valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let is_plain = text.len() <= 256 && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
    (is_valid && is_plain)
        .then(|| text.to_owned())
        .ok_or("the address of a peer is a host and a port, such as 10.0.0.7:8082")
}

/// The longest admin token, in bytes: it must leave room for the other headers of a request.
const MAX_ADMIN_TOKEN: usize = MAX_HEADER_BYTES - 1024;

/// Refuses an empty token: an empty variable must not become one.
fn admin_token(text: &str) -> Result<Secret, String> {
    match text.trim() {
        "" => Err("an admin token has at least one character".to_owned()),
        token if token.len() <= MAX_ADMIN_TOKEN => Ok(Secret::from(token)),
        token => Err(format!(
            "an admin token has at most {MAX_ADMIN_TOKEN} bytes, or no request could carry it: this one has {}",
            token.len()
        )),
    }
}

fn rate(text: &str) -> Result<Rate, &'static str> {
    let parsed = text.split_once('/').and_then(|(count, unit)| {
        let per = Duration::from_secs(if unit == "m" { 60 } else { 1 });
        let count = count.parse().ok().filter(|count| (1..=1_000_000).contains(count))?;
        matches!(unit, "s" | "m").then_some(Rate { count, per })
    });
    parsed.ok_or("a rate is a whole number from 1 to 1000000 and a unit: 20/s or 100/m")
}

fn instance_name(text: &str) -> Result<String, &'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let valid = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
    valid
        .then(|| text.to_owned())
        .ok_or("an instance name is 1 to 64 letters, digits, dots, - and _")
}

/// A parser for times from `min` to `max`.
pub(crate) fn duration(
    min: &'static str,
    max: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bound = |text| humantime::parse_duration(text).expect("the bounds are written here");
        humantime::parse_duration(text)
            .ok()
            .filter(|time| (bound(min)..=bound(max)).contains(time))
            .ok_or_else(|| format!("a time from {min} to {max} is allowed, such as 30s or 500ms"))
    }
}

/// A parser for whole numbers within these bounds.
pub fn number<N>(
    bounds: RangeInclusive<N>,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: Clone + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| {
            format!("a whole number from {} to {} is allowed", bounds.start(), bounds.end())
        })
    }
}

#[cfg(test)]
mod tests;
