//! Room for connections: each takes a file descriptor.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files as far as the system lets this process. The usual soft limit of
/// 1024 is meant for programs that use `select`; this one does not.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // where it is refused, opening a connection too many says what to do
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
