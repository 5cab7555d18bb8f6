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

/// CPU seconds of user and kernel so far of these processes and of this one, by process id. A process that cannot be read is
/// left out; without `/proc`, all are.
pub(crate) fn so_far(processes: &[Process]) -> BTreeMap<u32, f64> {
    let pids = processes.iter().map(|(_, pid)| *pid).chain([std::process::id()]);
    pids.filter_map(|pid| Some((pid, seconds(pid)?))).collect()
}

/// CPU seconds since `earlier`, by name; those of this process as `loadtest`. Processes with the same name are added up.
pub(crate) fn cpu_seconds(
    processes: &[Process],
    earlier: &BTreeMap<u32, f64>,
) -> BTreeMap<String, f64> {
    let (now, mut spent) = (so_far(processes), BTreeMap::new());
    let ours = ("loadtest".to_owned(), std::process::id());
    for (name, pid) in processes.iter().chain([&ours]) {
        if let Some(seconds) = now.get(pid) {
            let before = earlier.get(pid).unwrap_or(&0.0);
            *spent.entry(name.clone()).or_default() += seconds - before;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process that ended meanwhile does not count, and what it spent before is taken from no other.
    #[test]
    fn a_process_that_ended_is_left_out() {
        let (own, dead) = (std::process::id(), u32::MAX);
        let processes = [own, dead].map(|pid| ("both".to_owned(), pid));
        let earlier = [(own, 0.0), (dead, 1e6)].into();
        let spent = cpu_seconds(&processes, &earlier);
        assert!(spent["both"] >= 0.0, "{spent:?}");
    }
}
