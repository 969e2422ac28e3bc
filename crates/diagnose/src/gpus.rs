//! Compares the GPUs of a check: GPUs whose outputs differ from the majority, and slow GPUs.

mod bits;
mod speed;

use facts::{BackendKind, BenchReport, GpuKind, GpuPart, GpusReport, ParityRow, SCHEMA, Status};

/// The results of a check on one GPU or processor.
#[derive(Debug, Clone)]
pub struct GpuRows<'a> {
    /// The device and its metadata; the comparison fills in the counts of rows.
    pub part: GpuPart,
    /// Its backend; rows of other backends are ignored.
    pub backend: BackendKind,
    /// Its parity rows.
    pub parity: &'a [ParityRow],
    /// Its timings, if it was timed.
    pub bench: Option<&'a BenchReport>,
}

impl GpuRows<'_> {
    /// The parity rows of firstlight's own kernels on it.
    fn own(&self) -> impl Iterator<Item = &ParityRow> {
        let own = |row: &&ParityRow| row.peer.is_none() && row.backend == self.backend;
        self.parity.iter().filter(own)
    }

    fn counted(&self) -> GpuPart {
        let count = |wanted: &[Status]| {
            self.own().filter(|row| wanted.contains(&row.status)).count() as u32
        };
        let timed = self.bench.map_or(0, |bench| speed::own(bench, self.backend).count() as u32);
        GpuPart {
            passed: count(&[Status::Pass]),
            failed: count(&[Status::Fail, Status::Fallback]),
            timed,
            ..self.part.clone()
        }
    }
}

/// Compares the GPUs of each name with each other.
pub fn gpus(rows: &[GpuRows<'_>]) -> GpusReport {
    let mut names: Vec<&str> = Vec::new();
    for GpuRows { part, .. } in rows {
        if !names.contains(&part.name.as_str()) {
            names.push(&part.name);
        }
    }
    let kind = |name: &str| {
        let alike: Vec<&GpuRows<'_>> = rows.iter().filter(|gpu| gpu.part.name == name).collect();
        (alike.len() > 1).then(|| {
            let vote = bits::vote(&alike);
            GpuKind {
                name: name.to_owned(),
                gpus: alike.iter().map(|gpu| gpu.part.index).collect(),
                compared: vote.compared,
                varying: vote.varying,
                differing: vote.differing,
                speed: speed::relative_speeds(&alike),
            }
        })
    };
    GpusReport {
        schema: SCHEMA,
        gpus: rows.iter().map(GpuRows::counted).collect(),
        kinds: names.into_iter().filter_map(kind).collect(),
        fabric: None,
        sustained: None,
    }
}

/// GPU records for tests.
#[cfg(test)]
pub(crate) mod records {
    use super::*;
    use facts::{Ceilings, GemmCeilings, RooflineBound};
    use std::collections::BTreeMap;

    pub(crate) fn part(index: u32) -> GpuPart {
        GpuPart { index, name: "NVIDIA H200".into(), ..GpuPart::default() }
    }

    pub(crate) fn checked(case: &str, bits: Option<&str>) -> ParityRow {
        ParityRow {
            op: "ssd".into(),
            case: case.into(),
            backend: BackendKind::Cuda,
            variant: "chunk".into(),
            dtype: "bf16".into(),
            status: Status::Pass,
            reason: String::new(),
            rel_err: Some(1e-4),
            max_err: Some(1e-4),
            tolerance: 5e-3,
            launches: 1,
            millis: 1.0,
            peer: None,
            evidence: String::new(),
            bits: bits.map(str::to_owned),
        }
    }

    /// A bench report with these median times in milliseconds, and a copy ceiling in GB/s.
    pub(crate) fn timed(millis: &[(&str, &str, f64)], copy_gbps: f64) -> BenchReport {
        let row = |&(op, case, millis): &(&str, &str, f64)| facts::BenchRow {
            op: op.into(),
            case: case.into(),
            shape: BTreeMap::new(),
            dtype: "bf16".into(),
            backend: BackendKind::Cuda,
            variant: "chunk".into(),
            samples: 5,
            replays: 1,
            samples_ms: Vec::new(),
            median_ms: millis,
            p95_ms: millis,
            gflops: 1.0,
            gbps: 1.0,
            bound: RooflineBound::Memory,
            pct_of_ceiling: None,
            against: None,
            cache_resident: false,
            verified_rel_err: 1e-4,
            reference_ms: None,
            dense_ms: None,
            peer: None,
            evidence: String::new(),
        };
        BenchReport {
            schema: SCHEMA,
            ceilings: vec![Ceilings {
                backend: BackendKind::Cuda,
                copy_gbps,
                gemm_gflops: GemmCeilings { f32: None, bf16: None },
                read_gbps: None,
                gemm_by: None,
                raised: Vec::new(),
            }],
            rows: millis.iter().map(row).collect(),
            not_timed: Vec::new(),
            not_applicable: Vec::new(),
            not_run: Vec::new(),
            conditions: Vec::new(),
        }
    }
}
