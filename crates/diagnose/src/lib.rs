//! Pure rules from facts to findings: what is wrong with a machine or a Python environment, on which evidence, why,
//! and the commands that put it right there.
//!
//! Invariant: this room does no I/O. It sees only the records `probe` made, so each rule is tested on records of
//! machines nobody needs to own, and a finding can be reproduced from the `facts.json` of a run.
//!
//! Invariant: nothing is judged by a label where a file told more. A rule that rests on a table of published wheels
//! instead of bytes says so in its confidence and names the table's source in its evidence.

mod abi;
mod access;
mod cuda_library;
mod data;
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
mod remedy;
mod requirement;
mod rules;
mod seen;
mod suggest;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
mod text;
mod torch_build;
mod torch_choice;
mod torch_code;
mod wants;

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
pub use rules::{Also, Context, Look, Need, RULES, Role, Rule, Seen, Text};
pub use rules::{Unmet, unmet};
pub use suggest::{nearest, nearest_name};

use facts::CompactSort;
use facts::{Finding, FleetReport, GpusReport, Machine, PyEnv};
use rayon::prelude::*;

/// Every finding of every rule, worst first and by rule id among equals. Findings about an environment name its folder.
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

/// What the rules find between the ranks of a fleet, worst first and by rule id among equals.
fn run_on_fleet(fleet: &FleetReport) -> Vec<Finding> {
    let rules = RULES.iter().filter_map(|rule| rule.check_fleet);
    let mut findings: Vec<Finding> = rules.flat_map(|check| check(fleet)).collect();
    findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    findings
}

/// What the rules find on the GPUs that a check ran on, beside each other; worst first and by rule id among equals.
pub fn run_on_gpus(gpus: &GpusReport) -> Vec<Finding> {
    let rules = RULES.iter().filter_map(|rule| rule.check_gpus);
    let mut findings: Vec<Finding> = rules.flat_map(|check| check(gpus)).collect();
    findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    findings
}

/// The rule with this id, in any case and with `_` for `-`; `None` when there is none ([`nearest`] suggests one).
pub fn rule(id: &str) -> Option<&'static Rule> {
    let wanted = suggest::normalise(id);
    RULES.iter().find(|rule| rule.id == wanted)
}
