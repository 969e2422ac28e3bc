//! Errors of one output relative to its reference.

use ops::{DType, Tensor};

/// The agreement of an output with its reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// ||out - ref|| / ||ref||; the maximum over separately compared parts.
    pub relative: f64,
    /// Largest |out - ref|.
    pub max: f64,
    /// Largest |out - ref| as a multiple of the part's largest |ref|.
    pub worst: f64,
}

impl Agreement {
    const EXACT: Self = Self { relative: 0.0, max: 0.0, worst: 0.0 };

    /// The element-wise maximum of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            relative: self.relative.max(other.relative),
            max: self.max.max(other.max),
            worst: self.worst.max(other.worst),
        }
    }
}

/// Compares an output with its reference in `parts` equal parts, each by its own norm: the slots of a state pool differ
/// by thirty orders of magnitude, and a single norm would only see the largest.
///
/// Integers must be equal. Infinities must be at the same positions (a row with no visible key has LSE = -inf). A part
/// whose reference is all zero must be exactly zero.
///
/// # Errors
/// One sentence: a wrong shape, a NaN, an infinity on one side only, different integers.
pub fn compare(out: &Tensor, reference: &Tensor, parts: usize) -> Result<Agreement, String> {
    if out.shape() != reference.shape() {
        return Err(format!("has shape {:?}, the reference {:?}", out.shape(), reference.shape()));
    }
    let (got, want) = (out.to_f64(), reference.to_f64());
    if out.dtype() == DType::I32 {
        return match got.iter().zip(&want).position(|(got, want)| got != want) {
            None => Ok(Agreement::EXACT),
            Some(at) => Err(format!("is {} at element {at}, the reference {}", got[at], want[at])),
        };
    }
    let size = (got.len() / parts.max(1)).max(1);
    let mut all = Agreement::EXACT;
    for (part, (got, want)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        all = all.and(
            compare_part(got, want)
                .map_err(|(at, what)| format!("{what} at element {}", part * size + at))?,
        );
    }
    Ok(all)
}

fn compare_part(got: &[f64], want: &[f64]) -> Result<Agreement, (usize, String)> {
    let (mut error, mut norm, mut max, mut largest) = (0f64, 0f64, 0f64, 0f64);
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        if got.is_nan() {
            return Err((at, "is NaN (not written, or computed as NaN)".to_owned()));
        }
        if want.is_nan() {
            return Err((at, "has a reference that is itself NaN".to_owned()));
        }
        if got.is_infinite() || want.is_infinite() {
            if got != want {
                return Err((at, format!("is {got}, the reference {want}")));
            }
            continue;
        }
        // A value below float32's range (a state that has decayed to 1e-50) is not an error.
        let difference =
            Some((got - want).abs()).filter(|x| *x >= f64::from(f32::MIN_POSITIVE)).unwrap_or(0.0);
        error += difference * difference;
        norm += want * want;
        max = max.max(difference);
        largest = largest.max(want.abs());
    }
    let ratio = |error: f64, size: f64| match (error == 0.0, size == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => error / size,
    };
    Ok(Agreement { relative: ratio(error.sqrt(), norm.sqrt()), max, worst: ratio(max, largest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(out: &[f64], reference: &[f64], parts: usize, expect: Result<f64, &str>) {
        let (out, reference) = (
            Tensor::new(&[out.len()], out.to_vec()),
            Tensor::new(&[reference.len()], reference.to_vec()),
        );
        match (compare(&out, &reference, parts), expect) {
            (Ok(got), Ok(want)) => {
                assert!(got.relative == want || (got.relative - want).abs() < 1e-12, "{got:?}")
            }
            (got, want) => assert_eq!(got.map(|_| 0.0), want.map_err(str::to_owned)),
        }
    }

    #[test]
    fn nan_never_agrees_and_infinities_must_match() {
        const INF: f64 = f64::INFINITY;
        check(&[3.0, 4.0], &[3.0, 4.0], 1, Ok(0.0));
        check(&[3.0, 4.5], &[3.0, 4.0], 1, Ok(0.1));
        check(
            &[3.0, f64::NAN],
            &[3.0, 4.0],
            1,
            Err("is NaN (not written, or computed as NaN) at element 1"),
        );
        check(
            &[0.0, f64::NAN],
            &[0.0, f64::NAN],
            1,
            Err("is NaN (not written, or computed as NaN) at element 1"),
        );
        check(&[-INF, 1.0], &[-INF, 1.0], 1, Ok(0.0));
        check(&[1.0, -INF], &[1.0, 2.0], 1, Err("is -inf, the reference 2 at element 1"));
        check(&[1.0, 2.0], &[1.0, -INF], 1, Err("is 2, the reference -inf at element 1"));
        check(&[1e-30], &[0.0], 1, Ok(INF));
        check(&[0.0], &[1e-50], 1, Ok(0.0));
        check(&[], &[], 3, Ok(0.0));
    }

    #[test]
    fn large_values_do_not_hide_a_wrong_small_part() {
        check(&[1e30, 1e30, 1.0, 2.0], &[1e30, 1e30, 1.0, 1.0], 1, Ok(0.0));
        check(&[1e30, 1e30, 1.0, 2.0], &[1e30, 1e30, 1.0, 1.0], 2, Ok(1.0 / 2f64.sqrt()));
    }
}
