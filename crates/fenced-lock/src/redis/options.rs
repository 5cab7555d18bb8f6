//! How to reach Redis.
//!
//! All sentinels are asked at once, and the primary is the one that most of them name: one may be cut off from the others
//! together with a former primary, and not learn of a failover. The client's own Sentinel client believes one of them.

use std::collections::HashMap;
use std::time::Duration;
use std::{fmt, io};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, RedisResult, cmd,
};
#[cfg(feature = "redis-tls")]
use redis::{ClientTlsConfig, TlsCertificates};
use tokio::time::timeout;

use super::connection::refusal;
use super::failure;
use crate::BackendError;
#[cfg(feature = "redis-tls")]
use crate::tls::settle_cryptography;

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
    /// The address, `redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]`, or `rediss://` for TLS. That of sentinels is
    /// `redis-sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT[/DATABASE]#NAME`, or `rediss-sentinel://`, with the name of
    /// the primary, its user and its database.
    pub url: String,
    /// With `rediss`: the CA certificates (PEM) that the server's certificate is checked against; the system's if `None`.
    pub ca: Option<Vec<u8>>,
    /// With `rediss`: the client certificate and its key (PEM), if the server asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The longest that a request may take, the connection for it included.
    pub request_timeout: Duration,
}

impl RedisOptions {
    /// This address, no certificates, and two seconds for a request.
    pub fn new(url: impl Into<String>) -> Self {
        let request_timeout = Duration::from_secs(2);
        Self { url: url.into(), ca: None, identity: None, request_timeout }
    }

    pub(super) fn servers(&self) -> Result<Servers, BackendError> {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let Some(scheme) = scheme.strip_suffix("-sentinel") else {
            return Ok(Servers { clients: vec![self.client(&self.url)?], primary: None });
        };
        let what = "the name of the primary is missing: end the address with #NAME";
        let (rest, name) = rest.rsplit_once('#').ok_or_else(|| BackendError::permanent(what))?;
        let (user, rest) = rest.split_at(rest.rfind('@').map_or(0, |at| at + 1));
        let (hosts, database) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let client = |host| self.client(&format!("{scheme}://{user}{host}{database}"));
        let clients = hosts.split(',').map(client).collect::<Result<_, _>>()?;
        Ok(Servers { clients, primary: Some(name.to_owned()) })
    }

    fn client(&self, url: &str) -> Result<Client, BackendError> {
        let is_tls = url.starts_with("rediss://");
        if !is_tls && (self.ca.is_some() || self.identity.is_some()) {
            let what = "Redis's certificates are for an address with rediss://";
            return Err(BackendError::permanent(what));
        }
        if is_tls && !cfg!(feature = "redis-tls") {
            let what = "this program was built without TLS, which rediss:// needs: turn on the feature redis-tls";
            return Err(BackendError::permanent(what));
        }
        let build = || -> RedisResult<Client> {
            let info = url.into_connection_info()?;
            // with RESP3, messages and answers share a connection, and its end is told at once
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            // a small request must not wait for the acknowledgement of the one before
            let tcp = TcpSettings::default().set_nodelay(true);
            let info = info.set_redis_settings(redis).set_tcp_settings(tcp);
            #[cfg(feature = "redis-tls")]
            if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
                settle_cryptography();
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

    /// Where the server is, without user and password.
    pub(super) fn address(&self) -> &str {
        self.url.rsplit_once('@').map_or(&self.url, |(_, address)| address)
    }
}

impl fmt::Debug for RedisOptions {
    /// Without user, password, certificates and key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("address", &self.address())
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// Where Redis is.
pub(super) struct Servers {
    /// The server, or its sentinels.
    pub(super) clients: Vec<Client>,
    /// What the sentinels call the primary.
    pub(super) primary: Option<String>,
}

impl Servers {
    /// The server, or the primary that most of the sentinels name that answer within this time.
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
        // where as many name either, an open connection stays, and a new one waits until they agree
        let all: usize = votes.values().sum();
        let Some(((named, at), _)) = votes.into_iter().find(|(_, votes)| votes * 2 > all) else {
            return Err(failure("the sentinels name no primary", &errors));
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

/// Host and port of the primary. A sentinel gets user and password only if it asks for them: often it has none.
async fn ask(sentinel: &Client, name: &str) -> RedisResult<(String, u16)> {
    let sentinel = sentinel.get_connection_info();
    let ask = async |user: RedisConnectionInfo| -> RedisResult<Option<_>> {
        let client = Client::open(sentinel.clone().set_redis_settings(user))?;
        let mut sentinel = client.get_multiplexed_async_connection().await?;
        cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut sentinel).await
    };
    let mut answer = ask(RedisConnectionInfo::default()).await;
    if answer.as_ref().is_err_and(|error| error.code() == Some("NOAUTH")) {
        // it has no databases
        answer = ask(sentinel.redis_settings().clone().set_db(0)).await;
    }
    let what = "the sentinel knows no primary of this name";
    answer?.ok_or_else(|| (ErrorKind::InvalidClientConfig, what, name.to_owned()).into())
}
