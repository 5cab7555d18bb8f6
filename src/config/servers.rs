//! The flags of etcd and Redis, which `serve` and `recover` share.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use fenced_lock::{EtcdOptions, EtcdUser};

use super::{FileError, duration, number, read_secret};
use crate::inventory::{Inventory, InventoryError, InventoryOptions, RedisAccess, Replicas};
use crate::secret::{Secret, SecretSource};

/// The addresses of the servers, and the credentials and certificates for them.
#[derive(Args, Clone, Debug)]
pub struct Servers {
    /// Addresses of the etcd cluster, separated by commas
    #[arg(long, env = "FLASH_SALE_ETCD", value_name = "URL", default_value = "http://127.0.0.1:2379", value_delimiter = ',', value_parser = etcd_address)]
    pub etcd: Vec<String>,

    /// User name for etcd
    #[arg(long, env = "FLASH_SALE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,

    /// Password for etcd; other users of this machine can see it, so prefer the file
    #[arg(
        long,
        env = "FLASH_SALE_ETCD_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true,
        requires = "etcd_user",
        conflicts_with = "etcd_password_file"
    )]
    pub etcd_password: Option<Secret>,

    /// File with the password for etcd, read at each login
    #[arg(
        long,
        env = "FLASH_SALE_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    pub etcd_password_file: Option<PathBuf>,

    /// PEM file with the CA certificate of etcd [default: the system's CAs]
    #[arg(long, env = "FLASH_SALE_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,

    /// PEM file with the client certificate for etcd
    #[arg(long, env = "FLASH_SALE_ETCD_CERT", value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate
    #[arg(long, env = "FLASH_SALE_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,

    /// Address of Redis, `rediss` for TLS, with an optional user, password and database:
    /// `redis://user:password@host:6379/0`; of Sentinels: `redis-sentinel://user:password@host,host/0#primary`;
    /// of a Redis Cluster: `redis-cluster://user:password@host,host`
    #[arg(
        long,
        env = "FLASH_SALE_REDIS",
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true,
        conflicts_with = "redis_file"
    )]
    pub redis: Secret,

    /// File with the address of Redis, read at each connection
    #[arg(long, env = "FLASH_SALE_REDIS_FILE", value_name = "FILE")]
    pub redis_file: Option<PathBuf>,

    /// PEM file with the CA certificate of Redis [default: the system's CAs]
    #[arg(long, env = "FLASH_SALE_REDIS_CA", value_name = "FILE")]
    pub redis_ca: Option<PathBuf>,

    /// PEM file with the client certificate for Redis
    #[arg(long, env = "FLASH_SALE_REDIS_CERT", value_name = "FILE", requires = "redis_key")]
    pub redis_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate
    #[arg(long, env = "FLASH_SALE_REDIS_KEY", value_name = "FILE", requires = "redis_cert")]
    pub redis_key: Option<PathBuf>,

    /// Redis replicas that must have an order before it is acknowledged
    #[arg(long, env = "FLASH_SALE_REDIS_REPLICAS", value_name = "N", default_value = "0", value_parser = number::<usize>(0..=100))]
    pub redis_replicas: usize,

    /// Time for the replicas to confirm a batch; after it, the outcome is unknown
    #[arg(long, env = "FLASH_SALE_REDIS_REPLICA_TIMEOUT", value_name = "TIME", default_value = "500ms", value_parser = duration("1ms", "1m"))]
    pub redis_replica_timeout: Duration,

    /// Name of the default item's lock; the lock of item X is this name, `:` and X
    #[arg(long, env = "FLASH_SALE_LOCK_NAME", value_name = "NAME", default_value = "stock-lock", value_parser = lock_name)]
    pub lock_name: String,
}

impl Servers {
    /// Checks that each file can be read and has the right content, before any connection.
    ///
    /// # Errors
    /// [`FileError`] names the flag and the file.
    pub fn check_files(&self) -> Result<(), FileError> {
        let secrets = [
            ("--redis-file", &self.redis_file),
            ("--etcd-password-file", &self.etcd_password_file),
        ];
        for (flag, path) in secrets {
            path.as_deref().map(|path| read_secret(flag, path)).transpose()?;
        }
        // reads the other files of etcd
        self.etcd_options()?;
        let pem = [
            ("--redis-ca", &self.redis_ca, "CERTIFICATE"),
            ("--redis-cert", &self.redis_cert, "CERTIFICATE"),
            ("--redis-key", &self.redis_key, "PRIVATE KEY"),
        ];
        for (flag, path, what) in pem {
            path.as_deref().map(|path| read_pem(flag, path, what)).transpose()?;
        }
        Ok(())
    }

    /// The options for etcd.
    ///
    /// # Errors
    /// [`FileError`] names the flag and the file with a certificate that cannot be used.
    pub fn etcd_options(&self) -> Result<EtcdOptions, FileError> {
        let mut options = EtcdOptions::new(self.etcd.iter().cloned());
        options.user = self.etcd_user.clone().map(|user| {
            let password = match (&self.etcd_password, &self.etcd_password_file) {
                (Some(password), _) => SecretSource::Text(password.clone()),
                (None, Some(file)) => SecretSource::File(file.clone()),
                (None, None) => SecretSource::Text(Secret::from("")),
            };
            EtcdUser::with_password_from(user, move || Ok(password.read()?.expose().to_owned()))
        });
        let ca = self.etcd_ca.as_deref();
        options.ca = ca.map(|path| read_pem("--etcd-ca", path, "CERTIFICATE")).transpose()?;
        if let (Some(certificate), Some(key)) = (&self.etcd_cert, &self.etcd_key) {
            let certificate = read_pem("--etcd-cert", certificate, "CERTIFICATE")?;
            options.identity = Some((certificate, read_pem("--etcd-key", key, "PRIVATE KEY")?));
        }
        Ok(options)
    }

    /// The stock in Redis. Does not connect yet.
    ///
    /// # Errors
    /// [`InventoryError::InvalidUrl`] or [`InventoryError::InvalidCertificates`].
    pub fn inventory(&self) -> Result<Inventory, InventoryError> {
        let inventory = Inventory::new(self.redis_access(), InventoryOptions::default())?;
        let count = u32::try_from(self.redis_replicas).unwrap_or(u32::MAX);
        Ok(inventory.with_replicas(Replicas { count, timeout: self.redis_replica_timeout }))
    }

    /// The address of etcd, for messages.
    pub fn etcd_place(&self) -> String {
        format!("etcd at {}", self.etcd.join(","))
    }

    /// The address of Redis, for messages: without user and password.
    pub fn redis_place(&self) -> String {
        let flag = if self.redis_file.is_some() { "--redis-file" } else { "--redis" };
        self.redis_access().place().unwrap_or_else(|| format!("the address of {flag}"))
    }

    fn redis_access(&self) -> RedisAccess {
        let address = match &self.redis_file {
            Some(file) => SecretSource::File(file.clone()),
            None => SecretSource::Text(self.redis.clone()),
        };
        let identity = self.redis_cert.clone().zip(self.redis_key.clone());
        RedisAccess { address, ca: self.redis_ca.clone(), identity }
    }
}

/// Reads the PEM file of a flag. The file must contain `what`.
fn read_pem(flag: &'static str, path: &Path, what: &str) -> Result<Vec<u8>, FileError> {
    let found = std::fs::read_to_string(path).and_then(|text| {
        let missing =
            || io::Error::new(io::ErrorKind::InvalidData, format!("it has no {what} in PEM"));
        text.contains(&format!("{what}-----")).then(|| text.into_bytes()).ok_or_else(missing)
    });
    found.map_err(|source| FileError { flag, path: path.to_owned(), source })
}

/// Refuses an address with a password, because the etcd client shows addresses in its errors.
fn etcd_address(text: &str) -> Result<String, &'static str> {
    if text.contains('@') {
        return Err("user and password have flags of their own");
    }
    is_plain_url(text).then(|| text.to_owned()).ok_or(
        "an address of etcd is http://HOST:PORT or https://HOST:PORT, without path, query and fragment",
    )
}

/// Whether a URL has only a scheme, a host and perhaps a port: gRPC clients ignore other parts.
pub(crate) fn is_plain_url(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let host = host.map(|host| host.strip_suffix('/').unwrap_or(host));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']))
}

fn lock_name(text: &str) -> Result<String, &'static str> {
    let valid = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    valid.then(|| text.to_owned()).ok_or("a lock name is 1 to 128 visible ASCII characters")
}
