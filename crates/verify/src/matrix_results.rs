//! The standing of variants after a matrix: a variant that failed a check, or passed none, is not timed.

use crate::sample::admit;
use crate::{SampledCall, Verified};
use device::Device;
use facts::{BackendKind, ParityReport, ParityRow, Status};
use ops::Call;
use std::collections::BTreeMap;

/// A variant of an op on a backend.
type Variant = (String, BackendKind, String);

/// The matrix results of a variant.
#[derive(Debug, Default)]
struct VariantResults {
    passed: usize,
    failed: usize,
    /// The first failure.
    first: String,
}

/// The standing of firstlight's own variants after the matrix of this run, which admits calls to timing. Only
/// [`crate::matrix`] constructs one with matrix results.
///
/// An edge case counts like any other: users of a kernel do not choose its shapes.
#[derive(Debug)]
pub struct MatrixResults {
    /// `None` if no matrix was run.
    seen: Option<BTreeMap<Variant, VariantResults>>,
}

impl MatrixResults {
    /// For a run without a matrix: each call depends on its own check only.
    pub fn without_matrix() -> Self {
        Self { seen: None }
    }

    /// The standing of variants after a matrix.
    pub(crate) fn of(report: &ParityReport) -> Self {
        let mut seen = BTreeMap::<Variant, VariantResults>::new();
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

    /// Runs `variant` on the whole call and compares a random part of its outputs with the reference of that part,
    /// unless the variant failed in the matrix.
    ///
    /// # Errors
    /// Why it must not be timed: the matrix's result, or the failed judgement of this call.
    pub fn admit<'a>(
        &self,
        call: &'a Call<'a>,
        drawn: &mut SampledCall<'_>,
        device: &'a Device,
        variant: &str,
    ) -> Result<Verified<'a>, String> {
        match self.refusal(call.spec().name, device.capabilities().backend, variant) {
            Some(why) => Err(why),
            None => admit(call, drawn, device, variant),
        }
    }

    /// Why the matrix refuses a variant.
    fn refusal(&self, op: &str, backend: BackendKind, variant: &str) -> Option<String> {
        let seen = self.seen.as_ref()?.get(&(op.to_owned(), backend, variant.to_owned()));
        let why = match seen {
            Some(VariantResults { failed: 0, passed: 1.., .. }) => return None,
            Some(VariantResults { failed: 1, first, .. }) => format!("{variant} failed {first}"),
            Some(VariantResults { failed: more @ 2.., first, .. }) => {
                format!("{variant} failed {first} (and {} more)", more - 1)
            }
            Some(VariantResults { failed: 0, .. }) | None => {
                format!("{variant} passed no check of this run")
            }
        };
        Some(format!("{why}; what fails a check is not timed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::blank;
    use ops::DType;

    #[test]
    fn variants_without_a_passed_edge_case_are_not_timed() {
        let nan = "output `o` is NaN at element 3";
        let row = |status, peer: Option<&str>| ParityRow {
            variant: "rows".to_owned(),
            peer: peer.map(str::to_owned),
            ..blank("rmsnorm", "edge/one", BackendKind::Cpu, DType::Bf16, status, nan.to_owned())
        };
        let check = |rows: &[ParityRow], expect: Option<&str>| {
            let standing =
                MatrixResults::of(&ParityReport { schema: facts::SCHEMA, rows: rows.into() });
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
        // An installed kernel of the same name is another kernel.
        check(&[pass, row(Status::Fail, Some("fla 0.5"))], None);
        let alone = MatrixResults::without_matrix();
        assert_eq!(alone.refusal("rmsnorm", BackendKind::Cpu, "rows"), None);
    }
}
