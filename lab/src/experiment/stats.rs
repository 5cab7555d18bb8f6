//! Medians, shares and spread.

use serde::Serialize;

/// The middle and the ends of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` for no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { median, min, max })
    }
}

/// The value below which `percent` of all values are; `None` for no values.
pub(crate) fn quantile(values: impl IntoIterator<Item = f64>, percent: usize) -> Option<f64> {
    let sorted = sorted(values);
    let place = sorted.len() * percent / 100;
    sorted.get(place).or(sorted.last()).copied()
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<_> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A count of this run: too small to lose digits.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the median is the middle value, or the mean of the two middle ones; a quantile is one of the values, whatever their
    /// order.
    #[test]
    fn medians_and_quantiles() {
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), spread(2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0]), spread(2.5, 1.0, 4.0));
        assert_eq!(Spread::of([]), None);
        let values = || (0..200).rev().map(f64::from);
        let quantiles = [0, 50, 99, 100].map(|it| quantile(values(), it));
        assert_eq!(quantiles, [0.0, 100.0, 198.0, 199.0].map(Some));
    }
}
