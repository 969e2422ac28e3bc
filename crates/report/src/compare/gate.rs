//! Whether a run may pass a gate, compared with a baseline.

use super::parity::matters;
use super::surroundings::hardware;
use super::words::parity_lines;
use super::{ComparedRun, compare};
use crate::format;
use facts::{Change, GateOutcome, GateReport, ParityRow, RunState, SCHEMA, SpeedChange, Status};

/// Compares a run with a baseline. The gate fails if a check that passed no longer passes, a timed kernel is slower
/// than the baseline's beyond tolerance and noise or is not timed, there is a new error finding, or a run is not valid:
/// it is incomplete, its files were edited, or it has nothing in common with the other. A change that the samples leave
/// unclear is listed and is not a failure. If nothing fails but a run was disturbed, so that its times are in doubt,
/// the gate is neither passed nor failed.
pub fn gate(
    run: &ComparedRun<'_>,
    baseline: &ComparedRun<'_>,
    tolerance_pct: f64,
    any_machine: bool,
) -> GateReport {
    let comparison = compare(baseline, run, tolerance_pct);
    let mut failures = Vec::new();
    for recorded in [baseline, run] {
        let incomplete =
            recorded.manifest.is_some_and(|manifest| manifest.state == RunState::Incomplete);
        if incomplete {
            failures.push(format!("{} is incomplete", recorded.name));
        }
        for file in recorded.edited {
            let name = recorded.name;
            failures.push(format!("{file} of {name} is not what it was when the run ended"));
        }
    }
    if let (Some(was), Some(is)) = (hardware(baseline), hardware(run))
        && was != is
        && !any_machine
    {
        failures
            .push(format!("the baseline is of another machine: {was}, and this run is of {is}"));
    }
    let lost = parity_lines(comparison.parity.iter().filter(|change| matters(change)));
    failures.extend(lost.into_iter().map(|(_, line)| line));
    failures.extend(never_ran(run));
    let appeared =
        comparison.findings.iter().filter(|finding| finding.appeared && finding.is_error);
    failures.extend(appeared.map(|finding| {
        format!("found, and not in the baseline: {} ({})", finding.title, finding.rule)
    }));
    failures.extend(comparison.speed.iter().filter_map(timing));
    let held = |change: &&SpeedChange| matches!(change.change, Change::Same | Change::Faster);
    let timings = comparison.speed.iter().filter(held).count();
    let held = timings + comparison.parity_passed;
    let disturbed = comparison.speed.iter().any(|change| change.disturbed);
    if held == 0 && !disturbed {
        failures.push("nothing in this run can be compared with the baseline".to_owned());
    }
    let outcome = match failures.is_empty() {
        false => GateOutcome::Failed,
        true if disturbed => GateOutcome::Unclear,
        true => GateOutcome::Passed,
    };
    let passed = outcome == GateOutcome::Passed;
    GateReport { schema: SCHEMA, passed, outcome, failures, held, comparison }
}

/// Installed kernels of a run that failed and never ran, whether or not the baseline has the same gap.
fn never_ran(run: &ComparedRun<'_>) -> Vec<String> {
    let rows = run.parity.map_or(&[][..], |parity| &parity.rows);
    let mut seen: Vec<&str> = Vec::new();
    let mut failures = Vec::new();
    for row in rows.iter().filter(|row| row.peer.is_some() && row.status == Status::Fail) {
        let of = |other: &&ParityRow| other.peer.is_some() && other.variant == row.variant;
        let ran = rows.iter().filter(of).any(|row| row.launches > 0 || row.rel_err.is_some());
        if !ran && !seen.contains(&row.variant.as_str()) {
            seen.push(&row.variant);
            failures.push(format!("{} never ran in {}: {}", row.variant, run.name, row.reason));
        }
    }
    failures
}

fn timing(change: &SpeedChange) -> Option<String> {
    let who = change.peer.as_ref().map_or_else(String::new, |peer| format!(" of {peer}"));
    let name = format!("{} {} {} on {}{who}", change.op, change.case, change.dtype, change.backend);
    match (change.change, change.base, change.run) {
        (Change::Slower, Some(base), Some(run)) => Some(format!(
            "{name} takes {} instead of {}, {} longer",
            format::duration(run.median_ms),
            format::duration(base.median_ms),
            format::percent(change.change_pct.unwrap_or(f64::NAN))
        )),
        (Change::Gone, ..) => {
            Some(format!("{name} was timed in the baseline and is not in this run"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::row;
    use crate::conditions::tests::conditions;
    use facts::{
        BackendKind, BenchReport, BenchRow, Ceilings, Conditions, GemmCeilings, ParityReport,
    };

    fn bench(rows: Vec<BenchRow>) -> BenchReport {
        let gemm_gflops = GemmCeilings { f32: None, bf16: None };
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

    fn recorded<'a>(bench: &'a BenchReport, edited: &'a [String]) -> ComparedRun<'a> {
        let bench = Some(bench);
        ComparedRun { name: "x", manifest: None, doctor: None, parity: None, bench, edited }
    }

    #[test]
    fn gate_without_a_common_pass_fails() {
        let report = |status, launches| ParityReport {
            schema: SCHEMA,
            rows: vec![ParityRow {
                op: "kda".into(),
                case: "a".into(),
                backend: BackendKind::Cuda,
                variant: String::new(),
                dtype: "f32".into(),
                status,
                reason: "needs a GPU".into(),
                rel_err: Some(1e-6),
                max_err: None,
                tolerance: 1e-5,
                launches,
                millis: 1.0,
                peer: None,
                evidence: String::new(),
                bits: None,
            }],
        };
        let check = |status, launches, expect: (bool, usize)| {
            let report = report(status, launches);
            let run = ComparedRun {
                name: "x",
                manifest: None,
                doctor: None,
                parity: Some(&report),
                bench: None,
                edited: &[],
            };
            let got = gate(&run, &run, 5.0, false);
            assert_eq!((got.passed, got.held), expect, "{status} {:?}", got.failures);
        };
        check(Status::Pass, 1, (true, 1));
        check(Status::Pass, 0, (false, 0));
        check(Status::NotApplicable, 0, (false, 0));
        check(Status::Skip, 0, (false, 0));
        check(Status::Fail, 1, (false, 0));
    }

    #[test]
    fn gate_fails_on_regressions_lost_timings_and_edited_files() {
        let check = |now: Vec<BenchRow>, edited: &[String], expect: &[&str]| {
            let before = bench(vec![row("a", &[1.0; 9]), row("b", &[2.0; 9])]);
            let now = bench(now);
            let got = gate(&recorded(&now, edited), &recorded(&before, &[]), 5.0, false);
            assert_eq!(got.passed, expect.is_empty(), "{:?}", got.failures);
            assert_eq!(got.failures, expect);
        };
        check(vec![row("a", &[1.0; 9]), row("b", &[1.5; 9])], &[], &[]);
        check(
            vec![row("a", &[1.5; 9])],
            &[],
            &[
                "ssd a bf16 on cuda takes 1.50 ms instead of 1.00 ms, 50.0 % longer",
                "ssd b bf16 on cuda was timed in the baseline and is not in this run",
                "nothing in this run can be compared with the baseline",
            ],
        );
        check(
            vec![row("a", &[1.0; 9]), row("b", &[2.0; 9])],
            &["bench.csv".to_owned()],
            &["bench.csv of x is not what it was when the run ended"],
        );
    }

    #[test]
    fn busy_runs_are_unclear_in_both_directions_and_lost_passes_fail() {
        let quiet = conditions(BackendKind::Cuda, 0.0, [4000.0, 3990.0]);
        let busy = conditions(BackendKind::Cuda, 0.0, [4000.0, 2900.0]);
        let timed = |millis: f64, conditions: Option<&Conditions>| BenchReport {
            conditions: conditions.cloned().into_iter().collect(),
            ..bench(vec![row("a", &[millis; 9])])
        };
        let check = |base: &BenchReport, run: &BenchReport, expect: GateOutcome| {
            let got = gate(&recorded(run, &[]), &recorded(base, &[]), 5.0, false);
            assert_eq!(got.outcome, expect, "{:?} {:?}", got.failures, got.comparison.unclear);
            assert_eq!(got.passed, expect == GateOutcome::Passed);
            let said = got.comparison.unclear.iter().any(|why| why.contains("moved by 27.5 %"));
            assert!(said || expect != GateOutcome::Unclear, "{:?}", got.comparison.unclear);
        };
        let (fast, slow) = (timed(1.0, Some(&quiet)), timed(2.0, Some(&busy)));
        check(&fast, &slow, GateOutcome::Unclear);
        check(&slow, &fast, GateOutcome::Unclear);
        // As fast as before although the machine was shared: nothing became slower.
        check(&fast, &timed(1.0, Some(&busy)), GateOutcome::Passed);
        // As slow as on the shared machine although alone: a regression may be hidden.
        check(&slow, &timed(2.0, Some(&quiet)), GateOutcome::Unclear);
        check(&fast, &timed(2.0, Some(&quiet)), GateOutcome::Failed);
        // Runs of earlier versions recorded no conditions; their times are trusted.
        check(&timed(1.0, None), &timed(2.0, None), GateOutcome::Failed);
        // A lost pass is a failure on a busy machine too.
        let lost = BenchReport { rows: Vec::new(), ..slow.clone() };
        check(&fast, &lost, GateOutcome::Failed);
    }
}
