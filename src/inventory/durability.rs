//! Whether the store's settings can lose acknowledged orders.

use std::collections::HashMap;
use std::fmt;

use futures_util::future::join_all;
use redis::FromRedisValue;

use super::connection::{Connection, Effect};
use super::{Inventory, InventoryError};

/// A setting of the store that can lose acknowledged orders. Its text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Only snapshots, or nothing, reach the disk.
    NoAppendOnlyFile,
    /// Redis answers before it syncs its file. The value of `appendfsync`.
    LateSync(String),
    /// Redis evicts keys when its memory is full. The value of `maxmemory-policy`.
    Eviction(String),
    /// The last write to the disk failed.
    DiskFailed,
    /// Fewer replicas are connected than a write waits for.
    TooFewReplicas {
        /// How many are connected.
        connected: u32,
        /// How many a write waits for.
        wanted: u32,
    },
    /// The server is a replica: it takes no orders, and reads may lag.
    Replica,
    /// The server hides this setting.
    NotChecked(&'static str),
    /// The server cannot be reached, so its settings are not checked.
    Unreachable,
    /// One of a primary of a Redis Cluster.
    OfNode {
        /// Its address.
        node: String,
        /// What is wrong with it.
        warning: Box<Warning>,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAppendOnlyFile => f.write_str(
                "Redis keeps no append-only file: if it stops, every order since its last snapshot \
                 is lost. Set `appendonly yes` and `appendfsync always`.",
            ),
            Self::LateSync(value) => write!(
                f,
                "Redis answers before its data is on disk (`appendfsync {value}`): if the machine \
                 stops, acknowledged orders are lost. Set `appendfsync always`.",
            ),
            Self::Eviction(policy) => write!(
                f,
                "Redis may evict stock and orders when its memory is full (`maxmemory-policy {policy}`). Set \
                 `maxmemory-policy noeviction`.",
            ),
            Self::DiskFailed => {
                f.write_str("The last write of Redis to its disk failed. See its log.")
            }
            Self::TooFewReplicas { connected, wanted } => write!(
                f,
                "Redis has {connected} connected replicas, and each write waits for {wanted}: no order is \
                 acknowledged until they are connected.",
            ),
            Self::Replica => f.write_str(
                "This Redis is a replica, which takes no orders. Use the address of the primary.",
            ),
            Self::Unreachable => f.write_str(
                "Redis cannot be reached, so its settings are not checked: check them by hand.",
            ),
            Self::OfNode { node, warning } => write!(f, "{node}: {warning}"),
            Self::NotChecked(setting) => write!(
                f,
                "Redis does not show its setting `{setting}`, so acknowledged orders may be lost: check it \
                 by hand.",
            ),
        }
    }
}

impl Inventory {
    /// The settings of the store, or of every primary of a Redis Cluster, that can lose acknowledged orders. A
    /// server that hides a setting, as hosted ones do, causes a warning, not an error.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`]; in a Redis Cluster, if no primary answers.
    pub async fn durability(&self) -> Result<Vec<Warning>, InventoryError> {
        let servers = self.shards.all().await?;
        let answers = join_all(servers.iter().map(|server| self.durability_of(server))).await;
        if !self.shards.is_cluster() || answers.iter().all(Result::is_err) {
            return answers.into_iter().collect::<Result<Vec<_>, _>>().map(|all| all.concat());
        }
        let of_nodes = servers.iter().zip(answers).flat_map(|(server, answer)| {
            // one that is away does not hide the others
            let warnings = answer.unwrap_or_else(|_| vec![Warning::Unreachable]).into_iter();
            warnings.map(|warning| {
                let node = server.address();
                Warning::OfNode { node, warning: Box::new(warning) }
            })
        });
        Ok(of_nodes.collect())
    }

    async fn durability_of(&self, server: &Connection) -> Result<Vec<Warning>, InventoryError> {
        let info: String = unless_refused(server, &["INFO"]).await?.unwrap_or_default();
        let mut settings: HashMap<String, String> = HashMap::new();
        // one setting a command: Redis before 7 takes no more
        for setting in ["appendonly", "appendfsync", "maxmemory", "maxmemory-policy"] {
            let value = unless_refused(server, &["CONFIG", "GET", setting]).await?;
            settings.extend(value.unwrap_or_else(HashMap::new));
        }
        let mut warnings = warnings(&settings, &info);
        if let Some(wanted) = self.replicas().map(|replicas| replicas.count) {
            let connected = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
            match connected.map(str::parse) {
                Some(Ok(connected)) if connected >= wanted => {}
                Some(Ok(connected)) => warnings.push(Warning::TooFewReplicas { connected, wanted }),
                _ => warnings.push(Warning::NotChecked("connected_slaves")),
            }
        }
        Ok(warnings)
    }
}

/// The command's answer, or `None` if the server refuses it.
async fn unless_refused<T: FromRedisValue>(
    server: &Connection,
    words: &[&str],
) -> Result<Option<T>, InventoryError> {
    let mut command = redis::Cmd::new();
    command.arg(words);
    match server.query(&command, Effect::Read).await {
        Ok(answer) => Ok(Some(answer)),
        Err(InventoryError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn warnings(settings: &HashMap<String, String>, info: &str) -> Vec<Warning> {
    let info: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let setting = |name: &str| settings.get(name).map(String::as_str);
    // INFO has most of it where CONFIG is forbidden
    let appends = setting("appendonly")
        .or_else(|| info.get("aof_enabled").map(|value| if *value == "1" { "yes" } else { "no" }));
    let policy = setting("maxmemory-policy").or_else(|| info.get("maxmemory_policy").copied());
    let limit = setting("maxmemory").or_else(|| info.get("maxmemory").copied());

    let mut warnings = Vec::new();
    match (appends, setting("appendfsync")) {
        (Some("yes"), Some("always")) => {}
        (Some("yes"), Some(value)) => warnings.push(Warning::LateSync(value.to_owned())),
        (Some("yes"), None) => warnings.push(Warning::NotChecked("appendfsync")),
        (Some(_), _) => warnings.push(Warning::NoAppendOnlyFile),
        (None, _) => warnings.push(Warning::NotChecked("appendonly")),
    }
    match policy {
        // the other policies evict only keys that expire, and the keys of a sale never do
        Some(policy) if policy.starts_with("allkeys-") && limit != Some("0") => {
            warnings.push(Warning::Eviction(policy.to_owned()));
        }
        Some(_) => {}
        None => warnings.push(Warning::NotChecked("maxmemory-policy")),
    }
    if info.get("aof_last_write_status").is_some_and(|status| *status == "err") {
        warnings.push(Warning::DiskFailed);
    }
    if info.get("role").is_some_and(|role| *role == "slave") {
        warnings.push(Warning::Replica);
    }
    warnings
}
