//! Differences of the times and ceilings of two runs.

use super::spread::spread;
use super::unreliable_times::UnreliableTimes;
use facts::CompactSort;
use facts::{
    BackendKind, BenchReport, BenchRow, CeilingChange, CeilingKind, Ceilings, Change, SpeedChange,
    TimingSpread,
};

/// Every kernel that either run timed: regressions first, the largest first.
pub(super) fn changes(
    base: Option<&BenchReport>,
    run: Option<&BenchReport>,
    tolerance_pct: f64,
    unreliable: &UnreliableTimes,
) -> Vec<SpeedChange> {
    let (before, after) = (base.map_or(&[][..], |base| &base.rows), run.map(|run| &run.rows));
    let mut after: Vec<&BenchRow> = after.into_iter().flatten().collect();
    let mut changes = Vec::new();
    for old in before {
        let place = after.iter().position(|new| same_kernel(old, new));
        let new = place.map(|place| after.remove(place));
        changes.push(mark_disturbed(change(Some(old), new, tolerance_pct), unreliable));
    }
    changes.extend(after.iter().map(|new| change(None, Some(new), tolerance_pct)));
    let key = |change: &SpeedChange| (rank(change.change), -change.change_pct.unwrap_or(0.0));
    changes.compact_sort_by(|a, b| {
        let ((first, by), (second, than)) = (key(a), key(b));
        first.cmp(&second).then(by.total_cmp(&than))
    });
    changes
}

/// Marks the change as unclear if a run was disturbed. Equal times stay equal, unless only the base was slowed down: an
/// equally slow run then hides a regression.
fn mark_disturbed(change: SpeedChange, unreliable: &UnreliableTimes) -> SpeedChange {
    let (base, run) = unreliable.on(change.backend);
    let disturbed = match change.change {
        Change::Slower | Change::Faster => base || run,
        Change::Same => base && !run,
        Change::Unclear | Change::Gone | Change::New => false,
    };
    let conclusion = if disturbed { Change::Unclear } else { change.change };
    SpeedChange { change: conclusion, disturbed, ..change }
}

/// Whether both rows time the same case on the same backend and peer. The variant may differ, which is reported.
fn same_kernel(a: &BenchRow, b: &BenchRow) -> bool {
    // A peer's variant is its name. Its package version may differ; that is listed in the surroundings.
    let peer = |row: &BenchRow| row.peer.as_ref().map(|_| row.variant.clone());
    (&a.op, &a.case, &a.shape) == (&b.op, &b.case, &b.shape)
        && (&a.dtype, a.backend, peer(a)) == (&b.dtype, b.backend, peer(b))
}

fn change(base: Option<&BenchRow>, run: Option<&BenchRow>, tolerance_pct: f64) -> SpeedChange {
    let (before, after) = (base.map(spread), run.map(spread));
    let change_pct = before
        .zip(after)
        .map(|(before, after)| (after.median_ms / before.median_ms - 1.0) * 100.0)
        .filter(|percent| percent.is_finite());
    let any = base.or(run);
    let word = |of: fn(&BenchRow) -> &String| any.map(of).cloned().unwrap_or_default();
    SpeedChange {
        op: word(|row| &row.op),
        case: word(|row| &row.case),
        dtype: word(|row| &row.dtype),
        backend: any.map_or(BackendKind::Cpu, |row| row.backend),
        peer: any.and_then(|row| row.peer.clone()),
        base_variant: base.map(|row| row.variant.clone()),
        run_variant: run.map(|row| row.variant.clone()),
        base: before,
        run: after,
        change_pct,
        change: judge(before, after, change_pct, tolerance_pct),
        disturbed: false,
    }
}

fn judge(
    before: Option<TimingSpread>,
    after: Option<TimingSpread>,
    change_pct: Option<f64>,
    tolerance_pct: f64,
) -> Change {
    match (before, after, change_pct) {
        (Some(_), None, _) => Change::Gone,
        (None, _, _) => Change::New,
        (Some(_), Some(_), Some(percent)) if percent.abs() <= tolerance_pct => Change::Same,
        (Some(before), Some(after), Some(_)) if after.low_ms > before.high_ms => Change::Slower,
        (Some(before), Some(after), Some(_)) if after.high_ms < before.low_ms => Change::Faster,
        (Some(_), Some(_), _) => Change::Unclear,
    }
}

/// The order of changes in a list, worst first.
fn rank(change: Change) -> u8 {
    match change {
        Change::Slower => 0,
        Change::Gone => 1,
        Change::Unclear => 2,
        Change::Faster => 3,
        Change::New => 4,
        Change::Same => 5,
    }
}

/// The ceilings that both runs measured.
pub(super) fn ceilings(
    base: Option<&BenchReport>,
    run: Option<&BenchReport>,
) -> Vec<CeilingChange> {
    let (Some(base), Some(run)) = (base, run) else { return Vec::new() };
    let mut changes = Vec::new();
    for before in &base.ceilings {
        let of_backend = |after: &&Ceilings| after.backend == before.backend;
        let Some(after) = run.ceilings.iter().find(of_backend) else { continue };
        for kind in CeilingKind::ALL {
            if let (Some(base), Some(run)) = (before.rate(kind), after.rate(kind)) {
                let what = format!("{} on {}", kind.words(), before.backend);
                changes.push(CeilingChange { what, base, run, unit: kind.unit().to_owned() });
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::row;
    use facts::{GemmCeilings, SCHEMA};

    fn bench(rows: Vec<BenchRow>) -> BenchReport {
        let gemm_gflops = GemmCeilings { f32: None, bf16: Some(7e5) };
        let backend = BackendKind::Cuda;
        BenchReport {
            schema: SCHEMA,
            ceilings: vec![Ceilings {
                backend,
                copy_gbps: 4000.0,
                gemm_gflops,
                gemm_by: None,
                read_gbps: None,
                raised: Vec::new(),
            }],
            rows,
            not_timed: Vec::new(),
            not_applicable: Vec::new(),
            not_run: Vec::new(),
            conditions: Vec::new(),
        }
    }

    fn around(middle: f64, width: f64) -> Vec<f64> {
        (0..101).map(|i| middle + width * (f64::from(i) - 50.0) / 50.0).collect()
    }

    #[test]
    fn changes_exceed_the_tolerance_and_the_confidence_intervals() {
        let check = |before: &[f64], after: &[f64], expect: Change| {
            let (base, run) = (bench(vec![row("x", before)]), bench(vec![row("x", after)]));
            let got = changes(Some(&base), Some(&run), 5.0, &UnreliableTimes::default());
            assert_eq!((got.len(), got[0].change), (1, expect), "{:?}", got[0]);
        };
        let quiet = around(1.0, 0.01);
        check(&quiet, &quiet, Change::Same);
        check(&quiet, &around(1.04, 0.01), Change::Same);
        check(&quiet, &around(1.2, 0.01), Change::Slower);
        check(&quiet, &around(0.8, 0.01), Change::Faster);
        // The median changed by a fifth, but the samples vary too much.
        check(&quiet, &around(1.2, 1.0), Change::Unclear);
        check(&around(1.0, 0.9), &around(0.8, 0.7), Change::Unclear);
        check(&[1.0, 9.0, 1.0], &[2.0, 0.5, 2.0], Change::Unclear);
        check(&quiet, &[f64::NAN; 3], Change::Unclear);
    }

    #[test]
    fn rows_are_paired_by_case_and_sorted_worst_first() {
        let mut other_variant = row("b", &around(2.0, 0.01));
        other_variant.variant = "chunk.hopper".into();
        let mut other_shape = row("e", &[1.0]);
        other_shape.shape.insert("T".into(), 64);
        let mut peer = row("a", &[1.0]);
        peer.peer = Some("mamba_ssm 2.3".into());
        let base = bench(vec![
            row("a", &around(1.0, 0.01)),
            row("b", &around(1.0, 0.01)),
            row("c", &[1.0]),
            row("e", &[1.0]),
        ]);
        let run = bench(vec![row("a", &around(1.0, 0.01)), other_variant, peer, other_shape]);
        let got = changes(Some(&base), Some(&run), 5.0, &UnreliableTimes::default());
        let found: Vec<(&str, Change)> =
            got.iter().map(|change| (change.case.as_str(), change.change)).collect();
        use Change::{Gone, New, Same, Slower};
        assert_eq!(
            found,
            [("b", Slower), ("c", Gone), ("e", Gone), ("a", New), ("e", New), ("a", Same)]
        );
        assert_eq!(got[0].base_variant.as_deref(), Some("chunk"));
        assert_eq!(got[0].run_variant.as_deref(), Some("chunk.hopper"));
        assert!((got[0].change_pct.unwrap_or(0.0) - 100.0).abs() < 1e-9);
        assert_eq!(changes(None, None, 5.0, &UnreliableTimes::default()), []);
        assert_eq!(ceilings(Some(&base), Some(&run)).len(), 2);
    }
}
