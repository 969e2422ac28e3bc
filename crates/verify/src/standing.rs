//! How variants stand after a matrix: what failed a check of it, or passed none, is not timed.

use crate::sample::admit;
use crate::{Drawn, Verified};
use device::Device;
use facts::{BackendKind, ParityReport, ParityRow, Status};
use kernels::Call;
use std::collections::BTreeMap;

/// A variant of an op on a backend.
type Variant = (String, BackendKind, String);

/// What a matrix saw of a variant.
#[derive(Debug, Default)]
struct Seen {
    passed: usize,
    failed: usize,
    /// The first failure.
    first: String,
}

/// How firstlight's own variants stand after the matrix of this run. A call is admitted to be timed by it alone, and only
/// [`crate::matrix`] makes one that knows a matrix.
///
/// An edge case counts like any other: who runs a kernel does not choose the shapes it is given.
#[derive(Debug)]
pub struct Standing {
    /// `None` where no matrix was run.
    seen: Option<BTreeMap<Variant, Seen>>,
}

impl Standing {
    /// For a run without a matrix: each call stands by its own check alone.
    pub fn without_matrix() -> Self {
        Self { seen: None }
    }

    /// How variants stand after a matrix.
    pub(crate) fn of(report: &ParityReport) -> Self {
        let mut seen = BTreeMap::<Variant, Seen>::new();
        for row in report.rows.iter().filter(|row| row.peer.is_none()) {
            let ParityRow { op, case, backend, variant, dtype, status, reason, .. } = row;
            let of = seen.entry((op.clone(), *backend, variant.clone())).or_default();
            match status {
                Status::Pass => of.passed += 1,
                Status::Fail | Status::Fallback => {
                    if of.failed == 0 {
                        of.first = format!("{case} {dtype}: {reason}");
                    }
                    of.failed += 1;
                }
                Status::Skip | Status::NotApplicable | Status::NotRun => {}
            }
        }
        Self { seen: Some(seen) }
    }

    /// Runs `variant` on the whole call and holds a drawn part of its outputs against the reference of that part, where the
    /// matrix has nothing against the variant.
    ///
    /// # Errors
    /// Why it must not be timed: what the matrix saw, or the failed judgement of this call.
    pub fn admit<'a>(
        &self,
        call: &'a dyn Call,
        drawn: &mut Drawn<'_>,
        device: &'a Device,
        variant: &str,
    ) -> Result<Verified<'a>, String> {
        match self.refusal(call.spec().name, device.capabilities().backend, variant) {
            Some(why) => Err(why),
            None => admit(call, drawn, device, variant),
        }
    }

    /// What the matrix has against a variant.
    fn refusal(&self, op: &str, backend: BackendKind, variant: &str) -> Option<String> {
        let seen = self.seen.as_ref()?.get(&(op.to_owned(), backend, variant.to_owned()));
        let why = match seen {
            Some(Seen { failed: 0, passed: 1.., .. }) => return None,
            Some(Seen { failed: 1, first, .. }) => format!("{variant} failed {first}"),
            Some(Seen { failed: more @ 2.., first, .. }) => {
                format!("{variant} failed {first} (and {} more)", more - 1)
            }
            Some(Seen { failed: 0, .. }) | None => format!("{variant} passed no check of this run"),
        };
        Some(format!("{why}; what fails a check is not timed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::blank;
    use kernels::DType;

    #[test]
    fn what_failed_an_edge_case_or_passed_none_is_not_timed_and_says_why() {
        let nan = "output `o` is NaN at element 3";
        let row = |status, peer: Option<&str>| ParityRow {
            variant: "rows".to_owned(),
            peer: peer.map(str::to_owned),
            ..blank("rmsnorm", "edge/one", BackendKind::Cpu, DType::Bf16, status, nan.to_owned())
        };
        let check = |rows: &[ParityRow], expect: Option<&str>| {
            let standing = Standing::of(&ParityReport { schema: facts::SCHEMA, rows: rows.into() });
            let got = standing.refusal("rmsnorm", BackendKind::Cpu, "rows");
            let expect = expect.map(|why| format!("rows {why}; what fails a check is not timed"));
            assert_eq!(got, expect);
        };
        let (pass, fail) = (row(Status::Pass, None), row(Status::Fail, None));
        let skipped = row(Status::NotApplicable, None);
        check(std::slice::from_ref(&pass), None);
        check(&[skipped.clone(), pass.clone()], None);
        check(&[], Some("passed no check of this run"));
        check(&[skipped], Some("passed no check of this run"));
        let failed = format!("failed edge/one bf16: {nan}");
        check(&[pass.clone(), fail.clone()], Some(&failed));
        let fallback = row(Status::Fallback, None);
        check(&[fail.clone(), fallback, pass.clone()], Some(&format!("{failed} (and 1 more)")));
        // An installed kernel of that name is another one.
        check(&[pass, row(Status::Fail, Some("fla 0.5"))], None);
        let alone = Standing::without_matrix();
        assert_eq!(alone.refusal("rmsnorm", BackendKind::Cpu, "rows"), None);
    }
}
