//! `firstlight explain [TEXT|FILE|-|RULE]`: finds the rules that match a pasted error, the state of the modules and
//! symbols in it on this machine, and whether this machine's files confirm it.

mod managed;
mod pasted;
mod text;

use super::doctor::{availability, examine};
use crate::Outcome;
use crate::cli::Explain;
use crate::failure::Failure;
use crate::output::Output;
use diagnose::{Cause, Entity, Leader, Match, RULES};
use facts::{DoctorReport, Evidence, Finding, SCHEMA};
use pasted::Query;
use report::terminal;
use serde::Serialize;

#[derive(Serialize)]
struct Explanation<'a> {
    schema: u32,
    /// Empty if no rule matches the text.
    matches: Vec<Matched<'a>>,
    /// Entities in the text that no rule above explains; those with a meaning first.
    entities: Vec<ExplainedEntity<'a>>,
    /// The answer to read first: `{"rule": ID}` or `{"entity": NAME}`, with its certainty.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<First<'a>>,
    /// The doctor's errors and warnings about packages that the text names.
    findings: &'a [Finding],
    /// The most similar rules, if there is no other result.
    similar: Vec<RuleEntry>,
    /// Which memory ran out, if the text reports it (row R1-05).
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_memory: Option<&'static str>,
}

#[derive(Serialize)]
struct First<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<&'a str>,
    certainty: &'static str,
}

#[derive(Serialize)]
struct Matched<'a> {
    rule: &'a str,
    title: &'a str,
    cause: &'a str,
    fix: Vec<&'a str>,
    /// The usual commands for the machine of the text, if this machine's files refute it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fix_elsewhere: Vec<&'a str>,
    /// `null` if no file shows it, or if the rule does not apply here.
    confirmed_here: Option<bool>,
    /// `confirmed` by the files here, `likely` where one cause is known, or `possible`.
    certainty: &'static str,
    /// Other causes that print the same words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Possible<'a>>,
    evidence: Vec<&'a Evidence>,
    links: &'a [&'a str],
}

#[derive(Serialize)]
struct Possible<'a> {
    cause: &'a str,
    /// Commands that distinguish it from the other causes.
    check: &'a [String],
    fix: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed_here: Option<bool>,
}

#[derive(Serialize)]
struct ExplainedEntity<'a> {
    kind: &'a str,
    name: &'a str,
    meaning: &'a str,
    /// `confirmed` by the files here, `likely` where one cause is known, or `possible`.
    certainty: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Possible<'a>>,
    fix: &'a [String],
    confirmed_here: Option<bool>,
    evidence: &'a [Evidence],
    packages: &'a [String],
}

#[derive(Serialize)]
struct RuleList {
    schema: u32,
    rules: Vec<RuleEntry>,
}

#[derive(Serialize)]
struct RuleEntry {
    rule: &'static str,
    title: &'static str,
}

pub(super) fn run(arguments: &Explain, output: &Output) -> anyhow::Result<Outcome> {
    let asked = match &arguments.text {
        Some(asked) => asked.as_str(),
        None if pasted::is_piped() => "-",
        None => return list(output),
    };
    match pasted::read(asked)? {
        Query::Rule(rule) => {
            let report = examine(&arguments.environment)?;
            let mut found = diagnose::explain_rule(rule, &report.machine, &report.envs);
            managed::into_venv(&mut found.fix, &managed::interpreters(&report.envs));
            let document = Explanation {
                schema: SCHEMA,
                matches: vec![matched(&found)],
                entities: Vec::new(),
                first: None,
                findings: &[],
                similar: Vec::new(),
                out_of_memory: None,
            };
            output.either(&document, |style| text::by_name(&found, style))?;
        }
        Query::Text(pasted) if pasted.trim().is_empty() => return Err(pasted::empty()),
        Query::Text(pasted) => {
            let report = examine(&arguments.environment)?;
            return by_text(&pasted, &report, output);
        }
        Query::Unknown(id) => return Err(unknown(&id)),
    }
    Ok(Outcome::Good)
}

/// A text without an explanation is a bad outcome, so that a script notices.
fn by_text(pasted: &str, report: &DoctorReport, output: &Output) -> anyhow::Result<Outcome> {
    let mut found = diagnose::explain_text(pasted, &report.machine, &report.envs, &report.findings);
    decide_by_index(&mut found);
    let interpreters = managed::interpreters(&report.envs);
    let fixes = found.matches.iter_mut().map(|found| &mut found.fix);
    let fixes = fixes.chain(found.entities.iter_mut().map(|entity| &mut entity.fix));
    let fixes = fixes.chain(found.findings.iter_mut().map(|finding| &mut finding.fix));
    fixes.for_each(|fix| managed::into_venv(fix, &interpreters));
    let memory = found.out_of_memory;
    output.either(&document(&found, memory), |style| text::by_text(&found, memory, style))?;
    let known = found.answers() || memory.is_some();
    Ok(if known { Outcome::Good } else { Outcome::Bad })
}

/// Asks PyPI which releases have the name that the first answer is about. Without an answer its causes stay open.
fn decide_by_index(found: &mut diagnose::Explanation) {
    let Some(Leader::Entity(leader)) = found.leader() else { return };
    let Some(query) = leader.name_lookup.as_ref().map(|lookup| lookup.query.clone()) else {
        return;
    };
    let asks = |entity: &&mut Entity| {
        entity.name_lookup.as_ref().is_some_and(|lookup| lookup.query == query)
    };
    let mut unanswered = None;
    let history = availability::query(|index| {
        index.name_history(&query).inspect_err(|error| unanswered = Some(error.to_string()))
    });
    let Some(entity) = found.entities.iter_mut().find(asks) else { return };
    match (history, unanswered) {
        (Ok(Some(history)), _) => entity.decide_by(&history, "PyPI"),
        (_, Some(reason)) => entity.leave_undecided(&reason, "PyPI"),
        _ => {}
    }
}

fn document(
    found: &diagnose::Explanation,
    memory: Option<diagnose::OutOfMemory>,
) -> Explanation<'_> {
    Explanation {
        schema: SCHEMA,
        matches: found.matches.iter().map(matched).collect(),
        entities: found.entities.iter().map(named).collect(),
        first: found.leader().map(|leader| {
            let (rule, entity) = match leader {
                Leader::Rule(found) => (Some(found.rule.id), None),
                Leader::Entity(entity) => (None, Some(entity.name.as_str())),
            };
            First { rule, entity, certainty: leader.certainty().as_str() }
        }),
        findings: &found.findings,
        similar: found.similar.iter().copied().map(listed).collect(),
        out_of_memory: memory.map(diagnose::OutOfMemory::as_str),
    }
}

fn named(entity: &Entity) -> ExplainedEntity<'_> {
    ExplainedEntity {
        kind: entity.kind,
        name: &entity.name,
        meaning: &entity.meaning,
        certainty: entity.certainty().as_str(),
        causes: possible(&entity.causes),
        fix: &entity.fix,
        confirmed_here: entity.confirmed_here,
        evidence: &entity.evidence,
        packages: &entity.packages,
    }
}

fn possible(causes: &[Cause]) -> Vec<Possible<'_>> {
    let mut all = Vec::with_capacity(causes.len());
    for Cause { cause, check, fix, confirmed_here, .. } in causes {
        all.push(Possible { cause, check, fix, confirmed_here: *confirmed_here });
    }
    all
}

fn matched(found: &Match) -> Matched<'_> {
    Matched {
        rule: found.rule.id,
        title: found.rule.title,
        cause: found.meaning.as_deref().unwrap_or(found.rule.about),
        fix: found.fix.iter().map(String::as_str).collect(),
        fix_elsewhere: found.fix_elsewhere.iter().map(String::as_str).collect(),
        confirmed_here: found.confirmed_here,
        certainty: found.certainty().as_str(),
        causes: possible(&found.causes),
        evidence: found.evidence.iter().collect(),
        links: found.rule.links,
    }
}

/// A word that is neither a rule nor a file nor a known error was most likely meant as a rule.
fn unknown(id: &str) -> anyhow::Error {
    let hint = match diagnose::nearest(id) {
        Some(near) => format!("did you mean `{}`? `firstlight explain` lists the rules", near.id),
        None => "`firstlight explain` lists the rules; `-` reads an error from standard input"
            .to_owned(),
    };
    Failure::hinted(format!("there is no rule `{id}`"), hint)
}

fn listed(rule: &'static diagnose::Rule) -> RuleEntry {
    RuleEntry { rule: rule.id, title: rule.title }
}

fn list(output: &Output) -> anyhow::Result<Outcome> {
    let listing = RuleList { schema: SCHEMA, rules: RULES.iter().map(listed).collect() };
    let rows: Vec<(&str, &str)> = RULES.iter().map(|rule| (rule.id, rule.title)).collect();
    output.either(&listing, |style| terminal::listing(&rows, style))?;
    Ok(Outcome::Good)
}
