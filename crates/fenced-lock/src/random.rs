//! Random numbers.

pub(crate) use super::process::random;

/// A number between a half and one.
pub(crate) fn jitter() -> f64 {
    let random = u32::try_from(random() >> 32).unwrap_or(u32::MAX);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

/// A lease's id.
pub(crate) fn random_id() -> i64 {
    (random() >> 1).cast_signed()
}
