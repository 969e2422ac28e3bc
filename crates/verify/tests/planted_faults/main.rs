//! Deliberately wrong kernels, each of which the matrix must detect.
//!
//! A fault is planted by running the op's own kernel on a changed call (a window wider by one, a missing tensor), or by
//! computing the wrong result here; its outputs are judged as in the matrix. None may pass.
#![allow(clippy::unwrap_used)] // Test helpers may panic.
#![allow(clippy::print_stdout)] // Shows which case detected which fault.

mod alter;
mod attention;
mod cheat;
mod conv1d;
mod evidence;
mod gated_delta;
mod kda;
mod linear;
mod moe;
mod naive;
mod nsa;
mod outputs;
mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

use facts::{BackendKind, Status};
use ops::{Op, Settings, TensorMap};
use verify::{Case, Tier, cases, judge_outputs};

/// A wrong kernel.
pub(crate) struct Fault {
    /// Its error.
    pub(crate) name: &'static str,
    /// Its outputs for a call; `None` if this call cannot show the fault.
    pub(crate) plant: fn(&FaultInput<'_>) -> Option<TensorMap>,
}

/// A call of a case, and the correct kernel's outputs.
pub(crate) struct FaultInput<'a> {
    pub(crate) op: &'static dyn Op,
    pub(crate) inputs: &'a TensorMap,
    pub(crate) settings: &'a Settings,
    pub(crate) right: &'a TensorMap,
}

impl FaultInput<'_> {
    /// Outputs of the selected kernel for another call; `None` if the op refuses that call.
    pub(crate) fn run(&self, inputs: &TensorMap, settings: &Settings) -> Option<TensorMap> {
        let device = backends::open(BackendKind::Cpu).unwrap();
        let call = self.op.bind(inputs, settings).ok()?;
        let chosen = call.select(&device, None).unwrap().chosen;
        let mut execution = call.prepare(&device, chosen).unwrap();
        execution.poison().unwrap();
        execution.launch().unwrap();
        Some(execution.outputs().unwrap().clone())
    }
}

/// Every fault of an op must fail at least one case of the quick or standard tier, and the correct kernel none of those
/// cases.
fn check(op: &str, faults: &[Fault]) {
    let op = ops::op(op).unwrap();
    let mut caught: Vec<Vec<String>> = faults.iter().map(|_| Vec::new()).collect();
    for tier in [Tier::Quick, Tier::Standard] {
        let listed: Vec<Case> = cases(op.spec().name)
            .into_iter()
            .filter(|case| case.tier == tier && case.property.is_none())
            .collect();
        for case in &listed {
            // The standard tier only for faults that the quick one has missed.
            let open: Vec<usize> = (0..faults.len())
                .filter(|at| tier == Tier::Quick || caught[*at].is_empty())
                .collect();
            if open.is_empty() {
                break;
            }
            let (inputs, settings) = (case.build)();
            let call = op.bind(&inputs, &settings).unwrap();
            let nothing = TensorMap::new();
            let mut given =
                FaultInput { op, inputs: &inputs, settings: &settings, right: &nothing };
            let right = given.run(&inputs, &settings).unwrap();
            given.right = &right;
            let judgement = judge_outputs(&call, &right);
            assert_eq!(judgement.status, Status::Pass, "{case:?}: {}", judgement.reason);
            for at in open {
                let Some(wrong) = (faults[at].plant)(&given) else { continue };
                let judgement = judge_outputs(&call, &wrong);
                if judgement.status == Status::Fail {
                    caught[at].push(format!("{} {}", case.name, case.dtype));
                }
            }
        }
    }
    let line = |(fault, cases): (&Fault, &Vec<String>)| {
        let cases = if cases.is_empty() { "NOT CAUGHT".to_owned() } else { cases.join(", ") };
        format!("{}: {cases}", fault.name)
    };
    let table: Vec<String> = faults.iter().zip(&caught).map(line).collect();
    let table = format!("{}\n{}", op.spec().name, table.join("\n"));
    assert!(caught.iter().all(|cases| !cases.is_empty()), "{table}");
    println!("{table}");
}

#[test]
fn wrong_attention_is_caught() {
    check("attention", attention::FAULTS);
}

#[test]
fn wrong_kda_is_caught() {
    check("kda", kda::FAULTS);
}

#[test]
fn wrong_gated_delta_is_caught() {
    check("gated_delta", gated_delta::FAULTS);
}

#[test]
fn wrong_ssd_is_caught() {
    check("ssd", ssd::FAULTS);
}

#[test]
fn wrong_selective_scan_is_caught() {
    check("selective_scan", selective_scan::FAULTS);
}

#[test]
fn wrong_conv1d_is_caught() {
    check("conv1d", conv1d::FAULTS);
}

#[test]
fn wrong_nsa_is_caught() {
    check("nsa", nsa::FAULTS);
}

#[test]
fn wrong_rmsnorm_is_caught() {
    check("rmsnorm", rmsnorm::FAULTS);
}

#[test]
fn wrong_linear_is_caught() {
    check("linear", linear::FAULTS);
}

#[test]
fn wrong_moe_is_caught() {
    check("moe", moe::FAULTS);
}

#[test]
fn wrong_sampling_is_caught() {
    check("sampling", sampling::FAULTS);
}

#[test]
fn wrong_gradient_of_attention_is_caught() {
    check("attention_backward", attention::BACKWARD);
}

#[test]
fn wrong_gradient_of_ssd_is_caught() {
    check("ssd_backward", ssd::BACKWARD);
}

#[test]
fn wrong_gradient_of_kda_is_caught() {
    check("kda_backward", kda::BACKWARD);
}

#[test]
fn wrong_gradient_of_gated_delta_is_caught() {
    check("gated_delta_backward", gated_delta::BACKWARD);
}

#[test]
fn wrong_gradient_of_rmsnorm_is_caught() {
    check("rmsnorm_backward", rmsnorm::BACKWARD);
}

#[test]
fn wrong_gradient_of_conv1d_is_caught() {
    check("conv1d_backward", conv1d::BACKWARD);
}

#[test]
fn partially_written_outputs_of_every_op_are_caught() {
    for op in ops::OPS {
        check(op.spec().name, outputs::FAULTS);
    }
}
