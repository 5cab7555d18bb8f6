//! The address of Redis and the certificates for it.

use std::fmt;
#[cfg(feature = "tls")]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, ProtocolVersion, RedisResult,
};
#[cfg(feature = "tls")]
use redis::{ClientTlsConfig, TlsCertificates};

use socket2::TcpKeepalive;

use super::InventoryError;
use crate::secret::{Secret, SecretSource};

/// How long a connection may be idle before the system probes the other end, and the pause between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The address of Redis and the certificates for it. Each connection reads the files, so that a password or a
/// certificate can change while the service runs.
#[derive(Clone, Debug)]
pub struct RedisAccess {
    /// `redis://[[user]:password@]host[:port][/database]`, or `unix:///path`;
    /// `redis-cluster://[[user]:password@]host[:port][,host[:port]...]`; or
    /// `redis-sentinel://[[user]:password@]host[:port][,host[:port]...][/database]#primary`, with the user, password
    /// and database of the primary. `rediss` in place of `redis`: over TLS.
    pub address: SecretSource,
    /// With `rediss`: the PEM file with the CA certificate of Redis. `None`: the system's CAs.
    pub ca: Option<PathBuf>,
    /// With `rediss`: the PEM files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl<T: AsRef<str> + ?Sized> From<&T> for RedisAccess {
    fn from(url: &T) -> Self {
        let address = SecretSource::Text(Secret::from(url.as_ref()));
        Self { address, ca: None, identity: None }
    }
}

/// The servers that an address names.
pub(super) struct Target {
    pub(super) kind: TargetKind,
    /// At least one. Each has the user, the password and the database of the address.
    pub(super) nodes: Vec<ConnectionInfo>,
}

/// The kind of these servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    Server,
    /// Sentinels, which know the primary of this name. User, password and database are those of the primary.
    Sentinels(String),
    /// Some nodes of a Redis Cluster, which know the others.
    Cluster,
}

impl Target {
    fn parse(address: &str) -> RedisResult<Self> {
        let (scheme, rest) = address.split_once("://").unwrap_or_default();
        let (scheme, is_cluster) = match scheme.split_once('-') {
            Some((scheme @ ("redis" | "rediss"), "cluster")) => (scheme, true),
            Some((scheme @ ("redis" | "rediss"), "sentinel")) => (scheme, false),
            _ => {
                check_parts(address)?;
                let nodes = vec![address.into_connection_info()?];
                return Ok(Self { kind: TargetKind::Server, nodes });
            }
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let (path, name) = tail.split_once('#').unwrap_or((tail, ""));
        if user.trim_end_matches('@').contains('@') {
            let what =
                "user and password come once, before the first host; write %40 for @ in a password";
            return Err((ErrorKind::InvalidClientConfig, what).into());
        }
        // the end of this function refuses everything behind the hosts of a cluster
        check_parts(&format!("{scheme}://{user}host{}", if is_cluster { "" } else { path }))?;
        let nodes = hosts.split(',').map(|host| {
            let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
            let port = if has_port || is_cluster { "" } else { ":26379" };
            format!("{scheme}://{user}{host}{port}{path}").into_connection_info()
        });
        let nodes = nodes.collect::<RedisResult<_>>()?;
        let invalid = |what: &'static str| Err((ErrorKind::InvalidClientConfig, what).into());
        if !is_cluster && name.is_empty() {
            invalid("the name of the primary is missing: end with #name")
        } else if !is_cluster {
            Ok(Self { kind: TargetKind::Sentinels(name.to_owned()), nodes })
        } else if matches!(tail, "" | "/") {
            Ok(Self { kind: TargetKind::Cluster, nodes })
        } else {
            invalid("a Redis Cluster has no database numbers: end with the last host")
        }
    }

    /// The host and port of each node.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.addr().to_string()).collect()
    }

    /// The server at this address, with the user, password and TLS of the target. If the target is a single server, that server.
    pub(super) fn node(&self, node: &str) -> RedisResult<ConnectionInfo> {
        let first = self.nodes[0].clone();
        if self.kind == TargetKind::Server {
            return Ok(first);
        }
        let parts = node.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let what = "the address of a server of the store is not understood";
        let parts = parts.ok_or((ErrorKind::UnexpectedReturnType, what))?;
        let mut address = first.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut address
        {
            (*host, *port) = (parts.0.to_owned(), parts.1);
        }
        Ok(first.set_addr(address))
    }
}

/// Refuses the parts of an address that the client library ignores silently, or that weaken TLS.
fn check_parts(address: &str) -> RedisResult<()> {
    // the client library says what is wrong with other addresses
    let Some(url) = redis::parse_redis_url(address) else { return Ok(()) };
    let (scheme, user) = (url.scheme(), url.username());
    let is_socket = scheme.ends_with("unix");
    let allowed: &[&str] = if is_socket { &["db", "user", "pass"] } else { &[] };
    let (mut seen, mut is_known) = (Vec::new(), true);
    for (name, _) in url.query_pairs() {
        is_known &= allowed.contains(&&*name) && !seen.contains(&name);
        seen.push(name);
    }
    let password = url.password();
    let what = if url.fragment().is_some() {
        "an address of Redis has no `#` but in front of the primary of sentinels; write it as %23 in a password"
    } else if is_socket && (url.has_host() || password.is_some() || !is_known) {
        "behind the path of a socket there can be ?db=, user= and pass=, each once, and nothing else"
    } else if is_socket
        && seen.iter().any(|name| name == "user")
        && !seen.iter().any(|name| name == "pass")
    {
        "there is a user without a password: add pass="
    } else if url.query().is_some() && !is_socket {
        "an address of Redis has no `?`: the number of the database is its path, as in redis://host:6379/3"
    } else if !user.is_empty() && password.is_none_or(str::is_empty) {
        "there is a user without a password: write user:password@ or :password@"
    } else {
        return Ok(());
    };
    Err((ErrorKind::InvalidClientConfig, what).into())
}

impl fmt::Display for Target {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let TargetKind::Sentinels(primary) = &self.kind {
            write!(f, "{primary} at ")?;
        }
        f.write_str(&self.addresses().join(","))
    }
}

impl RedisAccess {
    /// The target of the address, from the present content of its file.
    pub(super) fn target(&self) -> Result<Target, InventoryError> {
        let invalid = |source| InventoryError::InvalidUrl { source };
        let address = self.address.read().map_err(|error| invalid(error.into()))?;
        Target::parse(address.expose()).map_err(invalid)
    }

    /// The addresses of the servers, without user and password; `None` if the address is not valid.
    pub fn place(&self) -> Option<String> {
        self.target().ok().map(|target| target.to_string())
    }

    /// A client for the next connection to `node`, with the present content of the files.
    pub(super) fn client(&self, node: ConnectionInfo) -> Result<Client, InventoryError> {
        // with RESP3, the client notices at once that a connection broke, not only at its next use
        let redis = node.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // a NAT drops connections that are idle
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        // a small command must not wait for the acknowledgement of the one before
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info = node.set_redis_settings(redis).set_tcp_settings(tcp);
        let unusable = |source| InventoryError::InvalidCertificates { source };
        #[cfg(feature = "tls")]
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // if two providers are linked, rustls chooses none; an error means that one was chosen before
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = self.certificates().map_err(unusable)?;
            return Client::build_with_tls(info, certificates).map_err(unusable);
        }
        if self.ca.is_some() || self.identity.is_some() {
            let what = "certificates require an address with TLS, such as rediss://";
            Err(unusable((ErrorKind::InvalidClientConfig, what).into()))
        } else {
            Client::open(info).map_err(|source| InventoryError::InvalidUrl { source })
        }
    }

    /// Connects to `node`, with the present content of the files.
    pub(super) async fn connect(
        &self,
        node: ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let client = self.client(node).map_err(std::io::Error::other)?;
        client.get_multiplexed_async_connection_with_config(config).await
    }

    /// Asks `node` one question over a separate connection. The caller limits the time.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        node: ConnectionInfo,
        question: &Cmd,
    ) -> RedisResult<T> {
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(None).set_response_timeout(None);
        question.query_async(&mut self.connect(node, &config).await?).await
    }

    #[cfg(feature = "tls")]
    fn certificates(&self) -> RedisResult<TlsCertificates> {
        let read = |path: &Path| std::fs::read(path);
        let identity = self.identity.as_ref().map(|(certificate, key)| -> RedisResult<_> {
            Ok(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        });
        let root_cert = self.ca.as_deref().map(read).transpose()?;
        Ok(TlsCertificates { client_tls: identity.transpose()?, root_cert })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::ErrorChain;

    fn read(address: &str) -> Result<Target, String> {
        RedisAccess::from(address).target().map_err(|error| ErrorChain(&error).to_string())
    }

    /// Goal: each scheme leads to its kind of server, with all hosts, and with the password on each.
    #[test]
    fn addresses_of_servers_sentinels_and_clusters() {
        for (address, shown) in [
            ("redis://u:pw@a", "a:6379"),
            ("redis://:pw@a/3", "a:6379"),
            ("unix:///run/redis.sock", "/run/redis.sock"),
            ("unix:///run/redis.sock?db=3&user=u&pass=p", "/run/redis.sock"),
            ("redis-cluster://a", "a:6379"),
            ("redis-cluster://u:pw@a,b:7000,[::1],[::1]:7/", "a:6379,b:7000,::1:6379,::1:7"),
            ("rediss-cluster://a,b", "a:6379,b:6379"),
            ("redis-sentinel://:p%40w@a,b:7,[::1]/3#shop", "shop at a:26379,b:7,::1:26379"),
            ("rediss-sentinel://a#shop", "shop at a:26379"),
        ] {
            assert_eq!(read(address).expect(address).to_string(), shown, "{address}");
        }
        let target = read("rediss-cluster://u:p%40w@a,b").expect("a cluster");
        let node = target.node("::1:7").expect("a node");
        assert!(matches!(node.addr(), ConnectionAddr::TcpTls { port: 7, .. }));
        assert_eq!(
            (node.redis_settings().password(), target.node("b").is_err()),
            (Some("p@w"), true)
        );
        let target = read("redis-sentinel://u:p%40w@a,b/3#shop").expect("sentinels");
        assert_eq!(target.kind, TargetKind::Sentinels("shop".to_owned()));
        for node in target.nodes {
            let of = node.redis_settings();
            assert_eq!((of.username(), of.password(), of.db()), (Some("u"), Some("p@w"), 3));
        }
    }

    /// Goal: an error says what is missing and does not show the password.
    #[test]
    fn wrong_addresses_get_a_message() {
        for (address, message) in [
            ("redis-cluster://:hidden@a/1", "no database numbers"),
            ("redis-cluster://:hidden@a,b#shop", "no database numbers"),
            ("redis-cluster://:hidden@a,,b", "URL"),
            ("redis-cluster://:hidden@a:port", "URL"),
            ("redis-sentinel://:hidden@a/1", "#name"),
            ("redis-sentinel://:hidden@a/x#shop", "database number"),
            ("redis-sentinel://:hidden@#shop", "URL"),
            ("http-cluster://:hidden@a", "URL"),
            // how redis-py, ioredis and Celery write it: redis/node-redis#958, mozilla/sumo#2253
            ("redis://:hidden@a:6379?db=3", "redis://host:6379/3"),
            ("rediss://:hidden@a/?db=3", "redis://host:6379/3"),
            ("redis://:hidden@a/0?protocol=resp2", "redis://host:6379/3"),
            ("redis-cluster://:hidden@a?db=3", "no database numbers"),
            ("redis-sentinel://:hidden@a?db=3#shop", "redis://host:6379/3"),
            ("redis://:hidden@a#3", "no `#`"),
            ("rediss://:hidden@a#insecure", "no `#`"),
            ("redis://:hidden#part@a", "URL"),
            ("redis://hidden@a", "without a password"),
            ("redis://hidden:@a", "without a password"),
            ("redis-sentinel://hidden@a#shop", "without a password"),
            ("redis-sentinel://u:hidden@a,u:hidden@b#shop", "come once"),
            ("redis-cluster://u:hidden@a,u:hidden@b", "come once"),
            ("unix:///run/redis.sock?database=3&pass=hidden", "nothing else"),
            ("unix:///run/redis.sock?db=3&db=4&pass=hidden", "nothing else"),
            ("unix:///run/redis.sock?user=hidden", "pass="),
            ("unix:///run/redis.sock#hidden", "no `#`"),
            ("redis://u:hidden@a:port", "URL"),
            ("u:hidden", "URL"),
        ] {
            let error = read(address).map(|target| target.to_string()).expect_err(address);
            assert!(error.contains(message), "{address}: {error}");
            assert!(!error.contains("hidden"), "{address}: {error}");
        }
    }
}
