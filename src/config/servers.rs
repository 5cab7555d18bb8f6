//! The flags that say where etcd and Redis are: `serve` and `adopt` share them.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use clap::Args;

use super::{SecretFileError, count, duration, limit, read_secret};
use crate::defence::Defence;
use crate::inventory::{Inventory, InventoryError, InventoryOptions, Replicas};
use crate::lock::{EtcdOptions, EtcdUser};
use crate::secret::Secret;

/// Where the servers are, and how they let one in.
#[derive(Args, Clone, Debug)]
pub struct Servers {
    /// Addresses of the etcd cluster, separated by commas
    #[arg(
        long,
        env = "FLASH_SALE_ETCD",
        value_name = "URL",
        default_value = "http://127.0.0.1:2379",
        value_delimiter = ',',
        value_parser = etcd_address
    )]
    pub etcd: Vec<String>,

    /// User name for etcd, if it asks for one
    #[arg(long, env = "FLASH_SALE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,

    /// Password for etcd; other users of this machine can see a flag, so prefer the file
    #[arg(
        long,
        env = "FLASH_SALE_ETCD_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true,
        requires = "etcd_user",
        conflicts_with = "etcd_password_file"
    )]
    pub etcd_password: Option<Secret>,

    /// File with the password for etcd
    #[arg(
        long,
        env = "FLASH_SALE_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    pub etcd_password_file: Option<PathBuf>,

    /// Address of Redis; a user, a password and a database can stand in it, as in
    /// `redis://user:password@host:6379/0`
    #[arg(
        long,
        env = "FLASH_SALE_REDIS",
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true,
        conflicts_with = "redis_file"
    )]
    pub redis: Secret,

    /// File with the address of Redis, which may hold a password
    #[arg(long, env = "FLASH_SALE_REDIS_FILE", value_name = "FILE")]
    pub redis_file: Option<PathBuf>,

    /// How many replicas of Redis must have an order before it is acknowledged
    #[arg(long, env = "FLASH_SALE_REDIS_REPLICAS", value_name = "N", default_value = "0", value_parser = count(0, 100))]
    pub redis_replicas: usize,

    /// How long a batch waits for the replicas; without them in time, its outcome is unknown
    #[arg(long, env = "FLASH_SALE_REDIS_REPLICA_TIMEOUT", value_name = "TIME", default_value = "500ms", value_parser = duration("1ms", "1m"))]
    pub redis_replica_timeout: Duration,

    /// Name of the default item's lock; another item's lock is this name, `:` and the item's
    #[arg(long, env = "FLASH_SALE_LOCK_NAME", value_name = "NAME", default_value = "stock-lock", value_parser = lock_name)]
    pub lock_name: String,
}

impl Servers {
    /// Reads the files that hold secrets, and puts what they hold in the place of the flags that can
    /// hold it as well.
    ///
    /// # Errors
    /// [`SecretFileError`] names the flag and the file.
    pub fn read_secret_files(&mut self) -> Result<(), SecretFileError> {
        if let Some(path) = self.redis_file.take() {
            self.redis = read_secret("--redis-file", &path)?;
        }
        if let Some(path) = self.etcd_password_file.take() {
            self.etcd_password = Some(read_secret("--etcd-password-file", &path)?);
        }
        Ok(())
    }

    /// How to reach etcd.
    pub fn etcd_options(&self) -> EtcdOptions {
        let mut options = EtcdOptions::new(self.etcd.iter().cloned());
        options.request_timeout = limit(Defence::Deadlines, options.request_timeout);
        options.user = self.etcd_user.clone().map(|user| {
            let password = self.etcd_password.as_ref().map_or("", |password| password.expose());
            EtcdUser::new(user, password)
        });
        options
    }

    /// The stock in Redis, which nothing is asked yet.
    ///
    /// # Errors
    /// [`InventoryError::InvalidUrl`].
    pub fn inventory(&self) -> Result<Inventory, InventoryError> {
        let mut options = InventoryOptions::default();
        options.response_timeout = limit(Defence::Deadlines, options.response_timeout);
        let inventory = Inventory::new(self.redis.expose(), options)?;
        let count = u32::try_from(self.redis_replicas).unwrap_or(u32::MAX);
        Ok(inventory.with_replicas(Replicas { count, timeout: self.redis_replica_timeout }))
    }
}

fn etcd_address(text: &str) -> Result<String, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let plain = uri.filter(|uri| {
        uri.scheme_str() == Some("http")
            && uri.host().is_some_and(|host| !host.is_empty())
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    });
    // the client would show a password in an address wherever it shows the address
    let plain = plain.filter(|uri| uri.authority().is_some_and(|a| !a.as_str().contains('@')));
    plain.map(|_| text.to_owned()).ok_or(
        "an etcd address looks like http://127.0.0.1:2379; user and password have flags of their own",
    )
}

fn lock_name(text: &str) -> Result<String, &'static str> {
    let valid = (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_graphic())
        && !text.starts_with('/')
        && !text.ends_with('/');
    valid
        .then(|| text.to_owned())
        .ok_or("a lock name is 1 to 128 visible ASCII characters, with no / at either end")
}
