//! A description of the machine, without which no figure means anything.

use std::fs;
use std::process::Command;
use std::time::SystemTime;

use serde::Serialize;
use testkit::server::find_program;

/// The machine of the figures, and the programs that they depend on.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) build: &'static str,
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    /// Over 1, 5 and 15 minutes, before anything was started.
    pub(crate) load_average: String,
    pub(crate) etcd: String,
    pub(crate) redis: String,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Self {
        let memory = field("meminfo", "MemTotal").and_then(|total| {
            let kibibytes: u64 = total.strip_suffix(" kB")?.parse().ok()?;
            Some(format!("{} GiB", (kibibytes + (1 << 19)) >> 20))
        });
        let kernel = line("sys/kernel/osrelease").map(|release| format!("Linux {release}"));
        let averages =
            line("loadavg").map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "));
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: known(field("cpuinfo", "model name")),
            memory: known(memory),
            kernel: kernel.unwrap_or_else(|| std::env::consts::OS.to_owned()),
            load_average: known(averages),
            etcd: known(version("FLASH_SALE_ETCD", &["etcd"])),
            redis: known(version("FLASH_SALE_REDIS", &["redis-server", "valkey-server"])),
        }
    }
}

fn known(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// A program's name and version, from lines such as `etcd Version: 3.4.23` and `Redis server v=7.0.15 sha=..`.
fn version(variable: &str, names: &[&str]) -> Option<String> {
    let output = Command::new(find_program(variable, names)?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.split_ascii_whitespace();
    let (name, version) = (words.next()?, words.nth(1)?);
    Some(format!("{name} {}", version.trim_start_matches("v=")))
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
