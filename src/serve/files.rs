//! Room for connections: each takes a file descriptor.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but clients: etcd, Redis, the runtime, the standard streams.
const RESERVED: u64 = 64;

/// Raises the limit on open files as far as the system lets this process, and returns how many of
/// the `wanted` connections fit.
///
/// The usual soft limit of 1024 is meant for programs that use `select`; this one does not.
pub(super) fn room_for(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::debug!(%error, "cannot raise the limit on open files");
            limit.current
        }
    };
    let room = room_within(current, wanted);
    if room < wanted {
        tracing::warn!(
            "the limit on open files leaves room for {room} connections, not for {wanted}: raise it with \
             `ulimit -n`, LimitNOFILE= or --ulimit"
        );
    }
    room
}

/// How many of the `wanted` connections fit below a limit on open files; `None` is no limit.
fn room_within(limit: Option<u64>, wanted: usize) -> usize {
    let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(RESERVED).max(1));
    usize::try_from(room).map_or(wanted, |room| room.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        assert_eq!(room_within(None, 20_000), 20_000);
        assert_eq!(room_within(Some(1_048_576), 20_000), 20_000);
        assert_eq!(room_within(Some(1024), 20_000), 960);
        assert_eq!(room_within(Some(10), 20_000), 1);
    }
}
