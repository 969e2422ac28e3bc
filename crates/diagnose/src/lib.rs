//! Pure rules from facts to findings: what is wrong with a machine or a Python environment, the evidence, the cause,
//! and the commands that fix it there.
//!
//! Invariant: this crate does no I/O. It sees only the records that `probe` made, so each rule is tested on records of
//! machines that are not at hand, and a finding can be reproduced from the `facts.json` of a run.
//!
//! Invariant: the contents of a file take precedence over its label. A rule that rests on a table of published wheels
//! instead of bytes says so in its confidence and names the table's source in its evidence.

mod abi;
mod access;
mod cuda_library;
mod data;
mod dist_requirements;
mod draft;
mod driver_trouble;
mod explain;
mod extension;
mod fabric;
mod fleet;
#[cfg(test)]
mod fuzz;
mod gpu;
mod gpu_code;
mod gpus;
mod host;
mod matrix;
mod model;
mod native;
mod oom;
mod pasted_error;
mod remedy;
mod requirement;
mod rules;
mod suggest;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
mod text;
mod torch_build;
mod torch_choice;
mod torch_code;

pub use explain::{
    Cause, Certainty, Entity, Explanation, Leader, Match, NameLookup, explain, explain_rule,
    explain_text, knows, out_of_memory_in,
};
pub use fabric::links;
pub use fleet::{RankRows, fleet};
pub use gpus::{GpuRows, gpus};
pub use matrix::{matrix, matrix_of, package_of};
pub use model::{ModelOptions, Weights, layer_kinds, memory_finding, model};
pub use oom::{OutOfMemory, out_of_memory};
pub use rules::{Also, Context, Need, Observation, PastedError, RULES, Role, Rule, Text};
pub use rules::{UnmetRequirement, unmet};
pub use suggest::{nearest, nearest_name};

use facts::CompactSort;
use facts::{Finding, FleetReport, GpusReport, Machine, PyEnv};
use rayon::prelude::*;

/// Every finding of every rule, worst first, then by rule id. A finding about an environment names its folder.
pub fn run(machine: &Machine, envs: &[PyEnv]) -> Vec<Finding> {
    let context = Context { machine, envs };
    let mut findings: Vec<Finding> = RULES
        .par_iter()
        .filter_map(|rule| rule.check)
        .flat_map_iter(|check| check(&context))
        .collect();
    findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    findings
}

/// The findings of the rules that compare the ranks of a fleet, worst first, then by rule id.
fn run_on_fleet(fleet: &FleetReport) -> Vec<Finding> {
    let rules = RULES.iter().filter_map(|rule| rule.check_fleet);
    let mut findings: Vec<Finding> = rules.flat_map(|check| check(fleet)).collect();
    findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    findings
}

/// The findings of the rules that compare the GPUs of a check, worst first, then by rule id.
pub fn run_on_gpus(gpus: &GpusReport) -> Vec<Finding> {
    let rules = RULES.iter().filter_map(|rule| rule.check_gpus);
    let mut findings: Vec<Finding> = rules.flat_map(|check| check(gpus)).collect();
    findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    findings
}

/// The rule with this id, in any case and with `_` for `-`; `None` if there is none ([`nearest`] suggests one).
pub fn rule(id: &str) -> Option<&'static Rule> {
    let wanted = suggest::normalise(id);
    RULES.iter().find(|rule| rule.id == wanted)
}
