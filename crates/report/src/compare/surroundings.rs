//! Differences in the surroundings of two runs: machine, stack, source, findings.

use super::Recorded;
use facts::CompactSort;
use facts::{Difference, DoctorReport, FindingChange, RunState, Severity};
use std::collections::BTreeMap;

/// The facts that differ between the runs; a fact that neither run recorded is no difference.
pub(super) fn differences(base: &Recorded<'_>, run: &Recorded<'_>) -> Vec<Difference> {
    let (before, after) = (named_facts(base), named_facts(run));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.compact_sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| Difference {
            what: name.clone(),
            base: before.get(name).cloned(),
            run: after.get(name).cloned(),
        })
        .collect()
}

/// The compared facts of a run by name.
fn named_facts(recorded: &Recorded<'_>) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut tell = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(what.to_owned(), value);
        }
    };
    if let Some(doctor) = recorded.doctor {
        let machine = &doctor.machine;
        tell("platform", Some(machine.platform.to_string()));
        tell("processor", machine.cpu.model.as_ref().map(|fact| fact.value.clone()));
        let cores = machine.cpu.usable_cores.as_ref();
        tell("usable cores", cores.map(|fact| fact.value.to_string()));
        tell("kernel", machine.os.kernel.as_ref().map(|fact| fact.value.clone()));
        for gpu in &machine.gpus {
            tell(&format!("GPU {}", gpu.index), Some(gpu.name.value.clone()));
        }
        let driver = machine.driver.as_ref().and_then(|driver| driver.version());
        tell("driver", driver.map(|fact| fact.value.clone()));
        for env in &doctor.envs {
            for name in ["torch", "triton"] {
                let version = env.dist(name).map(|dist| dist.version.clone());
                tell(&format!("{name} of {}", env.root), version);
            }
        }
    }
    if let Some(manifest) = recorded.manifest {
        let built = manifest.built_from.as_ref().map(|tree| {
            let dirty = if tree.dirty { ", with changes that are in no commit" } else { "" };
            format!("{}{dirty}", tree.commit)
        });
        tell("firstlight", Some(manifest.version.clone()));
        tell("built from", built);
        tell("state", (manifest.state == RunState::Incomplete).then(|| "incomplete".to_owned()));
    }
    facts
}

/// Errors and warnings that only one of the runs has.
pub(super) fn findings(
    base: Option<&DoctorReport>,
    run: Option<&DoctorReport>,
) -> Vec<FindingChange> {
    let (Some(base), Some(run)) = (base, run) else { return Vec::new() };
    let only = |these: &DoctorReport, others: &DoctorReport, appeared: bool| {
        let known = |rule: &str, title: &str| {
            others.findings.iter().any(|other| other.rule == rule && other.title == title)
        };
        let found = these.findings.iter().filter(|finding| finding.severity != Severity::Info);
        found
            .filter(|finding| !known(&finding.rule, &finding.title))
            .map(|finding| FindingChange {
                rule: finding.rule.clone(),
                title: finding.title.clone(),
                appeared,
                is_error: finding.severity == Severity::Error,
            })
            .collect::<Vec<_>>()
    };
    let mut changes = only(run, base, true);
    changes.extend(only(base, run, false));
    changes
}

/// The GPUs and processor that the kernels of a run ran on: a gate does not compare different hardware.
pub(super) fn hardware(recorded: &Recorded<'_>) -> Option<String> {
    let machine = &recorded.doctor?.machine;
    let gpus: Vec<&str> = machine.gpus.iter().map(|gpu| gpu.name.value.as_str()).collect();
    let cpu = machine.cpu.model.as_ref().map(|fact| fact.value.as_str());
    let parts: Vec<&str> = gpus.into_iter().chain(cpu).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}
