//! Whether the store's settings can lose acknowledged orders.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::{FromRedisValue, InfoDict};

use super::connection::Connection;
use super::error::Effect;
use super::{Inventory, InventoryError};

impl Inventory {
    /// The settings of the store, or of every primary of a Redis Cluster, that can lose acknowledged orders: a
    /// sentence for each, which says what to do. A server that hides a setting, as hosted ones do, causes a
    /// sentence, not an error.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`]; in a Redis Cluster, if no primary answers.
    pub async fn durability(&self) -> Result<Vec<String>, InventoryError> {
        let servers = self.shards.all().await?;
        let mut answers = join_all(servers.iter().map(|server| self.durability_of(server))).await;
        if answers.iter().all(Result::is_err) {
            return answers.swap_remove(0);
        }
        let of_servers = servers.iter().zip(answers).flat_map(|(server, warnings)| {
            // one that is away does not hide the others
            let away =
                "Redis cannot be reached, so its settings are not checked: check them by hand.";
            let warnings = warnings.unwrap_or_else(|_| vec![away.to_owned()]);
            warnings.into_iter().map(|warning| format!("{}: {warning}", server.address()))
        });
        Ok(of_servers.collect())
    }

    async fn durability_of(&self, server: &Connection) -> Result<Vec<String>, InventoryError> {
        let info: Option<InfoDict> = unless_refused(server, &["INFO"]).await?;
        let info = |name: &str| info.as_ref()?.get::<String>(name);
        // the one setting that INFO does not have
        let question = ["CONFIG", "GET", "appendfsync"];
        let synced: Option<HashMap<String, String>> = unless_refused(server, &question).await?;
        let synced = synced.and_then(|mut settings| settings.remove("appendfsync"));
        let number = |name| info(name).map(|text| text.parse().unwrap_or(u64::MAX));
        let hidden = |setting: &str| {
            format!(
                "Redis does not show its setting `{setting}`, so acknowledged orders may be lost: check it \
                 by hand."
            )
        };
        let version = info("redis_version").unwrap_or_default();
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        let old = major.is_some_and(|major: u32| major < 7);
        let old = old.then(|| {
            format!("Redis {version} lacks what the scripts use. Use 7 or later, or Valkey.")
        });
        let file = match (info("aof_enabled").as_deref(), synced.as_deref()) {
            (Some("1"), Some("always")) => None,
            (Some("1"), Some(value)) => Some(format!(
                "Redis answers before its data is on disk (`appendfsync {value}`): if the machine \
                 stops, acknowledged orders are lost. Set `appendfsync always`."
            )),
            (Some("1"), None) => Some(hidden("appendfsync")),
            (Some(_), _) => Some(
                "Redis keeps no append-only file: if it stops, every order since its last snapshot \
                 is lost. Set `appendonly yes` and `appendfsync always`."
                    .to_owned(),
            ),
            (None, _) => Some(hidden("appendonly")),
        };
        let eviction = match info("maxmemory_policy") {
            // the other policies evict only keys that expire, and the keys of a sale never do
            Some(policy) if policy.starts_with("allkeys-") && number("maxmemory") != Some(0) => {
                Some(format!(
                    "Redis may evict stock and orders when its memory is full (`maxmemory-policy {policy}`). Set \
                     `maxmemory-policy noeviction`."
                ))
            }
            Some(_) => None,
            None => Some(hidden("maxmemory-policy")),
        };
        let wanted = self.replicas().map(|replicas| u64::from(replicas.count));
        let replicas = wanted.and_then(|wanted| match number("connected_slaves") {
            Some(connected) if connected >= wanted => None,
            Some(connected) => Some(format!(
                "Redis has {connected} connected replicas, and each write waits for {wanted}: no order is \
                 acknowledged until they are connected."
            )),
            None => Some(hidden("connected_slaves")),
        });
        Ok([old, file, eviction, replicas].into_iter().flatten().collect())
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
