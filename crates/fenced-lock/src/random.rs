//! Numbers that no other process draws.

/// A number from the system's random source. What the standard library seeds once in a thread will not do: a child that
/// the process forks draws the same.
///
/// # Panics
/// If the system has no random source. Neither does the standard library run there.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has a random source")
}

/// A number between a half and one.
pub(crate) fn jitter() -> f64 {
    let random = u32::try_from(random() >> 32).unwrap_or(u32::MAX);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

/// A lease's id.
pub(crate) fn random_id() -> i64 {
    (random() >> 1).cast_signed()
}
