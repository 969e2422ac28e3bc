//! Compares times with ceilings: which ceiling limits a call, whether its data is cached, and how a faster kernel
//! raises a ceiling.

use device::{CacheSizes, Isa};
use facts::{BackendKind, BenchRow, CeilingKind, Ceilings, RaisedCeiling, RooflineBound};
use ops::{DType, Problem};

/// Without a measured matrix product, calls with more operations per byte than this have no ceiling: every recent GPU
/// computes at least as many in the time of moving a byte.
const FLOPS_OF_A_BYTE: f64 = 100.0;
/// A call that writes less than this share of its traffic counts as reading.
const READS: f64 = 1.0 / 16.0;

/// The limit of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limit {
    pub(crate) bound: RooflineBound,
    /// `None` if that ceiling was not measured.
    pub(crate) against: Option<CeilingKind>,
    pub(crate) cache_resident: bool,
}

impl Limit {
    /// The ceiling with the longest minimum time for a call that took `seconds`.
    pub(crate) fn of(
        problem: &dyn Problem,
        (variant, backend): (&str, BackendKind),
        (ceilings, caches): (&Ceilings, CacheSizes),
        seconds: f64,
    ) -> Self {
        let (flops, bytes) = (problem.flops(), problem.bytes());
        // A CPU variant that widens to float32 is compared with float32 arithmetic, whatever its storage type. Every
        // GPU variant multiplies in its storage type, and both 16-bit types have the same rate.
        let on_gpu = backend == BackendKind::Cuda;
        let dots_in_bf16 =
            problem.dtype() == DType::Bf16 && variant.ends_with(Isa::Avx512Bf16.as_str());
        let gemm =
            if on_gpu || dots_in_bf16 { CeilingKind::GemmBf16 } else { CeilingKind::GemmF32 };
        let memory = match ceilings.read_gbps {
            Some(_) if written(problem) < READS * bytes => CeilingKind::Read,
            _ => CeilingKind::Copy,
        };
        let rate = ceilings.rate(memory).unwrap_or(f64::NAN);
        let moving = bytes / (rate * 1e9);
        let computing = ceilings.rate(gemm).map(|rate| flops / (rate * 1e9));
        if on_gpu && computing.is_none() && flops > FLOPS_OF_A_BYTE * bytes {
            return Self { bound: RooflineBound::Compute, against: None, cache_resident: false };
        }
        if computing.is_some_and(|computing| computing > moving) {
            return Self {
                bound: RooflineBound::Compute,
                against: Some(gemm),
                cache_resident: false,
            };
        }
        let cache_resident = bytes <= caches.inner_bytes as f64
            || (bytes <= caches.outer_bytes as f64 && seconds < moving);
        Self { bound: RooflineBound::Memory, against: Some(memory), cache_resident }
    }
}

/// Bytes written by a call.
fn written(problem: &dyn Problem) -> f64 {
    let bytes = |spec: &ops::OutputSpec| {
        spec.shape.iter().product::<usize>() as f64 * spec.dtype.bytes() as f64
    };
    problem.outputs().iter().map(bytes).sum()
}

/// The faster of two measurements of each ceiling.
pub(crate) fn faster(mut one: Ceilings, other: &Ceilings) -> Ceilings {
    for kind in CeilingKind::ALL {
        let rates = [one.rate(kind), other.rate(kind)].into_iter().flatten();
        if let Some(rate) = rates.reduce(f64::max) {
            one.set_rate(kind, rate);
        }
    }
    one
}

/// Compares rows with measured ceilings. A ceiling that a verified kernel exceeded is raised to the kernel's rate, and
/// marked.
pub(crate) fn hold(measured: &Ceilings, rows: &mut [BenchRow]) -> Ceilings {
    let mut ceilings = measured.clone();
    for kind in CeilingKind::ALL {
        let held = |row: &&BenchRow| {
            row.backend == measured.backend && row.against == Some(kind) && !row.cache_resident
        };
        let fastest =
            rows.iter().filter(held).max_by(|a, b| reached(a, kind).total_cmp(&reached(b, kind)));
        if let (Some(row), Some(rate)) = (fastest, measured.rate(kind))
            && reached(row, kind) > rate
        {
            let by = format!("{} {} {} {}", row.op, row.case, row.dtype, row.variant);
            ceilings.raised.push(RaisedCeiling { ceiling: kind, measured: rate, by });
            ceilings.set_rate(kind, reached(row, kind));
        }
    }
    for row in rows.iter_mut().filter(|row| row.backend == measured.backend) {
        let kind = row.against.filter(|_| !row.cache_resident);
        row.pct_of_ceiling = kind
            .and_then(|kind| Some(100.0 * reached(row, kind) / ceilings.rate(kind)?))
            // 100 is the fastest kernel itself, despite rounding.
            .map(|share| share.min(100.0));
    }
    ceilings
}

/// A row's rate of the ceiling's resource, in its unit.
fn reached(row: &BenchRow, kind: CeilingKind) -> f64 {
    match kind {
        CeilingKind::Copy | CeilingKind::Read => row.gbps,
        CeilingKind::GemmF32 | CeilingKind::GemmBf16 => row.gflops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{linear, rmsnorm};
    use facts::GemmCeilings;
    use std::collections::BTreeMap;

    const CEILINGS: Ceilings = Ceilings {
        backend: BackendKind::Cpu,
        copy_gbps: 50.0,
        gemm_gflops: GemmCeilings { f32: Some(200.0), bf16: None },
        read_gbps: Some(60.0),
        gemm_by: None,
        raised: Vec::new(),
    };

    fn row(case: &str, against: Option<CeilingKind>, gflops: f64, gbps: f64) -> BenchRow {
        BenchRow {
            op: "ssd".into(),
            case: case.into(),
            shape: BTreeMap::new(),
            dtype: "f32".into(),
            backend: BackendKind::Cpu,
            variant: "recurrent".into(),
            samples: 9,
            replays: 1,
            samples_ms: Vec::new(),
            median_ms: 1.0,
            p95_ms: 1.0,
            gflops,
            gbps,
            bound: RooflineBound::Memory,
            pct_of_ceiling: None,
            against,
            cache_resident: false,
            verified_rel_err: 0.0,
            reference_ms: None,
            dense_ms: None,
            peer: None,
            evidence: String::new(),
        }
    }

    #[test]
    fn no_time_beats_a_ceiling_and_a_raised_one_names_its_kernel() {
        // A recorded result: ssd decode-b64 at 116.3 % of a copy.
        let mut rows = vec![
            row("decode-b64", Some(CeilingKind::Copy), 1.0, 58.15),
            row("decode-b1", Some(CeilingKind::Copy), 1.0, 25.0),
            row("prefill", Some(CeilingKind::GemmF32), 100.0, 1.0),
            BenchRow { cache_resident: true, ..row("tiny", Some(CeilingKind::Copy), 1.0, 900.0) },
            row("unknown", None, 1.0, 900.0),
        ];
        let held = hold(&CEILINGS, &mut rows);
        let shares: Vec<Option<f64>> = rows
            .iter()
            .map(|row| row.pct_of_ceiling.map(|share| (share * 10.0).round() / 10.0))
            .collect();
        assert_eq!(shares, [Some(100.0), Some(43.0), Some(50.0), None, None]);
        let raised = RaisedCeiling {
            ceiling: CeilingKind::Copy,
            measured: 50.0,
            by: "ssd decode-b64 f32 recurrent".into(),
        };
        assert_eq!((held.copy_gbps, held.raised), (58.15, vec![raised]));
        // Comparing again, as after each workload, gives the same result.
        let before = rows.clone();
        hold(&CEILINGS, &mut rows);
        assert_eq!(rows, before);
    }

    #[test]
    fn reading_and_copying_have_ceilings_of_their_own_and_caches_none() {
        let none = CacheSizes { inner_bytes: 0, outer_bytes: 0 };
        let check = |(inputs, settings): (ops::TensorMap, ops::Settings),
                     op: &str,
                     caches,
                     seconds,
                     expect| {
            let (_, call) = crate::run::bind(op, &inputs, &settings).unwrap();
            let got =
                Limit::of(call.problem(), ("rows", BackendKind::Cpu), (&CEILINGS, caches), seconds);
            assert_eq!((got.against, got.cache_resident), expect, "{op} {caches:?}");
        };
        let step = || linear::in_proj(DType::F32, 1);
        check(step(), "linear", none, 1.0, (Some(CeilingKind::Read), false));
        let norm = || rmsnorm::mamba(DType::F32, 1, 64);
        check(norm(), "rmsnorm", none, 1.0, (Some(CeilingKind::Copy), false));
        // 70 MB of weights: in a distant cache of 100 MB it depends on the measured time whether they are cached; in a
        // nearer one they are.
        let far = CacheSizes { inner_bytes: 1 << 20, outer_bytes: 100 << 20 };
        check(step(), "linear", far, 1.0, (Some(CeilingKind::Read), false));
        check(step(), "linear", far, 1e-4, (Some(CeilingKind::Read), true));
        let near = CacheSizes { inner_bytes: 100 << 20, outer_bytes: 0 };
        check(step(), "linear", near, 1.0, (Some(CeilingKind::Read), true));
        check(step(), "linear", none, 1e-4, (Some(CeilingKind::Read), false));
    }
}
