//! What `/proc` tells about a process. Everything is `None` on a machine that has none.

use std::fs;

/// Bytes of memory that are in RAM.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// How many files and connections are open.
pub(super) fn open_files(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Ticks of CPU time, user and kernel.
pub(super) fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // counted behind the name, which may hold anything
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// The value behind `name:` in a file of `/proc` such as `meminfo`.
pub(super) fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{file}")).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// A file of `/proc` in one line.
pub(super) fn line(file: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{file}")).ok()?.trim().to_owned())
}
