//! The parity matrix: every case against every variant that a plan asks for.

use crate::judge::judge;
use crate::{Tier, cases, tolerance};
use device::Device;
use facts::{BackendKind, ParityReport, ParityRow, SCHEMA, Status};
use kernels::{DType, Op};

/// What to verify.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ops by name; empty for all.
    pub ops: Vec<String>,
    /// Backends, opened or not: an unavailable one gives N/A rows with its reason.
    pub backends: Vec<BackendKind>,
    /// Cases of this tier and the ones before it.
    pub tier: Tier,
    /// Every variant that can run, not only the one selection chooses.
    pub all_variants: bool,
}

/// Runs the matrix; `on_row` sees each row as it is done.
pub fn matrix(plan: &Plan, mut on_row: impl FnMut(&ParityRow)) -> ParityReport {
    let mut rows = Vec::new();
    for op in kernels::OPS {
        let name = op.spec().name;
        if !plan.ops.is_empty() && !plan.ops.iter().any(|wanted| wanted == name) {
            continue;
        }
        for backend in &plan.backends {
            match device::open(*backend) {
                Ok(device) => run_op(*op, &device, plan, &mut |row| {
                    on_row(&row);
                    rows.push(row);
                }),
                Err(unavailable) => {
                    let row = blank(
                        name,
                        "-",
                        *backend,
                        DType::F32,
                        Status::NotApplicable,
                        unavailable.to_string(),
                    );
                    on_row(&row);
                    rows.push(row);
                }
            }
        }
    }
    ParityReport { schema: SCHEMA, rows }
}

fn run_op(op: &dyn Op, device: &Device, plan: &Plan, push: &mut dyn FnMut(ParityRow)) {
    let backend = device.capabilities().backend;
    for case in cases(op.spec().name).into_iter().filter(|case| case.tier <= plan.tier) {
        let (inputs, settings) = (case.build)();
        let row = |status, reason: String| {
            blank(case.op, &case.name, backend, case.dtype, status, reason)
        };
        let call = match op.bind(&inputs, &settings) {
            Ok(call) => call,
            Err(error) => {
                push(row(Status::Fail, format!("the case does not bind: {error}")));
                continue;
            }
        };
        let selection = match call.select(device, None) {
            Ok(selection) => selection,
            Err(error) => {
                push(row(Status::NotApplicable, error.to_string()));
                continue;
            }
        };
        let others = selection.refused.iter().map(|refusal| refusal.variant);
        let others = others
            .filter(|variant| plan.all_variants && call.select(device, Some(variant)).is_ok());
        for variant in std::iter::once(selection.chosen).chain(others) {
            let (judgement, _) = judge(call.as_ref(), device, variant);
            push(ParityRow {
                variant: variant.to_owned(),
                rel_err: judgement.agreement.map(|agreement| agreement.relative),
                max_err: judgement.agreement.map(|agreement| agreement.max),
                launches: judgement.launches,
                millis: judgement.millis,
                ..row(judgement.status, judgement.reason)
            });
        }
    }
}

fn blank(
    op: &str,
    case: &str,
    backend: BackendKind,
    dtype: DType,
    status: Status,
    reason: String,
) -> ParityRow {
    ParityRow {
        op: op.to_owned(),
        case: case.to_owned(),
        backend,
        variant: String::new(),
        dtype: dtype.to_string(),
        status,
        reason,
        rel_err: None,
        max_err: None,
        tolerance: tolerance(dtype).relative,
        launches: 0,
        millis: 0.0,
    }
}
