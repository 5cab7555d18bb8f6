//! The CPU time that processes of this machine spend during the load.

use std::collections::BTreeMap;

/// A process of this machine: a name, and the process id.
pub(crate) type Process = (String, u32);

/// Reads a process as `etcd=1234`.
pub(crate) fn process(text: &str) -> Result<Process, &'static str> {
    let parse = || {
        let (name, pid) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some((name.to_owned(), pid.parse().ok().filter(|pid| *pid > 0)?))
    };
    parse().ok_or("a process is written as a name and its id, such as etcd=1234")
}

/// CPU seconds of user and kernel since `earlier`, by name; those of this process as `loadtest`. Processes with the same name
/// are added up. A process that cannot be read is left out; without `/proc`, all are.
pub(crate) fn cpu_seconds(
    processes: &[Process],
    earlier: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let mut spent = BTreeMap::new();
    let ours = ("loadtest".to_owned(), std::process::id());
    for (name, pid) in processes.iter().chain([&ours]) {
        if let Some(seconds) = seconds(*pid) {
            let before = || -earlier.get(name).unwrap_or(&0.0);
            *spent.entry(name.clone()).or_insert_with(before) += seconds;
        }
    }
    spent
}

fn seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // user and system time are fields 14 and 15, counted after the name, which may contain anything
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    #[expect(clippy::cast_precision_loss, reason = "ticks of a run are far below 2^52")]
    Some((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}
