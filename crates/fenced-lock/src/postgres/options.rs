//! The options for PostgreSQL.

use std::error::Error;
use std::time::Duration;

#[cfg(feature = "postgres-tls")]
use rustls::RootCertStore;
use tokio_postgres::Config;
#[cfg(not(feature = "postgres-tls"))]
pub(super) use tokio_postgres::NoTls as Tls;
use tokio_postgres::config::{
    ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs,
};
#[cfg(feature = "postgres-tls")]
pub(super) use tokio_postgres_rustls::MakeRustlsConnect as Tls;

use crate::BackendError;
use crate::options::{debug_without_secrets, limit};
use crate::random::random;
#[cfg(feature = "postgres-tls")]
use crate::tls::{authorities, client_config};

/// A connection is asked for a sign of life after this silence, and given up after half a minute of silence.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// The options for PostgreSQL.
///
/// ```
/// use fenced_lock::PostgresOptions;
///
/// let options = PostgresOptions::new("postgres://app:secret@127.0.0.1/sale");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The server's address: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or `host=.. user=..`. With several hosts, the one
    /// that accepts writes is taken; a silent host delays the others by a part of the [`request_timeout`](Self::request_timeout).
    /// A pooler must be in session mode: a pooler that shares a connection between clients takes locks and messages away, and is
    /// refused. Settings that the lock makes itself are refused, such as `application_name`, `connect_timeout` and `keepalives`.
    ///
    /// **Without `sslmode=require` or a [`ca`](Self::ca), the connection is not encrypted.** With one of them, the server's
    /// certificate and name are checked, too, as `psql` does with `sslmode=verify-full`. The values `verify-full` and `verify-ca`
    /// and the setting `sslrootcert` are not known here.
    pub url: String,
    /// The CA certificates (PEM) that the server's certificate is checked against; the system's if `None`.
    pub ca: Option<Vec<u8>>,
    /// The client certificate and its key (PEM), if the server asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The longest silence of the server while requests wait for its answers.
    pub request_timeout: Duration,
    /// Whether every standby that may take over is synchronous (`synchronous_standby_names`). If not, a failover and a recovery
    /// to a point in time give the tokens another [`ClusterId`](crate::ClusterId), because a lagging standby may repeat a token.
    pub standby_is_synchronous: bool,
}

impl PostgresOptions {
    /// This address, no certificates, two seconds for a request, and standbys that may lag.
    pub fn new(url: impl Into<String>) -> Self {
        let request_timeout = Duration::from_secs(2);
        Self {
            url: url.into(),
            ca: None,
            identity: None,
            request_timeout,
            standby_is_synchronous: false,
        }
    }

    /// These options, with times cut to their limits. It fails if one is too short.
    pub(super) fn checked(&self) -> Result<Self, BackendError> {
        let request_timeout = limit("a request_timeout", self.request_timeout)?;
        Ok(Self { request_timeout, ..self.clone() })
    }

    fn parse(&self) -> Result<Config, BackendError> {
        self.url.parse::<Config>().map_err(|error| {
            // other causes may repeat the text that they do not understand, which may be a part of a password
            let cause = error.source().map(|cause| format!(": {cause}"));
            let cause = cause.filter(|cause| cause.starts_with(": invalid value for option"));
            let what =
                "a PostgreSQL address is a URL or a list of settings, all of them known here";
            BackendError::permanent(format!("{what}{}", cause.unwrap_or_default()))
        })
    }

    /// The settings for each host, and TLS for all.
    pub(super) fn connector(&self) -> Result<(Vec<Config>, Tls), BackendError> {
        let config = self.parse()?;
        if let Some(setting) = overridden(&config) {
            let what =
                format!("the lock sets {setting} itself: leave it out of the PostgreSQL address");
            return Err(BackendError::permanent(what));
        }
        let is_encrypted = config.get_ssl_mode() == SslMode::Require || self.ca.is_some();
        let needs_encryption = self.identity.is_some()
            || config.get_ssl_negotiation() == SslNegotiation::Direct
            || config.get_channel_binding() == ChannelBinding::Require;
        if self.ca.is_some() && config.get_ssl_mode() == SslMode::Disable {
            let what = "with a CA, connections to PostgreSQL are encrypted, and its address has sslmode=disable";
            return Err(BackendError::permanent(what));
        }
        if needs_encryption && !is_encrypted {
            let what = "a client certificate, sslnegotiation=direct and channel_binding=require are for encrypted connections: add a CA or sslmode=require";
            return Err(BackendError::permanent(what));
        }
        let mode = if is_encrypted { SslMode::Require } else { SslMode::Disable };
        let mut hosts = each_host(&config);
        for host in &mut hosts {
            host.ssl_mode(mode)
                .target_session_attrs(TargetSessionAttrs::ReadWrite)
                .connect_timeout(self.request_timeout)
                .tcp_user_timeout(self.request_timeout)
                // a waiting claim sends nothing: only these notice that its connection is dead
                .keepalives_idle(KEEPALIVE_IDLE)
                .keepalives_interval(KEEPALIVE_INTERVAL)
                .keepalives_retries(KEEPALIVE_RETRIES);
        }
        #[cfg(not(feature = "postgres-tls"))]
        let tls = if is_encrypted {
            let what = "this program was built without TLS, which the PostgreSQL address asks for: turn on the feature postgres-tls";
            return Err(BackendError::permanent(what));
        } else {
            Tls
        };
        #[cfg(feature = "postgres-tls")]
        let tls =
            self.tls(is_encrypted).map_err(|error| BackendError::permanent(error.to_string()))?;
        Ok((hosts, tls))
    }

    #[cfg(feature = "postgres-tls")]
    fn tls(&self, is_encrypted: bool) -> Result<Tls, Box<dyn Error>> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            roots = authorities(ca)?;
        } else if is_encrypted {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Ok(Tls::new(client_config(roots, self.identity.as_ref())?))
    }
}

/// A setting of the address that the lock would override.
fn overridden(config: &Config) -> Option<&'static str> {
    let defaults = Config::new();
    let is_set = [
        ("application_name", config.get_application_name().is_some()),
        ("connect_timeout", config.get_connect_timeout().is_some()),
        ("keepalives", !config.get_keepalives()),
        ("keepalives_idle", config.get_keepalives_idle() != defaults.get_keepalives_idle()),
        ("keepalives_interval", config.get_keepalives_interval().is_some()),
        ("keepalives_retries", config.get_keepalives_retries().is_some()),
        ("target_session_attrs", config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly),
        ("tcp_user_timeout", config.get_tcp_user_timeout().is_some()),
    ];
    is_set.into_iter().find(|(_, is_set)| *is_set).map(|(setting, _)| setting)
}

/// Splits the settings into those for each host: the client library does not limit how long a host may take after it has accepted
/// a connection. Hosts and ports that do not fit together stay as they are, so that the library reports the mistake.
fn each_host(config: &Config) -> Vec<Config> {
    let (names, addresses, ports) =
        (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = names.len().max(addresses.len());
    let fits = |len| len == count || len == 0;
    if count < 2
        || !fits(names.len())
        || !fits(addresses.len())
        || !fits(ports.len()) && ports.len() != 1
    {
        return vec![config.clone()];
    }
    let one = |number| {
        let mut one = Config::new();
        config.get_user().map(|user| one.user(user));
        config.get_password().map(|password| one.password(password));
        config.get_dbname().map(|name| one.dbname(name));
        config.get_options().map(|options| one.options(options));
        match names.get(number) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        addresses.get(number).map(|address| one.hostaddr(*address));
        ports.get(number).or(ports.first()).map(|port| one.port(*port));
        one.ssl_negotiation(config.get_ssl_negotiation())
            .channel_binding(config.get_channel_binding());
        one
    };
    let mut all: Vec<_> = (0..count).map(one).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        all.sort_by_cached_key(|_| random());
    }
    all
}

debug_without_secrets!(PostgresOptions);
