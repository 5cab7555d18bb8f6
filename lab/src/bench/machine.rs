//! A description of the machine, without which no figure means anything.

use std::fs;
use std::time::SystemTime;

use hyper::Method;
use serde::Serialize;
use testkit::probe;

use demo::cluster::Cluster;

/// The machine of the figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) build: &'static str,
    pub(super) cores: usize,
    pub(super) processor: String,
    pub(super) memory: String,
    pub(super) kernel: String,
    /// Over 1, 5 and 15 minutes, before anything was started.
    pub(super) load_average: String,
    pub(super) etcd: String,
    pub(super) redis: String,
}

/// The load before the start.
pub(super) fn load_average() -> String {
    let line = line("loadavg").unwrap_or_default();
    let averages: Vec<_> = line.split(' ').take(3).collect();
    known(Some(averages.join(" ")))
}

impl Machine {
    pub(super) async fn look(cluster: &Cluster, load_average: String) -> Self {
        let etcd = probe::http(Method::GET, cluster.etcd[0].port(), "/version", "").await;
        let etcd = etcd.ok().and_then(|(_, text)| {
            let version: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(version.get("etcdserver")?.as_str()?.to_owned())
        });
        let info = probe::redis(cluster.redis.port(), "INFO server").await.unwrap_or_default();
        let value = |name| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let redis = value("valkey_version:")
            .map(|version| format!("Valkey {version}"))
            .or_else(|| value("redis_version:"));
        let memory = field("meminfo", "MemTotal").and_then(|total| {
            let kibibytes: u64 = total.strip_suffix(" kB")?.parse().ok()?;
            Some(format!("{} GiB", (kibibytes + (1 << 19)) >> 20))
        });
        let kernel = line("sys/kernel/osrelease").map(|release| format!("Linux {release}"));
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: known(field("cpuinfo", "model name")),
            memory: known(memory),
            kernel: known(kernel.or_else(|| Some(std::env::consts::OS.to_owned()))),
            load_average,
            etcd: known(etcd),
            redis: known(redis),
        }
    }
}

fn known(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// The value behind `name:` in a file of `/proc` such as `meminfo`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{file}")).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// A file of `/proc` in one line.
fn line(file: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{file}")).ok()?.trim().to_owned())
}
