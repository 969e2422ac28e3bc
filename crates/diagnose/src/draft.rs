use crate::rules::Rule;
use facts::{Confidence, Evidence, Fact, Finding, RemedyStep, Severity};

/// A finding under construction: evidence, then the cause, then the fix.
pub(crate) struct Draft(Finding);

impl Rule {
    /// Starts a finding of this rule.
    pub(crate) fn finding(
        &self,
        severity: Severity,
        confidence: Confidence,
        title: impl Into<String>,
    ) -> Draft {
        Draft(Finding {
            rule: self.id.to_owned(),
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cause: String::new(),
            fix: Vec::new(),
            remedy: Vec::new(),
            confidence,
            links: self.links.iter().map(|&link| link.to_owned()).collect(),
        })
    }
}

impl Draft {
    /// Adds an observation and its source.
    pub(crate) fn evidence(mut self, what: impl Into<String>, source: impl Into<String>) -> Self {
        self.0.evidence.push(Evidence { what: what.into(), source: source.into() });
        self
    }

    /// Adds a recorded fact with its name; nothing if the fact is unknown.
    pub(crate) fn fact<T: std::fmt::Display>(self, name: &str, fact: Option<&Fact<T>>) -> Self {
        match fact {
            Some(fact) => self.evidence(format!("{name} {}", fact.value), fact.source.clone()),
            None => self,
        }
    }

    /// Sets the cause.
    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = cause.into();
        self
    }

    /// Adds steps, in execution order.
    pub(crate) fn fix<S: Into<RemedyStep>>(mut self, steps: impl IntoIterator<Item = S>) -> Self {
        for step in steps {
            let step = step.into();
            self.0.fix.push(step.to_string());
            self.0.remedy.push(step);
        }
        self
    }

    /// Returns the finding.
    pub(crate) fn finish(self) -> Finding {
        self.0
    }
}
