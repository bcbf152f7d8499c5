//! Counts by size, as Prometheus wants them.

/// How often a figure was at most each bound. Bounds never change over a histogram's life.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    pub bounds: &'static [f64],
    /// One for each bound, not cumulated, and a last one for what is above them all.
    pub counts: Vec<u64>,
    pub sum: f64,
}

/// Seconds from a token on a GPU to a long answer on a small machine.
pub(crate) const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0];
/// Tokens, rows or nodes.
pub(crate) const COUNTS: &[f64] =
    &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0];

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn add(&mut self, value: f64) {
        self.add_times(value, 1);
    }

    pub fn add_times(&mut self, value: f64, times: u64) {
        let at = self.bounds.partition_point(|b| *b < value);
        self.counts[at] += times;
        self.sum += value * times as f64;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// `None` while nothing was counted.
    pub fn mean(&self) -> Option<f64> {
        let n = self.count();
        (n > 0).then(|| self.sum / n as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_under_the_first_bound_it_does_not_exceed() {
        let mut h = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 2.0, 9.0].into_iter().for_each(|v| h.add(v));
        assert_eq!((h.counts.as_slice(), h.count(), h.sum), ([2, 2, 1].as_slice(), 5, 14.0));
        assert_eq!(h.mean(), Some(2.8));
        assert_eq!(Histogram::new(&[1.0]).mean(), None);
    }
}
