//! The confidence interval of a median.

use facts::CompactSort;
use facts::{BenchRow, TimingSpread};

/// The normal deviate of a two-sided confidence of 99 %.
const DEVIATE: f64 = 2.576;

/// The median of a row and the confidence interval of the true median.
///
/// With samples: ranks n/2 ± z·√n/2 of the sorted samples, which holds for any distribution (Conover, Practical
/// Nonparametric Statistics, 3.2). With few samples the interval is their whole range.
pub(super) fn spread(row: &BenchRow) -> TimingSpread {
    let mut sorted = row.samples_ms.clone();
    sorted.compact_sort_by(f64::total_cmp);
    let count = sorted.len();
    let (low_ms, high_ms) = match count {
        0 => {
            let tail = (row.p95_ms - row.median_ms).abs();
            (row.median_ms - tail, row.median_ms + tail)
        }
        _ => {
            let half = DEVIATE * (count as f64).sqrt() / 2.0;
            let middle = (count as f64 - 1.0) / 2.0;
            let low = (middle - half).floor().max(0.0) as usize;
            let high = ((middle + half).ceil() as usize).min(count - 1);
            (sorted[low], sorted[high])
        }
    };
    TimingSpread { median_ms: row.median_ms, low_ms, high_ms }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use facts::{BackendKind, RooflineBound};

    /// A timed row with these samples; its median is the middle one.
    pub(crate) fn row(case: &str, samples_ms: &[f64]) -> BenchRow {
        let mut sorted = samples_ms.to_vec();
        sorted.compact_sort_by(f64::total_cmp);
        BenchRow {
            op: "ssd".into(),
            case: case.into(),
            shape: [("T".to_owned(), 8192)].into(),
            dtype: "bf16".into(),
            backend: BackendKind::Cuda,
            variant: "chunk".into(),
            samples: samples_ms.len() as u32,
            replays: 1,
            samples_ms: samples_ms.to_vec(),
            median_ms: sorted[sorted.len() / 2],
            p95_ms: sorted[sorted.len() - 1],
            gflops: 1.0,
            gbps: 1.0,
            bound: RooflineBound::Memory,
            pct_of_ceiling: None,
            against: None,
            cache_resident: false,
            verified_rel_err: 1e-3,
            reference_ms: None,
            dense_ms: None,
            peer: None,
            evidence: String::new(),
        }
    }

    #[test]
    fn interval_narrows_with_samples_and_stays_within_them() {
        let check = |count: usize, expect: (f64, f64)| {
            let samples: Vec<f64> = (0..count).map(|i| i as f64).collect();
            let got = spread(&row("x", &samples));
            assert_eq!((got.low_ms, got.high_ms), expect, "{count} samples");
        };
        check(1, (0.0, 0.0));
        check(5, (0.0, 4.0));
        check(101, (37.0, 63.0));
        // 99 % of ranks 0..=999: 499.5 ± 40.7.
        check(1000, (458.0, 541.0));
        let mut bare = row("x", &[2.0]);
        bare.samples_ms.clear();
        bare.p95_ms = 2.5;
        let got = spread(&bare);
        assert_eq!((got.low_ms, got.high_ms), (1.5, 2.5), "without samples, as far as p95");
    }
}
