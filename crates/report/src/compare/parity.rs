//! Differences of the check outcomes of two runs.

use crate::counts::reason;
use crate::verdict::evidence_gap;
use facts::CompactSort;
use facts::{ParityChange, ParityReport, ParityRow, Status};

/// Checks whose outcome differs, lost evidence first; the number of checks with equal outcomes; and how many of these
/// pass.
pub(super) fn changes(
    base: Option<&ParityReport>,
    run: Option<&ParityReport>,
) -> (Vec<ParityChange>, usize, usize) {
    let (Some(base), Some(run)) = (base, run) else { return (Vec::new(), 0, 0) };
    let mut changes = Vec::new();
    let (mut same, mut passed) = (0, 0);
    for (old, new) in pairs(&base.rows, &run.rows) {
        let (was, is) = (old.map(outcome), new.map(outcome));
        let Some(any) = new.or(old).filter(|_| was != is) else {
            same += 1;
            passed += usize::from(is == Some(Status::Pass));
            continue;
        };
        changes.push(ParityChange {
            op: any.op.clone(),
            case: any.case.clone(),
            dtype: any.dtype.clone(),
            backend: any.backend,
            variant: any.variant.clone(),
            base: was,
            run: is,
            reason: new.map_or_else(String::new, reason),
        });
    }
    changes.compact_sort_by_key(|change| !matters(change));
    (changes, same, passed)
}

/// Whether a change loses evidence: a check no longer passes, or now fails.
pub(crate) fn matters(change: &ParityChange) -> bool {
    matches!(change.run, Some(Status::Fail | Status::Fallback))
        || (change.base == Some(Status::Pass) && change.run != Some(Status::Pass))
}

/// Pairs rows of the same check. Rows with the same variant are paired first; the remaining ones are paired with any
/// variant, because selection may choose another one. Rows of a peer are paired only with rows of that peer.
fn pairs<'a>(
    base: &'a [ParityRow],
    run: &'a [ParityRow],
) -> Vec<(Option<&'a ParityRow>, Option<&'a ParityRow>)> {
    let mut left: Vec<&ParityRow> = run.iter().collect();
    let mut take = |old: &ParityRow, any_variant: bool| {
        let same = |new: &&ParityRow| {
            (new.variant == old.variant || (any_variant && old.peer.is_none()))
                && same_check(new, old)
        };
        Some(left.remove(left.iter().position(same)?))
    };
    let exact: Vec<_> = base.iter().map(|old| (old, take(old, false))).collect();
    let mut pairs: Vec<_> =
        exact.into_iter().map(|(old, new)| (Some(old), new.or_else(|| take(old, true)))).collect();
    pairs.extend(left.into_iter().map(|new| (None, Some(new))));
    pairs
}

/// Whether both rows check the same case, with any variant.
fn same_check(a: &ParityRow, b: &ParityRow) -> bool {
    (&a.op, &a.case, &a.dtype) == (&b.op, &b.case, &b.dtype)
        && (a.backend, a.peer.is_some()) == (b.backend, b.peer.is_some())
}

/// The outcome that the row proves: a pass without evidence is a failure.
fn outcome(row: &ParityRow) -> Status {
    if evidence_gap(row).is_some() { Status::Fail } else { row.status }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{BackendKind, SCHEMA};

    fn row(case: &str, variant: &str, status: Status) -> ParityRow {
        ParityRow {
            op: "kda".into(),
            case: case.into(),
            backend: BackendKind::Cuda,
            variant: variant.into(),
            dtype: "bf16".into(),
            status,
            reason: if status == Status::Pass { String::new() } else { "for a reason".into() },
            rel_err: Some(1e-3),
            max_err: None,
            tolerance: 1e-2,
            launches: 1,
            millis: 1.0,
            peer: None,
            evidence: String::new(),
            bits: None,
        }
    }

    fn expect(base: Vec<ParityRow>, run: Vec<ParityRow>, wanted: &[(&str, bool)], same: usize) {
        let report = |rows| ParityReport { schema: SCHEMA, rows };
        let (got, got_same, _) = changes(Some(&report(base)), Some(&report(run)));
        let told: Vec<(&str, bool)> =
            got.iter().map(|change| (change.case.as_str(), matters(change))).collect();
        assert_eq!((told.as_slice(), got_same), (wanted, same), "{got:?}");
    }

    #[test]
    fn lost_evidence_comes_first() {
        use Status::{Fail, NotApplicable, Pass, Skip};
        expect(
            vec![
                row("a", "x", Pass),
                row("b", "x", Skip),
                row("c", "x", Pass),
                row("d", "x", Pass),
            ],
            vec![row("a", "x", Pass), row("b", "x", Pass), row("c", "x", Skip)],
            &[("c", true), ("d", true), ("b", false)],
            1,
        );
        expect(vec![], vec![row("a", "x", Fail)], &[("a", true)], 0);
        expect(vec![], vec![row("a", "x", Pass)], &[("a", false)], 0);
        expect(vec![row("a", "x", Fail)], vec![row("a", "x", NotApplicable)], &[("a", false)], 0);
        // Its status is PASS, but it has no launch.
        let mut hollow = row("a", "x", Pass);
        hollow.launches = 0;
        expect(vec![row("a", "x", Pass)], vec![hollow], &[("a", true)], 0);
    }

    #[test]
    fn variants_are_paired_and_peers_are_not() {
        use Status::{Fail, Pass};
        expect(vec![row("a", "x", Pass)], vec![row("a", "y", Pass)], &[], 1);
        // Two variants of one case: each is compared with itself.
        expect(
            vec![row("a", "x", Pass), row("a", "y", Fail)],
            vec![row("a", "y", Fail), row("a", "x", Pass)],
            &[],
            2,
        );
        let peer = |name: &str| ParityRow { peer: Some("torch".into()), ..row("a", name, Pass) };
        expect(vec![peer("flash")], vec![peer("math")], &[("a", true), ("a", false)], 0);
        expect(vec![row("a", "x", Pass)], vec![peer("x")], &[("a", true), ("a", false)], 0);
    }
}
