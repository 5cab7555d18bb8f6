//! Finds settings of the store that can lose acknowledged orders.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::{FromRedisValue, InfoDict};

use super::connection::Connection;
use super::error::Effect;
use super::{Inventory, InventoryError};

impl Inventory {
    /// A sentence for each setting that can lose acknowledged orders, of the store or of any primary of a Redis
    /// Cluster; it says what to do. A server that hides a setting, as hosted ones do, causes a sentence, not an error.
    ///
    /// # Errors
    /// [`InventoryError::Unreachable`]; in a Redis Cluster, if no primary answers.
    pub async fn durability(&self) -> Result<Vec<String>, InventoryError> {
        let servers = self.shards.all().await?;
        let mut answers = join_all(servers.iter().map(|server| self.durability_of(server))).await;
        if answers.iter().all(Result::is_err) {
            return answers.swap_remove(0);
        }
        let away = |server: &Connection| {
            vec![format!("{}: cannot be reached: check its settings by hand.", server.address())]
        };
        let of_servers = servers.iter().zip(answers);
        Ok(of_servers.flat_map(|(server, told)| told.unwrap_or_else(|_| away(server))).collect())
    }

    async fn durability_of(&self, server: &Connection) -> Result<Vec<String>, InventoryError> {
        let address = server.address();
        let info: Option<InfoDict> = unless_refused(server, &["INFO"]).await?;
        let info = |name: &str| info.as_ref()?.get::<String>(name);
        // INFO does not have this setting
        let question = ["CONFIG", "GET", "appendfsync"];
        let synced: Option<HashMap<String, String>> = unless_refused(server, &question).await?;
        let synced = synced.and_then(|mut settings| settings.remove("appendfsync"));
        let mut warnings = Vec::new();
        let mut check = |is_set: Option<bool>, setting: &str, risk: &str| match is_set {
            Some(true) => {}
            Some(false) => warnings.push(format!("{address}: Redis {risk}. Set `{setting}`.")),
            None => warnings
                .push(format!("{address}: Redis does not show `{setting}`: check it by hand.")),
        };
        let keeps_file = info("aof_enabled").map(|enabled| enabled == "1");
        check(keeps_file, "appendonly yes", "keeps no append-only file: a stop loses orders");
        if keeps_file == Some(true) {
            let is_synced = synced.map(|when| when == "always");
            check(is_synced, "appendfsync always", "answers before its data is on disk");
        }
        // the other policies evict only keys that expire, and the keys of a sale never do
        let is_bounded = info("maxmemory").is_none_or(|bytes| bytes != "0");
        let evicts = |policy: String| policy.starts_with("allkeys-") && is_bounded;
        let keeps_all = info("maxmemory_policy").map(|policy| !evicts(policy));
        check(keeps_all, "maxmemory-policy noeviction", "may evict stock and orders");
        let wanted = self.replicas().map_or(0, |replicas| replicas.count);
        if let Some(connected) =
            info("connected_slaves").and_then(|number| number.parse::<u32>().ok())
            && connected < wanted
        {
            warnings.push(format!(
                "{address}: Redis has {connected} connected replicas, and each write waits for {wanted}: no order is \
                 acknowledged until they are connected."
            ));
        }
        let version = info("redis_version").unwrap_or_default();
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < 7) {
            warnings.push(format!(
                "{address}: Redis {version} lacks what the scripts use. Use 7 or later, or Valkey."
            ));
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
