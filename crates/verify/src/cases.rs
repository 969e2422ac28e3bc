//! The cases of the matrix, one file per op, collected in [`CASES`].
//!
//! Shapes and edge cases come from the ops' own suites and from published bugs; a case's name says which:
//! `suite/shape`, `edge/what` and `property/what`.

mod attention;
mod conv1d;
mod gated_delta;
mod kda;
mod linear;
mod list;
mod moe;
mod nsa;
mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

use crate::Case;
use crate::layout::Layout;

/// How an op is verified.
pub struct OpCases {
    /// Its name.
    pub op: &'static str,
    /// Lists its cases.
    pub cases: fn() -> Vec<Case>,
    /// How its dense calls are split into parts.
    pub(crate) layout: Layout,
}

/// The cases of each op. A test compares this list with [`ops::OPS`].
pub const CASES: &[OpCases] = &[
    attention::OP,
    kda::OP,
    gated_delta::OP,
    ssd::OP,
    selective_scan::OP,
    conv1d::OP,
    nsa::OP,
    rmsnorm::OP,
    linear::OP,
    moe::OP,
    sampling::OP,
    attention::BACKWARD,
    kda::BACKWARD,
    gated_delta::BACKWARD,
    ssd::BACKWARD,
    conv1d::BACKWARD,
    rmsnorm::BACKWARD,
];

/// The cases of one op; none for an unknown name.
pub fn cases(op: &str) -> Vec<Case> {
    CASES.iter().filter(|of| of.op == op).flat_map(|of| (of.cases)()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;
    use std::collections::BTreeSet;

    #[test]
    fn every_op_has_its_cases_and_every_file_is_listed() {
        let listed: Vec<&str> = CASES.iter().map(|of| of.op).collect();
        let ops: Vec<&str> = ops::OPS.iter().map(|op| op.spec().name).collect();
        assert_eq!(listed, ops);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| {
                entry.unwrap().file_name().to_str()?.strip_suffix(".rs").map(str::to_owned)
            })
            .filter(|file| file != "list")
            .collect();
        // Cases of a gradient are in the file of its op.
        let of = |op: &&str| op.strip_suffix("_backward").unwrap_or(op).to_owned();
        assert_eq!(files, ops.iter().map(of).collect());
    }

    #[test]
    fn names_are_unique_and_cases_bind_and_can_run_on_a_processor() {
        // Generating inputs takes a while: one thread per op.
        std::thread::scope(|scope| {
            for op in ops::OPS {
                scope.spawn(move || check(*op));
            }
        });
    }

    fn check(op: &dyn ops::Op) {
        let device = backends::open(facts::BackendKind::Cpu).unwrap();
        let mut names = BTreeSet::new();
        for (number, case) in cases(op.spec().name).into_iter().enumerate() {
            assert!(names.insert((case.name.clone(), case.dtype)), "{case:?} is listed twice");
            let named =
                case.name.split_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty());
            assert!(named, "{case:?} is not named suite/shape");
            // A quarter of the larger ones: all of them would take two minutes of CPU time.
            if case.tier > Tier::Quick && number % 4 != 1 {
                continue;
            }
            let (inputs, settings) = (case.build)();
            let call =
                op.bind(&inputs, &settings).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            let selected = call.select(&device, None);
            assert!(selected.is_ok(), "{case:?}: {selected:?}");
            assert_eq!(call.problem().dtype(), case.dtype, "{case:?}");
        }
    }
}
