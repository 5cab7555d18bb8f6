//! Medians and spread.

use serde::Serialize;

/// The middle and the ends of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// All zero for no values.
    pub(super) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return Self::default(),
            odd if odd % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    }

    /// `None` for no values.
    pub(super) fn of_some(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<_> = values.into_iter().collect();
        (!values.is_empty()).then(|| Self::of(&values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the median is the middle one, or between the two in the middle.
    #[test]
    fn medians() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::of_some([]), None);
    }
}
