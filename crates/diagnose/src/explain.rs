//! From pasted words to rules, and whether this machine's files agree.

use crate::oom::{self, OutOfMemory};
use crate::rules::{Context, RULES, Rule, Seen};
use crate::text::{Pasted, Pattern, Text};
use facts::{Evidence, Finding, Machine, PyEnv, Severity};
use std::collections::BTreeMap;
use std::sync::OnceLock;

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

/// Every rule that a text shows. What the files here refute comes last; before it causes, remarks and consequences, each
/// in the order of the text; of rules with the same words those with more words, then those the files here agree with.
/// Empty when no rule knows the text.
pub fn explain(text: &str, machine: &Machine, envs: &[PyEnv]) -> Vec<Match> {
    let pasted = Pasted::new(text);
    let mut hits: Vec<Hit> = known()
        .chunk_by(|one, next| one.0 == next.0)
        .filter_map(|texts| Hit::best(&RULES[texts[0].0], texts, &pasted))
        .collect();
    // Words inside another rule's longer words are a part of that error, not another one.
    let inside = |hit: &Hit, other: &Hit| {
        other.weight > hit.weight && other.start <= hit.start && hit.end <= other.end
    };
    let kept: Vec<bool> =
        hits.iter().map(|hit| !hits.iter().any(|other| inside(hit, other))).collect();
    let mut keep = kept.into_iter();
    hits.retain(|_| keep.next().unwrap_or(true));
    let spaced = pasted.spaced();
    let meant = environments_of(&spaced, envs);
    let context = Context { machine, envs: &meant };
    let mut matches: Vec<(usize, usize, Match)> =
        hits.into_iter().map(|hit| (hit.first, hit.score, judge(hit, &context, &spaced))).collect();
    matches.sort_by_key(|(first, score, found)| {
        let refuted = found.confirmed_here == Some(false);
        let unconfirmed = found.confirmed_here != Some(true);
        (refuted, found.rule.role, *first, std::cmp::Reverse(*score), unconfirmed)
    });
    matches.into_iter().map(|(.., found)| found).collect()
}

/// The environments a text is about. One that names files of some environment is about no other, unless the user named
/// that one.
fn environments_of(text: &str, envs: &[PyEnv]) -> Vec<PyEnv> {
    let mut named = Vec::new();
    for mark in ["/site-packages/", "/dist-packages/"] {
        for (at, _) in text.match_indices(mark) {
            let begin = text[..at].rfind(|c: char| c.is_whitespace() || "'\"(=`".contains(c));
            named.push(&text[begin.map_or(0, |begin| begin + 1)..at + mark.len() - 1]);
        }
    }
    let absolute: Vec<&str> = named.into_iter().filter(|path| path.starts_with('/')).collect();
    let meant = |env: &&PyEnv| {
        env.found_by == "--venv"
            || absolute.iter().any(|path| {
                env.site_packages.iter().any(|folder| folder == path)
                    || path.starts_with(&format!("{}/", env.root.trim_end_matches('/')))
            })
    };
    match absolute.is_empty() {
        true => envs.to_vec(),
        false => envs.iter().filter(meant).cloned().collect(),
    }
}

/// Whether any rule knows a text.
pub fn knows(text: &str) -> bool {
    let pasted = Pasted::new(text);
    known().iter().any(|(.., pattern)| pasted.find(pattern).is_some())
}

/// Every pattern of every rule, read once: the rule's place in the list, the words, the pattern.
fn known() -> &'static [(usize, &'static Text, Pattern)] {
    static KNOWN: OnceLock<Vec<(usize, &'static Text, Pattern)>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let texts = |(place, rule): (usize, &'static Rule)| {
            rule.texts.iter().map(move |text| (place, text, Pattern::new(text.pattern)))
        };
        RULES.iter().enumerate().flat_map(texts).collect()
    })
}

/// What one rule says of this machine and its environments, asked for by name.
pub fn explain_rule(rule: &'static Rule, machine: &Machine, envs: &[PyEnv]) -> Match {
    let words = Vec::new();
    let hit = Hit { rule, pattern: "", first: 0, start: 0, end: 0, weight: 0, score: 0, words };
    judge(hit, &Context { machine, envs }, "")
}

/// Which memory a text says ran out (row R1-05).
pub fn out_of_memory_in(text: &str) -> Option<OutOfMemory> {
    oom::first_in(&Pasted::new(text).spaced())
}

struct Hit {
    rule: &'static Rule,
    pattern: &'static str,
    /// Where the first of all patterns of the rule that fit begins.
    first: usize,
    start: usize,
    end: usize,
    weight: usize,
    /// The weights of the patterns of the rule that fit: two signs of one rule say more than one.
    score: usize,
    words: Vec<(String, String)>,
}

impl Hit {
    fn best(
        rule: &'static Rule,
        texts: &[(usize, &'static Text, Pattern)],
        pasted: &Pasted,
    ) -> Option<Self> {
        let found =
            texts.iter().filter_map(|(_, text, pattern)| Some((text, pasted.find(pattern)?)));
        let found: Vec<_> = found.collect();
        // Patterns that begin at the same letter are one sign, told more or less exactly.
        let mut signs: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, found) in &found {
            let sign = signs.entry(found.start).or_default();
            *sign = found.weight.max(*sign);
        }
        let score = signs.values().sum();
        let first = found.iter().map(|(_, found)| found.start).min()?;
        // What any of the patterns names may be asked for: a log has the address in one line and the failure in another.
        let words = found.iter().flat_map(|(_, found)| found.words.clone()).collect();
        let (text, found) = found.into_iter().max_by_key(|(_, found)| found.weight)?;
        let (start, end, weight) = (found.start, found.end, found.weight);
        Some(Self { rule, pattern: text.pattern, first, start, end, weight, score, words })
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
    let fix = match confirmed_here {
        // What these files refute is mended elsewhere, or was already.
        Some(false) if !hit.pattern.is_empty() => Vec::new(),
        _ if found.is_empty() => (rule.remedy)(&seen),
        _ => found,
    };
    let evidence = findings.iter().flat_map(|finding| finding.evidence.clone());
    let mut evidence: Vec<Evidence> = evidence.chain(look.map(|look| look.evidence)).collect();
    if confirmed_here == Some(false) && evidence.is_empty() {
        evidence.extend(rule.needs.iter().flat_map(|need| need.seen(context)));
    }
    Match { rule, pattern: hit.pattern, findings, evidence, confirmed_here, fix }
}

#[cfg(test)]
mod tests;
