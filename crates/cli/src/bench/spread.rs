//! The middle of several measurements, and how far they lie apart.

use serde_json::{Value, json};

/// Quartiles and ends of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) n: usize,
    pub(crate) min: f64,
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Zeros where nothing was measured.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            // Between two neighbours where the share falls between them.
            let place = share * sorted.len().saturating_sub(1) as f64;
            let (low, high) = (place.floor() as usize, place.ceil() as usize);
            match (sorted.get(low), sorted.get(high)) {
                (Some(a), Some(b)) => a + (b - a) * place.fract(),
                _ => 0.0,
            }
        };
        Self { n: sorted.len(), min: at(0.0), q1: at(0.25), median: at(0.5), q3: at(0.75), max: at(1.0) }
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "median": self.median, "q1": self.q1, "q3": self.q3, "min": self.min, "max": self.max, "n": self.n,
        })
    }
}

/// `median (q1..q3)`, with as many digits as three figures need.
impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}..{})", figures(self.median), figures(self.q1), figures(self.q3))
    }
}

/// Three figures.
pub(crate) fn figures(x: f64) -> String {
    match x.abs() {
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_quarters() {
        let s = Spread::of([4.0, 1.0, 3.0, 2.0, f64::NAN]);
        assert_eq!((s.n, s.min, s.q1, s.median, s.q3, s.max), (4, 1.0, 1.75, 2.5, 3.25, 4.0));
        assert_eq!(Spread::of([7.0]).median, 7.0);
        assert_eq!(Spread::of([]).median, 0.0);
        assert_eq!(Spread::of([410.4, 410.4]).to_string(), "410 (410..410)");
        assert_eq!(Spread::of([1.314]).to_string(), "1.31 (1.31..1.31)");
    }
}
