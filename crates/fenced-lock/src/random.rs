//! Numbers that no other process draws.

/// A number from the system's random source. What the standard library seeds once in a thread will not do: a child that
/// the process forks draws the same.
///
/// # Panics
/// If the system has no random source. Neither does the standard library run there.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has a random source")
}

/// A lease's id.
pub(crate) fn random_id() -> i64 {
    (random() >> 1).cast_signed()
}
