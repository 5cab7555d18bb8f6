//! The flags of `serve` and their environment variables. [`Servers`] has the flags that other commands share.
//!
//! The variable of `--lock-ttl` is `FLASH_SALE_LOCK_TTL`. A flag overrides its variable.

mod servers;
mod variables;

pub use servers::Servers;
pub(crate) use servers::is_plain_url;
pub use variables::unknown_variables;

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command, Parser};
use ipnet::IpNet;

use crate::http::rate_limit::{Proxies, Rate};
use crate::http::{Extension, HttpOptions};
use crate::inventory::Inventory;
use crate::peers::{Credentials, HttpLink, PeerTls, Peers};
use crate::sale::{BoxError, SaleOptions};
use crate::secret::{Secret, SecretSource, token};

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

    /// Token of the shop's server, for confirmations, returns, the ledger and /events; other users of this machine can see it, so
    /// prefer the file
    #[arg(long, env = "FLASH_SALE_SHOP_TOKEN", value_name = "TOKEN", hide_env_values = true, conflicts_with = "shop_token_file", value_parser = token)]
    pub shop_token: Option<Secret>,

    /// File with the token of the shop's server, or with an old and a new one in a line each; a change counts within a second
    #[arg(long, env = "FLASH_SALE_SHOP_TOKEN_FILE", value_name = "FILE")]
    pub shop_token_file: Option<PathBuf>,

    /// Admin token, for the start of a sale and all other calls; other users of this machine can see it, so prefer the file
    #[arg(long, env = "FLASH_SALE_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true, conflicts_with = "admin_token_file", value_parser = token)]
    pub admin_token: Option<Secret>,

    /// File with the admin token, or with an old and a new one in a line each; a change counts within a second
    #[arg(long, env = "FLASH_SALE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Origin whose pages may order by POST and read the answers, such as `https://shop.example`; repeatable
    #[arg(long, env = "FLASH_SALE_ALLOW_ORIGIN", value_name = "ORIGIN", value_delimiter = ',', conflicts_with = "user_header", value_parser = origin)]
    pub allow_origin: Vec<HeaderValue>,

    /// Most clients that wait for news, at GET /events and GET /orders?wait=
    #[arg(long, env = "FLASH_SALE_MAX_WATCHERS", value_name = "N", default_value = "64", value_parser = number::<usize>(0..=10_000))]
    pub max_watchers: usize,

    /// Header in which the gateway names the buyer, such as X-User-Id; `?user=` needs a token then
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

    /// Most orders of one client, such as 20/s or 100/m: of a user if a header names it, else of an address [default: no limit]
    #[arg(long, env = "FLASH_SALE_RATE_LIMIT", value_name = "N/s", value_parser = rate)]
    pub rate_limit: Option<Rate>,

    /// Address or network of proxies alone, such as 10.0.7.10, which say for whom they send a request; repeatable
    #[arg(long, env = "FLASH_SALE_TRUSTED_PROXY", value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    pub trusted_proxy: Vec<IpNet>,

    /// Header to which those proxies add the address that they saw
    #[arg(long, env = "FLASH_SALE_PROXY_HEADER", value_name = "NAME", default_value = "X-Forwarded-For", value_parser = proxy_header)]
    pub proxy_header: HeaderName,

    /// Address and port for other instances, which send their orders here while this one holds the lock [default: none, and
    /// instances take turns]
    #[arg(long, env = "FLASH_SALE_PEER_LISTEN", value_name = "ADDRESS", value_parser = address)]
    pub peer_listen: Option<SocketAddr>,

    /// Host and port under which other instances reach that address [default: the same]
    #[arg(long, env = "FLASH_SALE_PEER_ADDRESS", value_name = "HOST:PORT", requires = "peer_listen", value_parser = peer_address)]
    pub peer_address: Option<String>,

    /// File with the token that instances show each other, and in a second line another one that they accept; required without TLS
    /// unless --peer-listen is a loopback address
    #[arg(long, env = "FLASH_SALE_PEER_TOKEN_FILE", value_name = "FILE", requires = "peer_listen")]
    pub peer_token_file: Option<PathBuf>,

    /// The token of the peers that came through a pipe.
    #[arg(skip)]
    peer_token: Option<Secret>,

    /// PEM file with the certificate of this instance, for TLS between instances; those of all are signed by one authority
    #[arg(long, env = "FLASH_SALE_PEER_TLS_CERT", value_name = "FILE", requires = "peer_tls_key")]
    pub peer_tls_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate
    #[arg(long, env = "FLASH_SALE_PEER_TLS_KEY", value_name = "FILE", requires = "peer_ca")]
    pub peer_tls_key: Option<PathBuf>,

    /// PEM file with the certificate of that authority, which signs no others
    #[arg(long, env = "FLASH_SALE_PEER_CA", value_name = "FILE", requires_all = ["peer_tls_cert", "peer_listen"])]
    pub peer_ca: Option<PathBuf>,

    /// Most open connections at each port for clients (watchers at --admin-listen do not count)
    #[arg(long, env = "FLASH_SALE_MAX_CONNECTIONS", value_name = "N", default_value = "20000", value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections: usize,
}

/// The arguments and variables of this process. Wrong ones end it, with a message without secrets.
pub fn arguments<A: Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| without_secrets(error, A::command()).exit())
}

/// The same error, with `***` for a value that may be a secret: of a flag whose variable's value the help hides, or with a user
/// and a password.
fn without_secrets(mut error: clap::Error, mut program: Command) -> clap::Error {
    fn hides(command: &Command, flag: &str) -> bool {
        command.get_arguments().any(|it| it.is_hide_env_values_set() && it.to_string() == flag)
            || command.get_subcommands().any(|command| hides(command, flag))
    }
    // only a program that is built writes its flags as the error does
    program.build();
    let said = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let [flag, value] = [ContextKind::InvalidArg, ContextKind::InvalidValue].map(said);
    if value.is_empty() && !flag.is_empty() && !flag.starts_with('-') {
        error.insert(ContextKind::InvalidArg, ContextValue::String("***".to_owned()));
    }
    if !value.is_empty() && (hides(&program, &flag) || value.contains('@')) {
        error.insert(ContextKind::InvalidValue, ContextValue::String("***".to_owned()));
    }
    error
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the file {} that {flag} names", shown(.flag, .path))]
pub struct FileError {
    /// The flag that names it.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// The path, unless it may be the secret itself, in place of the name of its file.
fn shown(flag: &str, path: &Path) -> String {
    let text = path.display().to_string();
    let is_path = !text.contains("://") && (text.contains('/') || path.exists());
    if is_path || !flag.ends_with("-file") { text } else { "***".to_owned() }
}

impl Config {
    /// Reads the files with tokens for the first time, and checks that the other files can be read.
    ///
    /// # Errors
    /// [`FileError`] names the flag and the file. If two tokens are equal, another error names both flags: a client with one
    /// would have the rights of the other.
    pub fn read_files(&mut self) -> Result<(), BoxError> {
        self.servers.check_files()?;
        let mut tokens = Vec::new();
        for (flag, path, text) in [
            ("--shop-token-file", &self.shop_token_file, &mut self.shop_token),
            ("--admin-token-file", &self.admin_token_file, &mut self.admin_token),
            ("--peer-token-file", &self.peer_token_file, &mut self.peer_token),
        ] {
            if let Some(path) = path {
                let (all, read) = read_tokens(path).map_err(|source| FileError {
                    flag,
                    path: path.clone(),
                    source,
                })?;
                tokens.extend(read.into_iter().map(|token| (flag, token)));
                // a pipe can be read only once
                let is_file = std::fs::metadata(path).is_ok_and(|path| path.is_file());
                *text = (!is_file).then_some(all);
            } else if let Some(token) = text {
                tokens.push((flag.trim_end_matches("-file"), token.clone()));
            }
        }
        for (index, (flag, token)) in tokens.iter().enumerate() {
            if let Some((other, _)) = tokens[..index].iter().find(|(_, other)| other == token) {
                return Err(format!(
                    "{other} and {flag} have an equal token: make each one anew, as with `openssl rand -hex 32`"
                )
                .into());
            }
        }
        Ok(())
    }

    /// The credentials that peers show each other. A file is read at each use.
    pub fn peer_credentials(&self) -> Credentials {
        let pair = self.peer_tls_cert.clone().zip(self.peer_tls_key.clone());
        let tls = pair.zip(self.peer_ca.clone());
        Credentials {
            token: source(self.peer_token.as_ref(), self.peer_token_file.as_ref()),
            tls: tls.map(|((cert, key), ca)| PeerTls { cert, key, ca }),
        }
    }

    /// The tokens of the shop's server.
    pub fn shop_token(&self) -> Option<SecretSource> {
        source(self.shop_token.as_ref(), self.shop_token_file.as_ref())
    }

    /// The admin tokens.
    pub fn admin_token(&self) -> Option<SecretSource> {
        source(self.admin_token.as_ref(), self.admin_token_file.as_ref())
    }

    /// The proxies that pass on the addresses of clients.
    pub fn proxies(&self) -> Proxies {
        Proxies { trusted: self.trusted_proxy.clone(), header: Some(self.proxy_header.clone()) }
    }

    /// The options of the HTTP interface, with the further routes of `extension`.
    pub fn http_options(&self, extension: Option<Arc<dyn Extension>>) -> HttpOptions {
        HttpOptions {
            shop_token: self.shop_token(),
            admin_token: self.admin_token(),
            rate_limit: self.rate_limit,
            user_header: self.user_header.clone(),
            proxies: self.proxies(),
            allow_origins: self.allow_origin.clone(),
            watchers: self.max_watchers,
            extension,
        }
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

fn source(text: Option<&Secret>, file: Option<&PathBuf>) -> Option<SecretSource> {
    let text = text.cloned().map(SecretSource::Text);
    text.or_else(|| file.cloned().map(SecretSource::File))
}

/// The text of a file with tokens, and its tokens, which are valid.
fn read_tokens(path: &Path) -> io::Result<(Secret, Vec<Secret>)> {
    let text = Secret::from(&*std::fs::read_to_string(path)?);
    let tokens = SecretSource::Text(text.clone()).read_tokens()?;
    Ok((text, tokens))
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "an address is an IP and a port, such as 127.0.0.1:8080 or [::]:8080")
}

fn peer_address(text: &str) -> Result<String, &'static str> {
    // as the peers will read it
    let is_valid =
        text.parse::<Authority>().is_ok_and(|it| !it.host().is_empty() && it.port_u16() > Some(0));
    let is_plain = text.len() <= 256 && !text.contains('@');
    (is_valid && is_plain)
        .then(|| text.to_owned())
        .ok_or("the address of a peer is a host and a port, such as 10.0.0.7:8082")
}

/// An origin in the form in which browsers send it. In another form it would match no request.
fn origin(text: &str) -> Result<HeaderValue, &'static str> {
    let (scheme, host) = text.split_once("://").unwrap_or_default();
    let standard_port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "*",
    };
    let is_plain = !host.ends_with(standard_port) && !text.bytes().any(|b| b.is_ascii_uppercase());
    let is_origin = is_plain && !host.contains('*') && is_plain_url(text) && !text.ends_with('/');
    let parsed = text.parse::<Uri>().is_ok().then(|| HeaderValue::from_str(text).ok()).flatten();
    parsed.filter(|_| is_origin).ok_or(
        "an origin is written as browsers send it, such as https://shop.example or http://127.0.0.1:3000: in lower case, \
         without a path and without the usual port; * and null are not allowed",
    )
}

fn network(text: &str) -> Result<IpNet, &'static str> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| {
        "a network is an address and the length of its prefix, such as 10.0.7.0/29 or 2001:db8::/64"
    })?;
    // an IPv6 client with a mapped IPv4 address is compared as IPv4
    let mapped =
        net.prefix_len().checked_sub(96).and_then(|length| match net.addr().to_canonical() {
            address @ IpAddr::V4(_) if net.addr().is_ipv6() => IpNet::new(address, length).ok(),
            _ => None,
        });
    let net = mapped.unwrap_or(net);
    (net.prefix_len() > 0)
        .then_some(net)
        .ok_or("every client could name any address then: give the addresses of the proxies alone")
}

fn proxy_header(text: &str) -> Result<HeaderName, &'static str> {
    let name = text.parse().ok().filter(|name| *name != header::FORWARDED);
    name.ok_or("the header has addresses alone, separated by commas, as X-Forwarded-For: Forwarded is written in another way")
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
