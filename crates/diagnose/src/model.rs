//! What a model's layers need here: kernels by layer type, the slow path taken where one is missing, and memory.
//!
//! # Adding a model family
//!
//! 1. Write `model/families/<name>.rs` with a `pub(super) const FAMILY: Family`: the names it goes by in config.json and
//!    a function from the config to its layers. The parts of a layer (`parts`) count parameters, state and cache.
//! 2. Name it in `model/families.rs`: the `mod` line and the row in [`FAMILIES`].

mod config;
mod families;
mod kernels;
mod layer;
mod memory;
mod parts;
#[cfg(test)]
mod tests;

use config::Config;
use facts::{
    Confidence, Finding, KernelNeed, KernelStatus, LayerGroup, Machine, ModelReport, PyEnv,
    Severity,
};
pub use families::{FAMILIES, Family};
use layer::Layer;

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

/// Why a config says nothing about its layers.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It is no JSON object.
    #[error("{path} is no config.json: {reason}")]
    NotAConfig {
        /// The file.
        path: String,
        /// What the parser says.
        reason: String,
    },
    /// No family knows it.
    #[error("{path} describes a model of no known family ({model_type})")]
    UnknownFamily {
        /// The file.
        path: String,
        /// Its `model_type` and `architectures`.
        model_type: String,
    },
    /// A key that the family needs is missing or has another type.
    #[error("{path} has no usable `{key}`, which a {family} config has")]
    MissingKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The family.
        family: &'static str,
    },
    /// Two keys contradict each other.
    #[error("{path}: {what}")]
    Contradiction {
        /// The file.
        path: String,
        /// What contradicts what.
        what: String,
    },
}

/// Reads a model's needs from the text of its config.json, and holds them against the machine.
///
/// # Errors
/// [`ModelError`] when the text is no config, or not one of a known family.
pub fn model(
    config: &str,
    options: &ModelOptions,
    machine: &Machine,
    envs: &[PyEnv],
    findings: &[Finding],
) -> Result<(ModelReport, Vec<Finding>), ModelError> {
    let path = &options.source;
    let value = value(config, path)?;
    let (config, family, layers) = layers(&value, path)?;
    let outside = parts::outside(&config).map_err(|wrong| wrong.of(path, family))?;
    let kinds = groups(&layers);
    let kernels = kernels::needs(&layers, family, machine, envs, findings);
    let memory = memory::of(&config, &layers, outside, options, machine);
    let report = ModelReport {
        config: path.clone(),
        architecture: config.architecture(),
        family: family.name.to_owned(),
        layers: kinds,
        kernels,
        memory,
    };
    let found = judge(&report, machine, envs);
    Ok((report, found))
}

/// The kinds of layers a config.json describes, each once, in the order of the model.
///
/// # Errors
/// [`ModelError`] when the text is no config, or not one of a known family.
pub fn layer_kinds(config: &str, path: &str) -> Result<Vec<&'static str>, ModelError> {
    let value = value(config, path)?;
    let mut kinds: Vec<&'static str> = Vec::new();
    for layer in layers(&value, path)?.2 {
        if !kinds.contains(&layer.kind.name()) {
            kinds.push(layer.kind.name());
        }
    }
    Ok(kinds)
}

fn value(config: &str, path: &str) -> Result<serde_json::Value, ModelError> {
    serde_json::from_str(config).map_err(|reason| ModelError::NotAConfig {
        path: path.to_owned(),
        reason: reason.to_string(),
    })
}

fn layers<'a>(
    value: &'a serde_json::Value,
    path: &str,
) -> Result<(Config<'a>, &'static Family, Vec<Layer>), ModelError> {
    let config = Config::new(value).ok_or_else(|| ModelError::NotAConfig {
        path: path.to_owned(),
        reason: "not a JSON object".into(),
    })?;
    let family = families::of(&config).ok_or_else(|| ModelError::UnknownFamily {
        path: path.to_owned(),
        model_type: config.names().join(", "),
    })?;
    let layers = (family.layers)(&config).map_err(|wrong| wrong.of(path, family))?;
    Ok((config, family, layers))
}

fn groups(layers: &[Layer]) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for (index, layer) in (0..).zip(layers) {
        let kind = layer.kind.name();
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
    found.extend(memory::finding(report));
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
    packages.sort_unstable();
    packages.dedup();
    let layers: usize = report
        .layers
        .iter()
        .filter(|group| wrong.iter().any(|need| need.layer == group.kind))
        .map(|group| group.indices.len())
        .sum();
    let total: usize = report.layers.iter().map(|group| group.indices.len()).sum();
    let rule = crate::rule("slow-hybrid-path")?;
    let mut draft = rule.finding(
        Severity::Warning,
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
    Some(draft.cause(first.otherwise.clone()).fix(kernels::commands(machine, env, wrong)).done())
}
