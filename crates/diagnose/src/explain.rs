//! From pasted words to rules, and whether this machine's files agree.

use crate::oom::{self, OutOfMemory};
use crate::rules::{Context, RULES, Rule, Seen};
use crate::text::Pasted;
use facts::{Evidence, Finding, Machine, PyEnv, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// One rule that a pasted text shows.
#[derive(Debug)]
pub struct Match {
    /// The rule.
    pub rule: &'static Rule,
    /// The pattern of the rule that fits best; empty when the rule was asked for by name.
    pub pattern: &'static str,
    /// What the rule finds here, worst first.
    pub findings: Vec<Finding>,
    /// What was seen here, for or against.
    pub evidence: Vec<Evidence>,
    /// Whether the files here agree: `Some(true)` when the rule finds something, `Some(false)` when it looked and found
    /// nothing, `None` when it cannot see this in files, or what it would look at is not here.
    pub confirmed_here: Option<bool>,
    /// Commands for this machine and environment.
    pub fix: Vec<String>,
}

/// Every rule that a text shows, the most specific words first; among rules with the same words, those the files here
/// agree with come first. Empty when no rule knows the text.
pub fn explain(text: &str, machine: &Machine, envs: &[PyEnv]) -> Vec<Match> {
    let pasted = Pasted::new(text);
    let mut hits: Vec<Hit> = RULES.iter().filter_map(|rule| Hit::best(rule, &pasted)).collect();
    // Words inside another rule's longer words are a part of that error, not another one.
    let inside = |hit: &Hit, other: &Hit| {
        other.weight > hit.weight && other.start <= hit.start && hit.end <= other.end
    };
    let kept: Vec<bool> =
        hits.iter().map(|hit| !hits.iter().any(|other| inside(hit, other))).collect();
    let mut keep = kept.into_iter();
    hits.retain(|_| keep.next().unwrap_or(true));
    let context = Context { machine, envs };
    let spaced = pasted.spaced();
    let mut matches: Vec<(usize, Match)> =
        hits.into_iter().map(|hit| (hit.score, judge(hit, &context, &spaced))).collect();
    let doubt = |found: &Match| match found.confirmed_here {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    };
    matches.sort_by_key(|(score, found)| (std::cmp::Reverse(*score), doubt(found)));
    matches.into_iter().map(|(_, found)| found).collect()
}

/// Whether any rule knows a text.
pub fn knows(text: &str) -> bool {
    let pasted = Pasted::new(text);
    RULES.iter().any(|rule| rule.texts.iter().any(|words| pasted.find(words.pattern).is_some()))
}

/// What one rule says of this machine and its environments, asked for by name.
pub fn explain_rule(rule: &'static Rule, machine: &Machine, envs: &[PyEnv]) -> Match {
    let hit = Hit { rule, pattern: "", start: 0, end: 0, weight: 0, score: 0, words: Vec::new() };
    judge(hit, &Context { machine, envs }, "")
}

/// Which memory a text says ran out (row R1-05).
pub fn out_of_memory_in(text: &str) -> Option<OutOfMemory> {
    oom::first_in(&Pasted::new(text).spaced())
}

struct Hit {
    rule: &'static Rule,
    pattern: &'static str,
    start: usize,
    end: usize,
    weight: usize,
    /// The weights of all patterns of the rule that fit: two signs of one rule say more than one.
    score: usize,
    words: Vec<(String, String)>,
}

impl Hit {
    fn best(rule: &'static Rule, pasted: &Pasted) -> Option<Self> {
        let found = rule.texts.iter().filter_map(|text| Some((text, pasted.find(text.pattern)?)));
        let found: Vec<_> = found.collect();
        let score = found.iter().map(|(_, found)| found.weight).sum();
        // What any of the patterns names may be asked for: a log has the address in one line and the failure in another.
        let words = found.iter().flat_map(|(_, found)| found.words.clone()).collect();
        let (text, found) = found.into_iter().max_by_key(|(_, found)| found.weight)?;
        let (start, end, weight) = (found.start, found.end, found.weight);
        Some(Self { rule, pattern: text.pattern, start, end, weight, score, words })
    }
}

fn judge(hit: Hit, context: &Context, text: &str) -> Match {
    let rule = hit.rule;
    let findings = rule.check.map_or_else(Vec::new, |check| check(context));
    let able = rule.check.is_some() && rule.needs.iter().all(|need| need.met(context));
    let seen = Seen { context: *context, text, words: hit.words };
    // Information is no fault: whether someone's words come from it, only a look tells.
    let fault = findings.iter().any(|finding| finding.severity != Severity::Info);
    let look = if fault { None } else { rule.look.and_then(|look| look(&seen)) };
    let confirmed_here = match (&look, findings.is_empty(), able) {
        (Some(look), ..) => Some(look.agrees),
        (None, false, _) => Some(true),
        (None, true, true) => Some(false),
        (None, true, false) => None,
    };
    let found: Vec<String> = findings.iter().flat_map(|finding| finding.fix.clone()).collect();
    let fix = if found.is_empty() { (rule.remedy)(&seen) } else { found };
    let evidence = findings.iter().flat_map(|finding| finding.evidence.clone());
    let evidence = evidence.chain(look.map(|look| look.evidence)).collect();
    Match { rule, pattern: hit.pattern, findings, evidence, confirmed_here, fix }
}

/// The rules whose words are nearest to a text that none of them knows; at most three, none when nothing is shared.
pub fn nearest_to_text(text: &str) -> Vec<&'static Rule> {
    let known: Vec<(&Rule, BTreeSet<String>)> =
        RULES.iter().map(|rule| (rule, vocabulary(rule))).collect();
    let mut frequency: BTreeMap<&str, usize> = BTreeMap::new();
    for word in known.iter().flat_map(|(_, words)| words) {
        *frequency.entry(word).or_default() += 1;
    }
    let asked = words(&Pasted::new(text).spaced());
    let mut scored: Vec<(f64, &Rule)> = known
        .iter()
        .map(|(rule, words)| {
            // A word that few rules use says more than one that all of them use.
            let weight =
                |word: &&String| 1.0 / frequency.get(word.as_str()).copied().unwrap_or(1) as f64;
            (asked.intersection(words).map(|word| weight(&word)).sum(), *rule)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    // Half a word of its own is the least that makes a rule worth showing.
    scored.into_iter().filter(|(score, _)| *score >= 0.5).take(3).map(|(_, rule)| rule).collect()
}

fn vocabulary(rule: &Rule) -> BTreeSet<String> {
    let mut all = words(rule.title);
    for text in rule.texts {
        all.extend(words(text.sample));
    }
    all.extend(words(&rule.id.replace('-', " ")));
    all
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| word.len() > 3 && word.parse::<f64>().is_err())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests;
