//! Machines and environments for tests of the rules, and the check of every rule's cases.

mod envs;
pub(crate) mod machines;
pub(crate) mod processes;

pub(crate) use envs::{
    EnvBuilder, elf, elf_missing_library, env, found, image, missing_version, with_code,
};

use crate::rules::{Context, Rule};
use facts::{Confidence, Finding, Machine, PyEnv, Severity};

/// One machine with its environments, and the findings that a rule must have on them.
pub(crate) struct Case {
    /// Describes the case if it fails.
    pub(crate) what: &'static str,
    /// The machine.
    pub(crate) machine: Machine,
    /// Its environments.
    pub(crate) envs: Vec<PyEnv>,
    /// The expected findings in order; empty if the rule must find nothing.
    pub(crate) expect: Vec<Expect>,
}

/// The properties of one expected finding.
pub(crate) struct Expect {
    severity: Severity,
    confidence: Confidence,
    /// Phrases that must occur in its title, evidence, cause or commands.
    phrases: Vec<&'static str>,
    /// Phrases that must not occur.
    absent: Vec<&'static str>,
}

impl Case {
    /// A case in which the rule finds nothing, unless [`Case::finds`] follows.
    pub(crate) fn new(what: &'static str, machine: Machine, envs: Vec<PyEnv>) -> Self {
        Self { what, machine, envs, expect: Vec::new() }
    }

    /// Expects one more finding, with these phrases.
    pub(crate) fn finds(
        mut self,
        severity: Severity,
        confidence: Confidence,
        phrases: &[&'static str],
    ) -> Self {
        let phrases = phrases.to_vec();
        self.expect.push(Expect { severity, confidence, phrases, absent: Vec::new() });
        self
    }

    /// Expects that the last finding lacks these phrases.
    pub(crate) fn without(mut self, phrases: &[&'static str]) -> Self {
        self.expect.last_mut().expect("a finding to be silent in").absent.extend(phrases);
        self
    }
}

/// Runs one rule on one case.
pub(crate) fn check(rule: &Rule, case: &Case) {
    let context = Context { machine: &case.machine, envs: &case.envs };
    let findings = rule.check.expect("a static test")(&context);
    let at = format!("{}: {}", rule.id, case.what);
    assert_eq!(findings.len(), case.expect.len(), "{at}: {findings:#?}");
    for (finding, expect) in findings.iter().zip(&case.expect) {
        assert_eq!(finding.rule, rule.id, "{at}");
        assert_eq!(finding.severity, expect.severity, "{at}: {finding:#?}");
        assert_eq!(finding.confidence, expect.confidence, "{at}: {finding:#?}");
        let text = everything(finding);
        for phrase in &expect.phrases {
            assert!(text.contains(phrase), "{at}: {phrase:?} is not in\n{text}");
        }
        for phrase in &expect.absent {
            assert!(!text.contains(phrase), "{at}: {phrase:?} is in\n{text}");
        }
    }
}

fn everything(finding: &Finding) -> String {
    let mut lines = vec![finding.title.clone(), finding.cause.clone()];
    lines.extend(finding.evidence.iter().map(|e| format!("{} [{}]", e.what, e.source)));
    lines.extend(finding.fix.iter().cloned());
    lines.join("\n")
}
