//! Times of each GPU relative to the median of the other GPUs. A median that included the GPU itself would hide half of
//! the difference between two GPUs.

use super::GpuRows;
use facts::CompactSort;
use facts::{BackendKind, BenchReport, BenchRow, CeilingKind, CeilingRatio, GpuSpeed, RowRatio};
use std::collections::BTreeMap;

/// Maximum number of slowest rows that are listed.
const SLOWEST: usize = 8;

/// Rows of firstlight's own kernels on a backend.
pub(super) fn own(bench: &BenchReport, backend: BackendKind) -> impl Iterator<Item = &BenchRow> {
    bench.rows.iter().filter(move |row| row.peer.is_none() && row.backend == backend)
}

pub(super) fn relative_speeds(gpus: &[&GpuRows<'_>]) -> Vec<GpuSpeed> {
    gpus.iter().enumerate().map(|(at, gpu)| of_one(gpu, &others(gpus, at))).collect()
}

fn others<'a, 'b>(gpus: &[&'a GpuRows<'b>], at: usize) -> Vec<&'a GpuRows<'b>> {
    gpus.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, gpu)| *gpu).collect()
}

fn of_one(gpu: &GpuRows<'_>, others: &[&GpuRows<'_>]) -> GpuSpeed {
    let mut rows: Vec<(&str, RowRatio)> = Vec::new();
    for row in gpu.bench.into_iter().flat_map(|bench| own(bench, gpu.backend)) {
        let theirs = others.iter().filter_map(|other| {
            let same = |other: &&BenchRow| key(other) == key(row);
            Some(own(other.bench?, gpu.backend).find(same)?.median_ms)
        });
        let Some(usual) = median(theirs.collect()).filter(|usual| *usual > 0.0) else { continue };
        let (op, case, dtype, variant, _) = key(row);
        let name = format!("{op} {case} {dtype} {variant}");
        let ratio = row.median_ms / usual;
        rows.push((op, RowRatio { row: name, millis: row.median_ms, usual_millis: usual, ratio }));
    }
    let mut by_op: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (op, row) in &rows {
        by_op.entry((*op).to_owned()).or_default().push(row.ratio);
    }
    let all = rows.iter().map(|(_, row)| row.ratio).collect();
    let count = rows.len() as u32;
    let mut slowest: Vec<RowRatio> = rows.into_iter().map(|(_, row)| row).collect();
    slowest.compact_sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    slowest.truncate(SLOWEST);
    GpuSpeed {
        gpu: gpu.part.index,
        rows: count,
        median: median(all),
        by_op: by_op.into_iter().filter_map(|(op, all)| Some((op, median(all)?))).collect(),
        slowest,
        ceilings: CeilingKind::ALL
            .into_iter()
            .filter_map(|ceiling| of_ceiling(ceiling, gpu, others))
            .collect(),
    }
}

fn of_ceiling(
    ceiling: CeilingKind,
    gpu: &GpuRows<'_>,
    others: &[&GpuRows<'_>],
) -> Option<CeilingRatio> {
    let of = |gpu: &GpuRows<'_>| {
        let ceilings = gpu.bench?.ceilings.iter().find(|of| of.backend == gpu.backend)?;
        ceilings.rate(ceiling).filter(|rate| *rate > 0.0)
    };
    let (rate, usual) = (of(gpu)?, median(others.iter().filter_map(|other| of(other)).collect())?);
    Some(CeilingRatio { ceiling, rate, usual, ratio: usual / rate })
}

type Key<'a> = (&'a str, &'a str, &'a str, &'a str, &'a BTreeMap<String, u64>);

fn key(row: &BenchRow) -> Key<'_> {
    (&row.op, &row.case, &row.dtype, &row.variant, &row.shape)
}

/// The median: the middle value, or the mean of the two middle values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.compact_sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::records::{part, timed};

    fn speed(benches: &[BenchReport]) -> Vec<GpuSpeed> {
        let gpus: Vec<GpuRows<'_>> = (0..)
            .zip(benches)
            .map(|(index, bench)| GpuRows {
                backend: BackendKind::Cuda,
                part: part(index),
                parity: &[],
                bench: Some(bench),
            })
            .collect();
        relative_speeds(&gpus.iter().collect::<Vec<_>>())
    }

    #[test]
    fn ratios_are_relative_to_the_other_gpus() {
        let usual = [("ssd", "a", 1.0), ("ssd", "b", 2.0), ("kda", "a", 4.0)];
        let slow = usual.map(|(op, case, millis)| (op, case, millis * 1.1));
        let two = speed(&[timed(&usual, 4000.0), timed(&slow, 3600.0)]);
        let medians: Vec<f64> = two.iter().filter_map(|gpu| gpu.median).collect();
        assert!((medians[0] - 1.0 / 1.1).abs() < 1e-9 && (medians[1] - 1.1).abs() < 1e-9);
        assert_eq!(two[1].rows, 3);
        assert!((two[1].by_op["kda"] - 1.1).abs() < 1e-9);
        assert!((two[1].ceilings[0].ratio - 4000.0 / 3600.0).abs() < 1e-9);
        // One slow kernel does not make the GPU slow, and is listed first.
        let mut odd = usual;
        odd[1].2 = 5.0;
        let three = speed(&[timed(&usual, 1.0), timed(&odd, 1.0), timed(&usual, 1.0)]);
        assert_eq!((three[1].median, three[0].median), (Some(1.0), Some(1.0)));
        assert_eq!(three[1].slowest[0].row, "ssd b bf16 chunk");
        assert_eq!(three[1].slowest[0].ratio, 2.5);
    }

    #[test]
    fn rows_without_a_sibling_are_not_compared() {
        let got = speed(&[timed(&[("ssd", "a", 1.0)], 1.0), timed(&[("ssd", "b", 1.0)], 0.0)]);
        assert_eq!((got[0].rows, got[0].median, got[0].ceilings.len()), (0, None, 0));
    }
}
