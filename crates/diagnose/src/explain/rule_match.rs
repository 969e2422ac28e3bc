//! The match of a rule's messages in a text, and its judgement with the facts of this machine and its environments.

use super::Match;
use super::cause::Cause;
use super::entity::Entity;
use crate::rules::{Also, Context, PastedError, Rule};
use crate::text::{Pasted, Pattern, Text};
use facts::{Evidence, Machine, Severity};
use std::collections::BTreeMap;

/// The best match of a rule's messages.
pub(super) struct RuleMatch {
    pub(super) rule: &'static Rule,
    pub(super) pattern: &'static str,
    /// The start of the first match among the rule's patterns.
    pub(super) first: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) weight: usize,
    /// The sum of the weights of the rule's matches at different places: two messages are better evidence than one.
    pub(super) score: usize,
    pub(super) words: Vec<(String, String)>,
    /// Whether an entity leads to the rule.
    pub(super) by_entity: bool,
}

impl Also {
    fn cause(&self) -> Cause {
        Cause::new(self.cause).check(self.check.iter().copied())
    }
}

impl RuleMatch {
    /// A match of the rule that an entity leads to.
    pub(super) fn of_entity(rule: &'static Rule, entity: &Entity) -> Self {
        let (start, end) = entity.span;
        let weight = end - start;
        Self {
            rule,
            pattern: entity.kind,
            first: start,
            start,
            end,
            weight,
            score: weight,
            words: Vec::new(),
            by_entity: true,
        }
    }

    pub(super) fn best(
        rule: &'static Rule,
        texts: &[(usize, &'static Text, Pattern)],
        pasted: &Pasted,
    ) -> Option<Self> {
        let found =
            texts.iter().filter_map(|(_, text, pattern)| Some((text, pasted.find(pattern)?)));
        let found: Vec<_> = found.collect();
        // Patterns that match at the same byte are one message; the longest counts.
        let mut signs: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, found) in &found {
            let sign = signs.entry(found.start).or_default();
            *sign = found.weight.max(*sign);
        }
        let score = signs.values().sum();
        let first = found.iter().map(|(_, found)| found.start).min()?;
        // The remedy may need a word of any pattern: a log has the address in one line and the failure in another.
        let words = found.iter().flat_map(|(_, found)| found.words.clone()).collect();
        let (text, found) = found.into_iter().max_by_key(|(_, found)| found.weight)?;
        let (start, end, weight) = (found.start, found.end, found.weight);
        let (pattern, by_entity) = (text.pattern, false);
        Some(Self { rule, pattern, first, start, end, weight, score, words, by_entity })
    }
}

pub(super) fn judge(hit: RuleMatch, context: &Context, place: &Context, text: &str) -> Match {
    let rule = hit.rule;
    let mut findings = rule.check.map_or_else(Vec::new, |check| check(context));
    let able = rule.check.is_some() && rule.needs.iter().all(|need| need.met(context));
    let seen = PastedError { context: *place, text, words: hit.words };
    // A finding of severity info is not a fault; only the rule's `observe` shows whether it caused the message.
    let fault = findings.iter().any(|finding| finding.severity != Severity::Info);
    if !fault && !able {
        findings.clear();
    }
    let look = if fault { None } else { rule.observe.and_then(|look| look(&seen)) };
    let confirmed_here = match (&look, findings.is_empty(), able) {
        (Some(look), ..) => Some(look.agrees),
        (None, false, _) => Some(true),
        (None, true, true) => Some(false),
        (None, true, false) => None,
    };
    let found: Vec<String> = findings.iter().flat_map(|finding| finding.fix.clone()).collect();
    let fix = match confirmed_here {
        // A cause that these files refute is fixed on another machine, or was fixed before.
        Some(false) if !hit.pattern.is_empty() => Vec::new(),
        _ if found.is_empty() => (rule.remedy)(&seen),
        _ => found,
    };
    let fix_elsewhere = match confirmed_here {
        Some(false) if !hit.pattern.is_empty() => {
            let unknown = Machine::unknown();
            let elsewhere = PastedError {
                context: Context { machine: &unknown, envs: &[] },
                text,
                words: seen.words.clone(),
            };
            (rule.remedy)(&elsewhere)
        }
        _ => Vec::new(),
    };
    let evidence = findings.iter().flat_map(|finding| finding.evidence.clone());
    let mut evidence: Vec<Evidence> = evidence.chain(look.map(|look| look.evidence)).collect();
    if confirmed_here == Some(false) && evidence.is_empty() {
        evidence.extend(rule.needs.iter().flat_map(|need| need.evidence(context)));
    }
    let causes = match confirmed_here {
        None if !hit.pattern.is_empty() => rule.also.iter().map(Also::cause).collect(),
        _ => Vec::new(),
    };
    Match {
        rule,
        meaning: None,
        pattern: hit.pattern,
        findings,
        evidence,
        confirmed_here,
        fix,
        fix_elsewhere,
        causes,
        span: (hit.first, hit.end),
        by_entity: hit.by_entity,
    }
}
