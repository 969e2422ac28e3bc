//! The least time that a run's own ceilings allow, as curves in a picture of times.

use crate::plot::Series;
use facts::{BenchRow, Ceilings};
use std::collections::BTreeMap;

/// Milliseconds over x that moving an op's bytes takes at the rate of a copy, and its arithmetic at the rate of a matrix
/// product. `rows` are those of one curve, by x; bytes and operations are the op's, so any variant's rows give the same.
pub(super) fn floors(rows: &BTreeMap<u64, &BenchRow>, ceilings: &[Ceilings]) -> Vec<Series> {
    let of_row = |row: &BenchRow| ceilings.iter().find(|ceilings| ceilings.backend == row.backend);
    // Rates are counts over the median, so counts over a ceiling are the median times rate over ceiling.
    let bytes = |row: &BenchRow| Some(row.median_ms * row.gbps / of_row(row)?.copy_gbps);
    let operations = |row: &BenchRow| {
        let gemm = &of_row(row)?.gemm_gflops;
        let rate = if row.dtype == "f32" { gemm.f32 } else { gemm.bf16 };
        Some(row.median_ms * row.gflops / rate?)
    };
    let series = |label: &str, value: &dyn Fn(&BenchRow) -> Option<f64>| Series {
        label: label.to_owned(),
        points: rows.iter().filter_map(|(x, row)| Some((*x as f64, value(row)?))).collect(),
    };
    let mut floors = vec![
        series("floor: its bytes at the copy's rate", &bytes),
        series("floor: its operations at the matrix product's rate", &operations),
    ];
    floors.retain(|series| !series.points.is_empty());
    floors
}
