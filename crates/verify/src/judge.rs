//! Runs one variant on one call and judges the result.

use crate::compare::{Agreement, compare};
use crate::references::References;
use crate::{Tolerance, bits, tolerance};
use device::Device;
use facts::Status;
use ops::{Call, Execution, OpError, TensorMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The result of running one variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Pass or fail.
    pub status: Status,
    /// Why it failed; empty for a pass.
    pub reason: String,
    /// Errors, if the outputs could be compared.
    pub agreement: Option<Agreement>,
    /// Launches that the device counted under the variant's name.
    pub launches: u64,
    /// Wall time of the run, milliseconds.
    pub millis: f64,
    /// The hash of the outputs, as in [`facts::ParityRow`].
    pub bits: Option<String>,
}

impl Judgement {
    pub(crate) fn fail(reason: String, launches: u64, millis: f64) -> Self {
        Self { status: Status::Fail, reason, agreement: None, launches, millis, bits: None }
    }
}

/// An execution whose last launch was compared with the float64 reference and passed.
///
/// Only [`judge`] and [`crate::MatrixResults::admit`] construct it, so code that takes a `Verified` cannot time an
/// unverified kernel: it is the same execution, over the same inputs, that was checked.
pub struct Verified<'a> {
    execution: Box<dyn Execution + 'a>,
    agreement: Agreement,
}

impl<'a> Verified<'a> {
    pub(crate) fn new(execution: Box<dyn Execution + 'a>, agreement: Agreement) -> Self {
        Self { execution, agreement }
    }

    /// Runs it once more and returns the milliseconds by the device's own clock.
    ///
    /// # Errors
    /// The device's error; never on the CPU.
    pub fn time(&mut self) -> Result<f64, OpError> {
        self.execution.time()
    }

    /// Whether the device can capture launches and replay them.
    pub fn can_replay(&self) -> bool {
        self.execution.can_replay()
    }

    /// Runs it `runs` times back to back without the host, and returns milliseconds per run; a single run if the device
    /// cannot replay.
    ///
    /// # Errors
    /// As [`Verified::time`].
    pub fn replay(&mut self, runs: u32) -> Result<f64, OpError> {
        self.execution.replay(runs)
    }

    /// The kernel's name in launch counters.
    pub fn kernel(&self) -> &str {
        self.execution.kernel()
    }

    /// The errors it passed with.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }
}

impl std::fmt::Debug for Verified<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verified({}, {:?})", self.kernel(), self.agreement)
    }
}

/// A run of an execution: whether the kernel was launched, and its duration.
pub(crate) struct RunResult {
    pub(crate) launches: u64,
    pub(crate) millis: f64,
    /// The error, if it failed.
    pub(crate) broke: Option<String>,
}

/// Fills the outputs with NaN, launches, and counts the launches under the kernel's name.
pub(crate) fn run(execution: &mut dyn Execution, device: &Device) -> RunResult {
    let kernel = execution.kernel().to_owned();
    let ((broke, millis), launches) = device.launches().during(&kernel, || {
        let start = Instant::now();
        // A panicking kernel is one failed row and does not end the matrix.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            execution.poison()?;
            execution.launch()
        }));
        let broke = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(cause) => {
                let text = cause.downcast_ref::<String>().cloned();
                let text =
                    text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Some(text.unwrap_or_default())
            }
        };
        (broke, start.elapsed().as_secs_f64() * 1e3)
    });
    RunResult { launches, millis, broke }
}

/// Runs `variant` of a call on outputs filled with NaN and compares every output with the reference.
pub fn judge<'a>(
    call: &'a Call<'a>,
    device: &'a Device,
    variant: &str,
) -> (Judgement, Option<Verified<'a>>) {
    judge_with(&mut References::of(call), device, variant)
}

/// [`judge`] with references that may be known already.
pub(crate) fn judge_with<'a>(
    references: &mut References<'a>,
    device: &'a Device,
    variant: &str,
) -> (Judgement, Option<Verified<'a>>) {
    let call = references.call();
    let mut execution = match call.prepare(device, variant) {
        Ok(execution) => execution,
        Err(error) => return (Judgement::fail(error.to_string(), 0, 0.0), None),
    };
    let ran = run(execution.as_mut(), device);
    if let Some(judgement) = implausible_run(&ran, execution.kernel()) {
        return (judgement, None);
    }
    let judgement = match execution.outputs() {
        Ok(outputs) => match references.given(outputs) {
            Ok(reference) => against(call, outputs, &reference),
            Err(reason) => Judgement::fail(reason, 0, 0.0),
        },
        Err(error) => Judgement::fail(error.to_string(), 0, 0.0),
    };
    let bits = bits::of_two_runs(call, device, variant, execution.as_mut());
    let judgement = Judgement { launches: ran.launches, millis: ran.millis, bits, ..judgement };
    let verified = match (judgement.status, judgement.agreement) {
        (Status::Pass, Some(agreement)) => Some(Verified::new(execution, agreement)),
        _ => None,
    };
    (judgement, verified)
}

/// The failure of a run whose outputs need not be compared.
pub(crate) fn implausible_run(ran: &RunResult, kernel: &str) -> Option<Judgement> {
    let reason = match &ran.broke {
        Some(how) => format!("the kernel broke: {how}"),
        None if ran.launches == 0 => format!("no launch of {kernel} was counted"),
        None => return None,
    };
    Some(Judgement::fail(reason, ran.launches, ran.millis))
}

/// Compares outputs of any origin with the reference of a call.
pub fn judge_outputs(call: &Call<'_>, outputs: &TensorMap) -> Judgement {
    match call.reference_for(outputs) {
        Ok(reference) => against(call, outputs, &reference),
        Err(reason) => Judgement::fail(reason, 0, 0.0),
    }
}

/// Compares outputs with a reference computed before.
pub(crate) fn against(call: &Call<'_>, outputs: &TensorMap, reference: &TensorMap) -> Judgement {
    against_only(call, outputs, reference, None)
}

/// [`against`] for a peer that computes `only` some of the op's outputs.
pub(crate) fn against_only(
    call: &Call<'_>,
    outputs: &TensorMap,
    reference: &TensorMap,
    only: Option<&[&str]>,
) -> Judgement {
    let limit = tolerance(call.problem().dtype());
    let mut all: Option<Agreement> = None;
    let asked = |name| only.is_none_or(|only| only.contains(&name));
    for spec in call.problem().outputs().into_iter().filter(|spec| asked(spec.name)) {
        let (Some(out), Some(want)) = (outputs.get(spec.name), reference.get(spec.name)) else {
            return Judgement::fail(format!("output `{}` is missing", spec.name), 0, 0.0);
        };
        // A state is compared slot by slot, everything else as a whole.
        let parts =
            if spec.name == "final_state" { spec.shape.first().copied().unwrap_or(1) } else { 1 };
        match compare(out, want, parts) {
            Ok(agreement) => all = Some(all.map_or(agreement, |all| all.and(agreement))),
            Err(what) => return Judgement::fail(format!("output `{}` {what}", spec.name), 0, 0.0),
        }
    }
    let Some(agreement) = all else {
        return Judgement::fail("the op has no outputs".to_owned(), 0, 0.0);
    };
    within(agreement, limit)
}

/// Whether outputs agree within the tolerance.
pub(crate) fn within(agreement: Agreement, limit: Tolerance) -> Judgement {
    let reason = if agreement.relative > limit.relative {
        format!("relative error {:.2e} is over {:.0e}", agreement.relative, limit.relative)
    } else if agreement.worst > limit.worst {
        format!(
            "one element is off by {:.2e} of the largest, over {:.0e}",
            agreement.worst, limit.worst
        )
    } else {
        String::new()
    };
    let status = if reason.is_empty() { Status::Pass } else { Status::Fail };
    Judgement { status, reason, agreement: Some(agreement), launches: 0, millis: 0.0, bits: None }
}
