use crate::CompactSort;
use crate::{Machine, ModelReport, PyEnv, RemedyStep, SCHEMA, SupportMatrix};
use serde::{Deserialize, Serialize};

/// What `firstlight doctor --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Always [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub machine: Machine,
    /// The Python environments that were read.
    pub envs: Vec<PyEnv>,
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// What a model needs here, when one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelReport>,
    /// What works on which platform, in a run folder.
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

/// How bad a finding is; the order is worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something cannot work until it is fixed.
    Error,
    /// Something works worse than its user believes, or will break.
    Warning,
    /// Worth knowing; nothing needs doing.
    Info,
}

/// How sure a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The evidence allows no other reading.
    Certain,
    /// The usual cause of this evidence.
    Likely,
    /// One of several causes.
    Possible,
}

/// One observation behind a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was seen, with the number or the word itself.
    pub what: String,
    /// Where: a file, a symbol, a library call.
    pub source: String,
}

/// Something wrong (or worth knowing) about a machine or an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Rule id, stable: `cpu-only-torch`.
    pub rule: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub title: String,
    /// The observations it rests on; never empty.
    pub evidence: Vec<Evidence>,
    /// Why it is so.
    pub cause: String,
    /// Commands for this machine and environment, in order.
    pub fix: Vec<String>,
    /// The same as data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<RemedyStep>,
    /// How sure the rule is.
    pub confidence: Confidence,
    /// Public issue threads or documents.
    pub links: Vec<String>,
}
