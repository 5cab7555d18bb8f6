//! Whether the store's settings can lose acknowledged orders.

use std::collections::HashMap;
use std::fmt;

use redis::FromRedisValue;

use super::connection::Effect;
use super::{Inventory, InventoryError};

/// A setting of the store that can lose acknowledged orders. Its text says what and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Only snapshots, or nothing, reach the disk.
    NoAppendOnlyFile,
    /// Writes reach the disk later than the answer; how much later is the setting's value.
    LateSync(String),
    /// Keys may be thrown away when memory is used up.
    Eviction(String),
    /// The last write to the disk failed.
    DiskFailed,
    /// Fewer replicas are connected than each write waits for.
    TooFewReplicas {
        /// How many are.
        connected: u32,
        /// How many must have each write.
        wanted: u32,
    },
    /// The server is a replica: it takes no orders, and reads may lag.
    Replica,
    /// The server does not tell this setting.
    NotChecked(&'static str),
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
                "Redis may throw away stock and orders when its memory is used up \
                 (`maxmemory-policy {policy}`). Set `maxmemory-policy noeviction`.",
            ),
            Self::DiskFailed => f.write_str(
                "Redis could not write its data to disk the last time it tried. Look at its log.",
            ),
            Self::TooFewReplicas { connected, wanted } => write!(
                f,
                "Redis has {connected} connected replicas, and each write waits for {wanted}: until they \
                 are there, no order is acknowledged.",
            ),
            Self::Replica => f.write_str(
                "this Redis is a replica: it takes no orders. Use the address of the primary.",
            ),
            Self::NotChecked(setting) => write!(
                f,
                "Redis does not tell its setting `{setting}`, so it could not be checked whether \
                 acknowledged orders can be lost.",
            ),
        }
    }
}

impl Inventory {
    /// What in the store's settings can lose acknowledged orders; nothing, if all is well. A server
    /// that keeps its settings to itself, as hosted ones do, gives a warning, not an error.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`].
    pub async fn durability(&self) -> Result<Vec<Warning>, InventoryError> {
        let info: String = self.unless_refused(&["INFO"]).await?.unwrap_or_default();
        let mut settings: HashMap<String, String> = HashMap::new();
        // One setting a command: Redis before 7 takes no more.
        for setting in ["appendonly", "appendfsync", "maxmemory", "maxmemory-policy"] {
            let value = self.unless_refused(&["CONFIG", "GET", setting]).await?;
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

    /// The command's answer, or `None` if the server refuses it.
    async fn unless_refused<T: FromRedisValue>(
        &self,
        words: &[&str],
    ) -> Result<Option<T>, InventoryError> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        match self.connection.query(&command, Effect::Read).await {
            Ok(answer) => Ok(Some(answer)),
            Err(InventoryError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn warnings(settings: &HashMap<String, String>, info: &str) -> Vec<Warning> {
    let info: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let setting = |name: &str| settings.get(name).map(String::as_str);
    // INFO tells most of it where CONFIG is forbidden.
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
        // The other policies throw away only keys that expire, and the sale's never do.
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
