//! A model's needs on this machine: kernels per layer type, slow paths where a kernel is missing, and memory.

mod kernels;
mod memory;
#[cfg(test)]
mod tests;

use architectures::{Architecture, Config, ConfigError, ModelFamily};
use facts::CompactSort;
use facts::{
    Confidence, Finding, KernelNeed, KernelStatus, LayerGroup, Machine, ModelReport, PyEnv,
    Severity,
};

/// Options of a model check.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// Path of the config, for the report.
    pub source: String,
    /// Tokens per sequence, limited by the config's own maximum.
    pub context_tokens: u64,
    /// Concurrent sequences.
    pub sequences: u64,
    /// Sizes from the weight files, if they exist.
    pub weights: Option<Weights>,
}

/// Parameters and bytes from the headers of the weight files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// The source of the sizes.
    pub source: String,
}

/// Reads a model's needs from the text of its config.json and compares them with the machine.
///
/// # Errors
/// [`ConfigError`] if the text is not a config, or not one of a known model family.
pub fn model(
    config: &str,
    options: &ModelOptions,
    machine: &Machine,
    envs: &[PyEnv],
    findings: &[Finding],
) -> Result<(ModelReport, Vec<Finding>), ConfigError> {
    let config = Config::parse(&options.source, config)?;
    let described = Architecture::describe(&config)?;
    let layers = groups(&described);
    let without_kernels = ModelFamily::of(&config).and_then(|family| family.without_kernels);
    let kernels = kernels::needs(&layers, without_kernels, machine, envs, findings);
    let memory = memory::of(&config, &described, options, machine);
    let report = ModelReport {
        config: options.source.clone(),
        architecture: config.name().to_owned(),
        family: described.family.to_owned(),
        layers,
        kernels,
        memory,
    };
    let found = judge(&report, machine, envs);
    Ok((report, found))
}

/// The kinds of layers in a config.json, each once, in model order.
///
/// # Errors
/// [`ConfigError`] if the text is not a config, or not one of a known model family.
pub fn layer_kinds(config: &str, path: &str) -> Result<Vec<&'static str>, ConfigError> {
    let mut kinds = Vec::new();
    for layer in Architecture::describe(&Config::parse(path, config)?)?.layers {
        if !kinds.contains(&layer.mixer.kind()) {
            kinds.push(layer.mixer.kind());
        }
    }
    Ok(kinds)
}

/// The finding for a model that does not fit into the memory of its report. `held_weights` is the size in bytes of the
/// weights as the engine holds them, if it differs from the stored size. `processes` says whether `firstlight ps` can
/// list the processes that use the memory.
pub fn memory_finding(
    report: &ModelReport,
    held_weights: Option<u64>,
    processes: bool,
) -> Option<Finding> {
    memory::finding(report, held_weights, processes)
}

fn groups(described: &Architecture) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for (index, layer) in (0..).zip(&described.layers) {
        let kind = layer.mixer.kind();
        match groups.iter_mut().find(|group| group.kind == kind) {
            Some(group) => group.indices.push(index),
            None => groups.push(LayerGroup { kind: kind.to_owned(), indices: vec![index] }),
        }
    }
    groups
}

/// The findings: the slow paths in each environment, and a model that does not fit.
fn judge(report: &ModelReport, machine: &Machine, envs: &[PyEnv]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for env in envs {
        let wrong: Vec<&KernelNeed> = report
            .kernels
            .iter()
            .filter(|need| need.env.as_deref() == Some(env.root.as_str()))
            .filter(|need| matches!(need.status, KernelStatus::Missing | KernelStatus::Broken))
            .collect();
        found.extend(slow_path(report, machine, env, &wrong));
    }
    found.extend(memory_finding(report, None, machine.driver.is_some()));
    found
}

fn slow_path(
    report: &ModelReport,
    machine: &Machine,
    env: &PyEnv,
    wrong: &[&KernelNeed],
) -> Option<Finding> {
    let first = wrong.first()?;
    let mut packages: Vec<&str> = wrong.iter().map(|need| need.package.as_str()).collect();
    packages.compact_sort();
    packages.dedup();
    let layers: usize = report
        .layers
        .iter()
        .filter(|group| wrong.iter().any(|need| need.layer == group.kind))
        .map(|group| group.indices.len())
        .sum();
    let total: usize = report.layers.iter().map(|group| group.indices.len()).sum();
    let rule = crate::rule("slow-hybrid-path")?;
    // Without these, no layer runs.
    let absent: Vec<&str> =
        ["torch", "transformers"].into_iter().filter(|name| env.dist(name).is_none()).collect();
    let root = &env.root;
    let (take, place) = match absent.is_empty() {
        true => ("take", root.clone()),
        false => (
            "would take",
            format!("{root}, where nothing runs yet: no {}", absent.join(" and no ")),
        ),
    };
    // Packages that cannot be installed or run here give no warning: the model belongs on another machine.
    let elsewhere = kernels::why_not_here(machine, env, &report.config);
    let mut draft = rule.finding(
        if elsewhere.is_some() { Severity::Info } else { Severity::Warning },
        Confidence::Certain,
        format!(
            "{layers} of {total} layers of {} {take} their slow path in {place}: {} missing",
            report.architecture,
            packages.join(", ")
        ),
    );
    for need in wrong {
        let words = format!(
            "{} layers want {} of {}: {}",
            need.layer,
            need.functions.join(", "),
            need.package,
            need.reason
        );
        draft = draft.evidence(words, report.config.clone());
    }
    Some(match elsewhere {
        Some((why, fix)) => {
            let cause = format!("{} They cannot be had here: {why}.", first.otherwise);
            draft.cause(cause).fix(fix).finish()
        }
        None => {
            let commands = kernels::commands(machine, env, wrong, &report.config);
            draft.cause(first.otherwise.clone()).fix(commands).finish()
        }
    })
}
