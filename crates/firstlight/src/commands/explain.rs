//! `firstlight explain RULE`: what a rule means, and whether it applies here.

use super::doctor::examine;
use crate::Outcome;
use crate::cli::Explain;
use crate::failure::Failure;
use crate::output::Output;
use diagnose::{RULES, Rule};
use facts::{Finding, SCHEMA};
use report::terminal::Style;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Serialize)]
struct Explanation<'a> {
    schema: u32,
    matches: Vec<Match<'a>>,
}

#[derive(Serialize)]
struct Match<'a> {
    rule: &'a str,
    title: &'a str,
    cause: &'a str,
    fix: Vec<&'a str>,
    confirmed_here: bool,
    links: &'a [&'a str],
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
    let Some(id) = &arguments.rule else { return list(output) };
    let Some(rule) = diagnose::rule(id) else {
        let hint = match diagnose::nearest(id) {
            Some(near) => {
                format!("did you mean `{}`? `firstlight explain` lists the rules", near.id)
            }
            None => "`firstlight explain` lists the rules".to_owned(),
        };
        return Err(Failure::hinted(format!("there is no rule `{id}`"), hint));
    };
    let report = examine(&arguments.environment)?;
    let here: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.rule == rule.id).collect();
    let explanation = Explanation {
        schema: SCHEMA,
        matches: vec![Match {
            rule: rule.id,
            title: rule.title,
            cause: rule.about,
            fix: here.iter().flat_map(|finding| &finding.fix).map(String::as_str).collect(),
            confirmed_here: !here.is_empty(),
            links: rule.links,
        }],
    };
    output.either(&explanation, |style| text(rule, &here, style))?;
    Ok(Outcome::Good)
}

fn list(output: &Output) -> anyhow::Result<Outcome> {
    let listing = Listing {
        schema: SCHEMA,
        rules: RULES.iter().map(|rule| Listed { rule: rule.id, title: rule.title }).collect(),
    };
    let width = RULES.iter().map(|rule| rule.id.len()).max().unwrap_or(0);
    let lines = RULES.iter().map(|rule| format!("{:width$}  {}\n", rule.id, rule.title));
    output.either(&listing, |_| lines.collect())?;
    Ok(Outcome::Good)
}

fn text(rule: &Rule, here: &[&Finding], style: Style) -> String {
    let mut out = format!("{}: {}\n\n{}\n", rule.id, rule.title, rule.about.trim());
    if here.is_empty() {
        out.push_str("\nNot found on this machine.\n");
    }
    for finding in here {
        out.push_str("\nFound on this machine:\n");
        out.push_str(&report::terminal::one_finding(finding, style));
    }
    for link in rule.links {
        // Writing to a String cannot fail.
        let _ = write!(out, "\n{link}");
    }
    out
}
