//! Axis positions.

/// Maps values to a range of the chart, linearly or logarithmically.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Maps `low..high` to `from..to`. `low` and `high` must differ.
    pub(super) fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        Self { low, high, from, to, log: false }
    }

    /// Maps `low..high`, both positive, logarithmically to `from..to`.
    pub(super) fn log(low: f64, high: f64, from: f64, to: f64) -> Self {
        Self { low: low.log10(), high: high.log10(), from, to, log: true }
    }

    pub(super) fn at(self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// Ticks from 0 in steps of 1, 2 or 5 times a power of ten, up to the first one that is at least `high`.
pub(super) fn steps(high: f64, most: usize) -> Vec<f64> {
    if !high.is_finite() || high <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = high / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999_999);
    let step = step.unwrap_or(10.0 * power);
    let count = (high / step - 1e-9).ceil().max(1.0) as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

/// Powers of ten that enclose these values; at least one decade.
pub(super) fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite() && *value > 0.0) {
        low = low.min(value);
        high = high.max(value);
    }
    if low > high {
        return (-1, 0);
    }
    let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (low, high.max(low + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_enclose_the_data() {
        let check = |high, expect: &[f64]| assert_eq!(steps(high, 5), expect, "{high}");
        check(100.0, &[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        check(101.0, &[0.0, 50.0, 100.0, 150.0]);
        check(0.0, &[0.0, 1.0]);
        check(f64::NAN, &[0.0, 1.0]);
        assert_eq!(decades([3e-7, 2e-2, 0.0, f64::NAN].into_iter()), (-7, -1));
        assert_eq!(decades([1e-3].into_iter()), (-3, -2));
        assert_eq!(decades([].into_iter()), (-1, 0));
    }

    #[test]
    fn scales_map_end_points_to_end_points() {
        let check = |got: f64, expect: f64| assert!((got - expect).abs() < 1e-9, "{got} {expect}");
        check(Scale::linear(0.0, 100.0, 10.0, 30.0).at(50.0), 20.0);
        check(Scale::log(1e-4, 1.0, 0.0, 40.0).at(1e-2), 20.0);
    }
}
