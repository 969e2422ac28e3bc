//! What `explain` shows on a terminal.

use diagnose::{Match, OutOfMemory};
use report::terminal::{Style, one_finding, paragraph};
use std::fmt::Write as _;

/// A rule the user named: what it means, and whether it applies here.
pub(super) fn by_name(found: &Match, style: Style) -> String {
    let mut out = String::new();
    one(&mut out, found, "Not found on this machine.", style);
    out
}

/// The rules a text shows.
pub(super) fn by_text(matches: &[Match], memory: Option<OutOfMemory>, style: Style) -> String {
    let mut out = String::new();
    if let Some(memory) = memory {
        let doubt = match memory.may_be_false_alarm() {
            true => {
                " (possibly a false alarm: cuDNN says the same of layouts and shapes it does not support)"
            }
            false => "",
        };
        let _ = writeln!(out, "The text says that memory ran out ({}){doubt}.\n", memory.as_str());
    }
    if matches.is_empty() {
        out.push_str("No rule knows this text; `firstlight explain` lists all rules.\n");
        return out;
    }
    for (place, found) in matches.iter().enumerate() {
        // Words of several rules: the first in full, and of the others those that the files here show.
        if place > 0 && found.confirmed_here != Some(true) {
            let head = if place == 1 { "\nThe text also fits:\n" } else { "" };
            let _ = writeln!(
                out,
                "{head}  {}: {} (`firstlight explain {0}`)",
                found.rule.id, found.rule.title
            );
            continue;
        }
        if place > 0 {
            out.push_str("\n----\n\n");
        }
        one(&mut out, found, ELSEWHERE, style);
    }
    out
}

/// What is said where the files of this machine speak against a text.
const ELSEWHERE: &str = "This machine does not have this problem: its files do not show it. If the error is from another \
                         machine or environment, run `firstlight explain` there, or name the environment with --venv.";

fn one(out: &mut String, found: &Match, refuted: &str, style: Style) {
    let rule = found.rule;
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}: {}\n\n{}", rule.id, rule.title, rule.about.trim());
    for finding in &found.findings {
        out.push_str("\nFound on this machine:\n");
        out.push_str(&one_finding(finding, style));
    }
    if found.findings.is_empty() {
        let seen = match found.confirmed_here {
            Some(false) => "Your files do not show this",
            _ => "Seen on this machine",
        };
        for evidence in &found.evidence {
            let _ = writeln!(out, "\n{seen}: {} ({})", evidence.what, evidence.source);
        }
        let verdict = match found.confirmed_here {
            Some(true) => "The files here agree.",
            Some(false) => refuted,
            None if rule.check.is_none() => {
                "No file can show this; the error text alone is the evidence."
            }
            None => "This cannot be checked here: what would show it is not on this machine.",
        };
        let _ = write!(out, "\n{}", paragraph(style, verdict));
        if !found.fix.is_empty() {
            let head = if found.confirmed_here == Some(false) {
                "Where it is found"
            } else {
                "What to do"
            };
            let _ = writeln!(out, "\n{head}:");
        }
        for line in &found.fix {
            let _ = writeln!(out, "  {line}");
        }
        for link in rule.links {
            let _ = write!(out, "\n{link}");
        }
        if !rule.links.is_empty() {
            out.push('\n');
        }
    }
}
