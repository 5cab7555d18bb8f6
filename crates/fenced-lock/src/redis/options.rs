//! How to reach Redis.
//!
//! All sentinels are asked at once, and the primary is the one that most of them name. A minority of them may be cut off from
//! the others together with a former primary, and miss a failover; the client library's own Sentinel client believes a single
//! one. A failover takes a majority.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo, RedisResult, cmd,
    parse_redis_url,
};
#[cfg(feature = "redis-tls")]
use redis::{ClientTlsConfig, TlsCertificates};
#[cfg(feature = "redis-tls")]
use rustls::RootCertStore;
use tokio::time::timeout;

use super::connection::refusal;
use super::failure;
use crate::BackendError;
use crate::options::{debug_without_secrets, limit};
#[cfg(feature = "redis-tls")]
use crate::tls::{authorities, client_config, settle_cryptography};

/// How to reach a Redis.
///
/// ```
/// use fenced_lock::RedisOptions;
///
/// let options = RedisOptions::new("rediss://app:secret@redis.example:6379");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The address: `redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]`, or `rediss://` for TLS. For sentinels:
    /// `redis-sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT[/DATABASE]#NAME`, or `rediss-sentinel://`, with all sentinels, and the
    /// primary's name, user and database. For a socket: `unix:///PATH[?user=USER&pass=PASSWORD&db=DATABASE]`. An address with
    /// anything else is refused.
    pub url: String,
    /// With `rediss`: the CA certificates (PEM) that the server's certificate is checked against; the system's if `None`.
    pub ca: Option<Vec<u8>>,
    /// With `rediss`: the client certificate and its key (PEM), if the server asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The longest that a request may take, including the time to connect.
    pub request_timeout: Duration,
}

impl RedisOptions {
    /// Options for this address, without certificates, and with two seconds for a request.
    pub fn new(url: impl Into<String>) -> Self {
        let request_timeout = Duration::from_secs(2);
        Self { url: url.into(), ca: None, identity: None, request_timeout }
    }

    /// The options, with their limits applied.
    pub(super) fn checked(mut self) -> Result<Self, BackendError> {
        self.request_timeout = limit("a request_timeout", self.request_timeout)?;
        Ok(self)
    }

    pub(super) fn servers(&self) -> Result<Servers, BackendError> {
        let (infos, primary) = self.parse()?;
        let clients = infos.into_iter().map(|info| self.client(info)).collect::<Result<_, _>>()?;
        Ok(Servers { clients, primary })
    }

    /// The servers' addresses, and the primary's name if they are sentinels.
    fn parse(&self) -> Result<(Vec<ConnectionInfo>, Option<String>), BackendError> {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let Some(scheme) = scheme.strip_suffix("-sentinel") else {
            return Ok((vec![parse(&self.url)?], None));
        };
        let what = "the name of the primary is missing: end the address with #NAME";
        let named = rest.rsplit_once('#').filter(|(_, name)| !name.is_empty());
        let (rest, name) = named.ok_or_else(|| BackendError::permanent(what))?;
        let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
        let (hosts, database) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let info = |host| parse(&format!("{scheme}://{user}{host}{database}"));
        Ok((hosts.split(',').map(info).collect::<Result<_, _>>()?, Some(name.to_owned())))
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, BackendError> {
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if !is_tls && (self.ca.is_some() || self.identity.is_some()) {
            let what = "Redis's certificates are for an address with rediss://";
            return Err(BackendError::permanent(what));
        }
        #[cfg(feature = "redis-tls")]
        if is_tls {
            settle_cryptography();
            // checked here because the client library's errors repeat a part of the key
            let roots = self.ca.as_deref().map_or_else(|| Ok(RootCertStore::empty()), authorities);
            let config = roots.and_then(|roots| client_config(roots, self.identity.as_ref()));
            config.map_err(|error| BackendError::permanent(error.to_string()))?;
        }
        let build = || -> RedisResult<Client> {
            // with RESP3, messages and answers share a connection, and its end is reported at once
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            // a small request must not wait for the acknowledgement of the one before
            let tcp = TcpSettings::default().set_nodelay(true);
            let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
            #[cfg(feature = "redis-tls")]
            if is_tls {
                let client_tls = self
                    .identity
                    .clone()
                    .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                let root_cert = self.ca.clone();
                return Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
            }
            Client::open(info)
        };
        build().map_err(BackendError::permanent)
    }

    /// The servers' addresses, without user and password.
    pub(super) fn address(&self) -> String {
        let Ok((infos, _)) = self.parse() else { return "(not understood)".to_owned() };
        let scheme = self.url.split("://").next().unwrap_or_default();
        let hosts: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
        format!("{scheme}://{}", hosts.join(","))
    }
}

/// Reads the address of one server. The errors do not repeat the address, which may contain a password.
fn parse(url: &str) -> Result<ConnectionInfo, BackendError> {
    let what = "a Redis address is written redis://HOST:PORT";
    let parsed = parse_redis_url(url).ok_or_else(|| BackendError::permanent(what))?;
    if matches!(parsed.scheme(), "rediss" | "valkeys") && !cfg!(feature = "redis-tls") {
        let what = "this program was built without TLS, which rediss:// needs: turn on the feature redis-tls";
        return Err(BackendError::permanent(what));
    }
    let is_used = |key: &str| parsed.host().is_none() && matches!(key, "user" | "pass" | "db");
    if parsed.fragment().is_some() || parsed.query_pairs().any(|(key, _)| !is_used(&key)) {
        let what = "what the Redis address has behind ? or # is not used: leave it out";
        return Err(BackendError::permanent(what));
    }
    parsed.into_connection_info().map_err(BackendError::permanent)
}

debug_without_secrets!(RedisOptions);

/// Finds the Redis to use.
pub(super) struct Servers {
    /// The server, or its sentinels.
    pub(super) clients: Vec<Client>,
    /// The name under which the sentinels know the primary.
    pub(super) primary: Option<String>,
}

impl Servers {
    /// The server; with sentinels, the primary that most of them name within this time.
    pub(super) async fn find(&self, within: Duration) -> Result<Client, BackendError> {
        let Some(name) = &self.primary else { return Ok(self.clients[0].clone()) };
        let question = async |sentinel| -> RedisResult<_> {
            timeout(within, ask(sentinel, name)).await.map_err(io::Error::from)?
        };
        let mut answers: FuturesUnordered<_> = self.clients.iter().map(question).collect();
        let (mut votes, mut errors) = (HashMap::new(), Vec::new());
        while votes.values().all(|votes| *votes <= self.clients.len() / 2)
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(place) => *votes.entry(place).or_insert(0) += 1,
                Err(error) => errors.push(refusal(error)),
            }
        }
        let has_most = |(_, votes): &(_, usize)| *votes > self.clients.len() / 2;
        let Some(((named, at), _)) = votes.into_iter().find(has_most) else {
            return Err(failure("most of the sentinels do not name the same primary", &errors));
        };
        let sentinel = self.clients[0].get_connection_info();
        let mut address = sentinel.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut address
        {
            (*host, *port) = (named, at);
        }
        Client::open(sentinel.clone().set_addr(address)).map_err(refusal)
    }
}

/// Asks a sentinel for the primary's host and port. Sends user and password only if the sentinel demands them, since many
/// sentinels have none.
async fn ask(sentinel: &Client, name: &str) -> RedisResult<(String, u16)> {
    let sentinel = sentinel.get_connection_info();
    let ask = async |user: RedisConnectionInfo| -> RedisResult<Option<_>> {
        let client = Client::open(sentinel.clone().set_redis_settings(user))?;
        // the caller limits the time
        let config = AsyncConnectionConfig::new().set_connection_timeout(None);
        let config = config.set_response_timeout(None);
        let mut sentinel = client.get_multiplexed_async_connection_with_config(&config).await?;
        cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut sentinel).await
    };
    let mut answer = ask(RedisConnectionInfo::default()).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) {
        // a sentinel has no databases
        answer = ask(sentinel.redis_settings().clone().set_db(0)).await;
    }
    let what = "the sentinel knows no primary of this name";
    answer?.ok_or_else(|| (ErrorKind::InvalidClientConfig, what, name.to_owned()).into())
}
