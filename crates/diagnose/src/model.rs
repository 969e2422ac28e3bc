//! What a model's layers need here: kernels by layer type, the slow path taken where one is missing, and memory.

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

/// What is asked about a model.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// The config's path, for the report.
    pub source: String,
    /// Tokens of each sequence; the config's own limit cuts it.
    pub context_tokens: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// The weight files' own count, where they are there.
    pub weights: Option<Weights>,
}

/// Parameters and bytes by the headers of the weight files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Where they were read.
    pub source: String,
}

/// Reads a model's needs from the text of its config.json, and holds them against the machine.
///
/// # Errors
/// [`ConfigError`] when the text is no config, or not one of a known family.
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
    let demands = ModelFamily::of(&config).and_then(|family| family.demands);
    let kernels = kernels::needs(&layers, demands, machine, envs, findings);
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

/// The kinds of layers a config.json describes, each once, in the order of the model.
///
/// # Errors
/// [`ConfigError`] when the text is no config, or not one of a known family.
pub fn layer_kinds(config: &str, path: &str) -> Result<Vec<&'static str>, ConfigError> {
    let mut kinds = Vec::new();
    for layer in Architecture::describe(&Config::parse(path, config)?)?.layers {
        if !kinds.contains(&layer.mixer.kind()) {
            kinds.push(layer.mixer.kind());
        }
    }
    Ok(kinds)
}

/// The finding of a model that does not fit, by the memory that its report has. `held_weights` are the bytes of the weights as the
/// engine holds them, if that is not as they are stored. `processes` says whether `firstlight ps` can show who has the memory.
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

/// The slow paths that would be taken in each environment, and a model that does not fit.
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
    // What cannot be installed here, or would not run, is nothing to warn of: the model belongs on another machine.
    let elsewhere = kernels::why_not_here(machine, env, &report.config);
    let mut draft = rule.finding(
        if elsewhere.is_some() { Severity::Info } else { Severity::Warning },
        Confidence::Certain,
        format!(
            "{} of {total} layers of {} take their slow path in {}: {} missing",
            layers,
            report.architecture,
            env.root,
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
            draft.cause(cause).fix(fix).done()
        }
        None => {
            let commands = kernels::commands(machine, env, wrong, &report.config);
            draft.cause(first.otherwise.clone()).fix(commands).done()
        }
    })
}
