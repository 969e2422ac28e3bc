//! The matrix on this machine: every case of the quick tier on every variant that can run here, and a sample of the
//! standard tier.

use facts::{BackendKind, OUT_OF_TIME, ParityRow, Status};
use std::collections::BTreeSet;
use verify::{CASES, Case, MatrixPlan, OpCases, TensorRng, Tier, cases, matrix, run_case};

/// Every row must have passed with counted launches: on a CPU every kernel is available, so nothing is N/A.
fn check(rows: &[ParityRow]) {
    let bad: Vec<&ParityRow> = rows
        .iter()
        .filter(|row| row.status != Status::Pass || row.launches == 0 || row.rel_err.is_none())
        .collect();
    let lines: Vec<String> = bad
        .iter()
        .map(|row| {
            let ParityRow { op, case, dtype, variant, status, reason, rel_err, .. } = row;
            format!("{op} {case} {dtype} {variant}: {status} {reason} ({rel_err:?})")
        })
        .collect();
    assert!(bad.is_empty(), "{} of {} rows:\n{}", bad.len(), rows.len(), lines.join("\n"));
}

#[test]
fn every_variant_of_this_machine_passes_the_quick_tier() {
    let (backends, tier) = (vec![BackendKind::Cpu], Tier::Quick);
    let plan = MatrixPlan { ops: Vec::new(), backends, tier, all_variants: true, until: None };
    let (report, _) = matrix(&plan, None, |_| ());
    check(&report.rows);
    // Each case ran, and each variant that this machine supports ran in some case.
    let device = backends::open(BackendKind::Cpu).unwrap();
    for op in ops::OPS {
        let op = op.spec().name;
        let rows = || report.rows.iter().filter(move |row| row.op == op);
        let ran: BTreeSet<_> = rows().map(|row| (row.case.clone(), row.dtype.clone())).collect();
        let listed: BTreeSet<_> = cases(op)
            .into_iter()
            .filter(|case| case.tier == Tier::Quick)
            .map(|case| (case.name, case.dtype.to_string()))
            .collect();
        assert_eq!(ran, listed, "{op}");
        for isa in &device.capabilities().isas {
            let of_isa = |variant: &str| variant.ends_with(&format!(".{isa}"));
            let has = backends::variants(op).iter().any(|(name, _)| of_isa(name));
            assert!(!has || rows().any(|row| of_isa(&row.variant)), "{op} never ran on {isa}");
        }
    }
}

#[test]
fn case_without_time_has_a_not_run_row_and_is_not_timed() {
    let (backends, ops) = (vec![BackendKind::Cpu], vec!["rmsnorm".to_owned()]);
    let until = Some(std::time::Instant::now());
    let plan = MatrixPlan { ops, backends, tier: Tier::Quick, all_variants: false, until };
    let (report, standing) = matrix(&plan, None, |_| ());
    assert_eq!(report.rows.len(), verify::count(&plan));
    for row in &report.rows {
        assert_eq!((row.status, row.launches, row.reason.as_str()), (Status::Skip, 0, OUT_OF_TIME));
    }
    // A call that did not pass is not admitted.
    let case = cases("rmsnorm").into_iter().find(|case| case.tier == Tier::Quick).unwrap();
    let (inputs, settings) = (case.build)();
    let op = ops::op("rmsnorm").unwrap();
    let call = op.bind(&inputs, &settings).unwrap();
    let device = backends::open(BackendKind::Cpu).unwrap();
    let variant = call.select(&device, None).unwrap().chosen;
    let drawn = &mut verify::SampledCall::of(op, (&inputs, &settings), 1);
    assert!(standing.admit(&call, drawn, &device, variant).is_err());
}

/// The quick cases of an op whose names have this prefix, on every variant; their number must match.
fn check_named(op: &str, prefix: &str, names: usize) {
    let device = backends::open(BackendKind::Cpu).expect("the processor is always here");
    let mut rows = Vec::new();
    for case in cases(op).iter().filter(|case| case.name.starts_with(prefix)) {
        run_case(case, &device, true, None, &mut |row| rows.push(row));
    }
    let ran: BTreeSet<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(ran.len(), names, "{ran:?}");
    check(&rows);
}

#[test]
fn r0_10_a_layer_of_kda_equals_the_recurrence_at_both_sizes() {
    check_named("kda", "field/layer-", 2);
}

#[test]
fn r4_13_each_branch_of_a_decode_step_passes_alone() {
    check_named("nsa", "edge/decode-branch-", 3);
}

/// A sample of the standard tier; `firstlight verify` runs all of it.
#[test]
fn random_part_of_the_standard_tier_passes() {
    let device = backends::open(BackendKind::Cpu).unwrap();
    let mut draw = TensorRng::new(20_260_101);
    let mut rows = Vec::new();
    for OpCases { op, cases, .. } in CASES {
        let standard: Vec<Case> =
            cases().into_iter().filter(|case| case.tier == Tier::Standard).collect();
        assert!(!standard.is_empty(), "{op} has no standard cases");
        for _ in 0..4 {
            let case = &standard[draw.below(standard.len())];
            run_case(case, &device, true, None, &mut |row| rows.push(row));
        }
    }
    check(&rows);
}
