use crate::CompactSort;
use crate::{Machine, ModelReport, PyEnv, RemedyStep, SCHEMA, SupportMatrix};
use serde::{Deserialize, Serialize};

/// The report of `firstlight doctor --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Always [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub machine: Machine,
    /// The Python environments that were read.
    pub envs: Vec<PyEnv>,
    /// All findings, the most severe first.
    pub findings: Vec<Finding>,
    /// The requirements of a model on this machine, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReport>,
    /// The support matrix, in a run folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<SupportMatrix>,
}

impl DoctorReport {
    /// A report with findings sorted worst first, then by rule id, so that its text does not depend on rule order.
    pub fn new(machine: Machine, envs: Vec<PyEnv>, mut findings: Vec<Finding>) -> Self {
        findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
        Self { schema: SCHEMA, machine, envs, findings, model: None, matrix: None }
    }
}

/// Severity of a finding; worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something cannot work until it is fixed.
    Error,
    /// Something is worse than the user assumes, or will fail later.
    Warning,
    /// Information; no action is needed.
    Info,
}

/// How sure a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The evidence has no other explanation.
    Certain,
    /// The usual cause of this evidence.
    Likely,
    /// One of several causes.
    Possible,
}

/// One observation that supports a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The observation, with the number or word itself.
    pub what: String,
    /// Its source: a file, a symbol, a library call.
    pub source: String,
}

/// Something wrong (or worth knowing) about a machine or an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable rule id: `cpu-only-torch`.
    pub rule: String,
    /// How bad it is.
    pub severity: Severity,
    /// The problem in one line.
    pub title: String,
    /// The observations that support it; never empty.
    pub evidence: Vec<Evidence>,
    /// The cause.
    pub cause: String,
    /// Commands for this machine and environment, in order.
    pub fix: Vec<String>,
    /// The same steps as data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<RemedyStep>,
    /// How sure the rule is.
    pub confidence: Confidence,
    /// Public issue threads or documents.
    pub links: Vec<String>,
}
