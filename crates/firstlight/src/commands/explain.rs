//! `firstlight explain [TEXT|FILE|-|RULE]`: which rules a pasted error shows, what the things that it names are here, and
//! whether this machine's files agree.

mod pasted;
mod text;

use super::doctor::examine;
use crate::Outcome;
use crate::cli::Explain;
use crate::failure::Failure;
use crate::output::Output;
use diagnose::{Entity, Match, RULES};
use facts::{DoctorReport, Evidence, Finding, SCHEMA};
use pasted::Asked;
use report::terminal;
use serde::Serialize;

#[derive(Serialize)]
struct Explanation<'a> {
    schema: u32,
    /// Empty for a text that no rule knows.
    matches: Vec<Matched<'a>>,
    /// What the text names and no rule above explains; those with a meaning come first.
    entities: Vec<Named<'a>>,
    /// The doctor's errors and warnings about packages that the text names.
    findings: &'a [Finding],
    /// The most similar rules, where nothing else is known.
    similar: Vec<Listed>,
    /// Which memory ran out, where the text says so (row R1-05).
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_memory: Option<&'static str>,
}

#[derive(Serialize)]
struct Matched<'a> {
    rule: &'a str,
    title: &'a str,
    cause: &'a str,
    fix: Vec<&'a str>,
    /// The usual commands for the machine that the text is from, where this machine's files refute it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fix_elsewhere: Vec<&'a str>,
    /// `null` where no file can tell, or where what the rule looks at is not here.
    confirmed_here: Option<bool>,
    evidence: Vec<&'a Evidence>,
    links: &'a [&'a str],
}

#[derive(Serialize)]
struct Named<'a> {
    kind: &'a str,
    name: &'a str,
    meaning: &'a str,
    fix: &'a [String],
    confirmed_here: Option<bool>,
    evidence: &'a [Evidence],
    packages: &'a [String],
}

#[derive(Serialize)]
struct Listing {
    schema: u32,
    rules: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    rule: &'static str,
    title: &'static str,
}

pub(super) fn run(arguments: &Explain, output: &Output) -> anyhow::Result<Outcome> {
    let Some(asked) = &arguments.text else { return list(output) };
    match pasted::read(asked)? {
        Asked::Rule(rule) => {
            let report = examine(&arguments.environment)?;
            let found = diagnose::explain_rule(rule, &report.machine, &report.envs);
            let document = Explanation {
                schema: SCHEMA,
                matches: vec![matched(&found)],
                entities: Vec::new(),
                findings: &[],
                similar: Vec::new(),
                out_of_memory: None,
            };
            output.either(&document, |style| text::by_name(&found, style))?;
        }
        Asked::Text(pasted) => {
            let report = examine(&arguments.environment)?;
            return by_text(&pasted, &report, output);
        }
        Asked::Unknown(id) => return Err(unknown(&id)),
    }
    Ok(Outcome::Good)
}

/// A text that nothing explains is a bad outcome: a script that asks has to see that it was not answered.
fn by_text(pasted: &str, report: &DoctorReport, output: &Output) -> anyhow::Result<Outcome> {
    let found = diagnose::explain_text(pasted, &report.machine, &report.envs, &report.findings);
    let memory = diagnose::out_of_memory_in(pasted);
    output.either(&document(&found, memory), |style| text::by_text(&found, memory, style))?;
    let known = found.answers() || memory.is_some();
    Ok(if known { Outcome::Good } else { Outcome::Bad })
}

fn document(
    found: &diagnose::Explanation,
    memory: Option<diagnose::OutOfMemory>,
) -> Explanation<'_> {
    Explanation {
        schema: SCHEMA,
        matches: found.matches.iter().map(matched).collect(),
        entities: found.entities.iter().map(named).collect(),
        findings: &found.findings,
        similar: found.similar.iter().copied().map(listed).collect(),
        out_of_memory: memory.map(diagnose::OutOfMemory::as_str),
    }
}

fn named(entity: &Entity) -> Named<'_> {
    Named {
        kind: entity.kind,
        name: &entity.name,
        meaning: &entity.meaning,
        fix: &entity.fix,
        confirmed_here: entity.confirmed_here,
        evidence: &entity.evidence,
        packages: &entity.packages,
    }
}

fn matched(found: &Match) -> Matched<'_> {
    Matched {
        rule: found.rule.id,
        title: found.rule.title,
        cause: found.meaning.as_deref().unwrap_or(found.rule.about),
        fix: found.fix.iter().map(String::as_str).collect(),
        fix_elsewhere: found.fix_elsewhere.iter().map(String::as_str).collect(),
        confirmed_here: found.confirmed_here,
        evidence: found.evidence.iter().collect(),
        links: found.rule.links,
    }
}

/// A word that is no rule, no file and no error any rule knows was most likely meant as a rule.
fn unknown(id: &str) -> anyhow::Error {
    let hint = match diagnose::nearest(id) {
        Some(near) => format!("did you mean `{}`? `firstlight explain` lists the rules", near.id),
        None => "`firstlight explain` lists the rules; `-` reads an error from standard input"
            .to_owned(),
    };
    Failure::hinted(format!("there is no rule `{id}`"), hint)
}

fn listed(rule: &'static diagnose::Rule) -> Listed {
    Listed { rule: rule.id, title: rule.title }
}

fn list(output: &Output) -> anyhow::Result<Outcome> {
    let listing = Listing { schema: SCHEMA, rules: RULES.iter().map(listed).collect() };
    let rows: Vec<(&str, &str)> = RULES.iter().map(|rule| (rule.id, rule.title)).collect();
    output.either(&listing, |style| terminal::listing(&rows, style))?;
    Ok(Outcome::Good)
}
