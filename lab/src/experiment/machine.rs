//! A description of the machine. Without it, no figure means anything.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::SystemTime;

use testkit::server::find_program;

pub(crate) type Machine = BTreeMap<&'static str, String>;

/// This machine, and the programs on which the figures depend.
pub(crate) fn machine() -> Machine {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let known = [
        ("processor", in_proc("cpuinfo", "model name")),
        ("memory", in_proc("meminfo", "MemTotal")),
        ("kernel", line("sys/kernel/osrelease")),
        // the averages over 1, 5 and 15 minutes, before anything was started
        ("load average before", line("loadavg")),
        ("etcd", version("FLASH_SALE_ETCD", &["etcd"])),
        ("Redis", version("FLASH_SALE_REDIS", &["redis-server", "valkey-server"])),
    ];
    let known = known.map(|(name, value)| (name, value.unwrap_or_else(|| "unknown".to_owned())));
    let of_this = [
        ("date", humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
        ("build", build.to_owned()),
        ("cores", cores.to_string()),
    ];
    of_this.into_iter().chain(known).collect()
}

/// The first line with a program's version.
fn version(variable: &str, names: &[&str]) -> Option<String> {
    let output = Command::new(find_program(variable, names)?).arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.lines().next()?.to_owned())
}

/// The value after `name:` in a file of `/proc` such as `meminfo`.
fn in_proc(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{file}")).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// A file of `/proc` as one line.
fn line(file: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{file}")).ok()?.trim().to_owned())
}
