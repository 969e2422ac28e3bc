//! What `explain` shows on a terminal.

use diagnose::{Match, OutOfMemory, Rule};
use report::terminal::{Style, one_finding};
use std::fmt::Write as _;

/// A rule the user named: what it means, and whether it applies here.
pub(super) fn by_name(found: &Match, style: Style) -> String {
    let mut out = String::new();
    one(&mut out, found, "Not found on this machine.", style);
    out
}

/// The rules a text shows, or those nearest to it.
pub(super) fn by_text(
    matches: &[Match],
    nearest: &[&Rule],
    memory: Option<OutOfMemory>,
    style: Style,
) -> String {
    let mut out = String::new();
    if let Some(memory) = memory {
        let doubt = match memory.may_be_false_alarm() {
            true => {
                " (it may be a false alarm: a layout or shape cuDNN does not take gives the same words)"
            }
            false => "",
        };
        let _ = writeln!(out, "The text says that memory ran out: {}{doubt}.\n", memory.as_str());
    }
    if matches.is_empty() {
        out.push_str("No rule knows this text.\n");
        if nearest.is_empty() {
            out.push_str("No rule is near it either; `firstlight explain` lists them.\n");
        } else {
            out.push_str("The nearest, which need not be it:\n");
            for rule in nearest {
                let _ = writeln!(out, "  {}: {}", rule.id, rule.title);
            }
        }
        return out;
    }
    for (place, found) in matches.iter().enumerate() {
        // Words of several rules: the first in full, and of the others those that the files here show.
        if place > 0 && found.confirmed_here != Some(true) {
            let head = if place == 1 { "\nThe words fit these rules too:\n" } else { "" };
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
        let refuted = "The files here do not show it: it may have happened elsewhere, or have been put right since.";
        one(&mut out, found, refuted, style);
    }
    out
}

fn one(out: &mut String, found: &Match, refuted: &str, style: Style) {
    let rule = found.rule;
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}: {}\n\n{}", rule.id, rule.title, rule.about.trim());
    for finding in &found.findings {
        out.push_str("\nFound on this machine:\n");
        out.push_str(&one_finding(finding, style));
    }
    if found.findings.is_empty() {
        for seen in &found.evidence {
            let _ = writeln!(out, "\nSeen on this machine: {} ({})", seen.what, seen.source);
        }
        let verdict = match found.confirmed_here {
            Some(true) => "The files here agree.",
            Some(false) => refuted,
            None if rule.check.is_none() => {
                "No file shows whether this is so here; the words alone tell."
            }
            None => "What would show it is not on this machine, so this cannot be confirmed here.",
        };
        let _ = writeln!(out, "\n{verdict}");
        if !found.fix.is_empty() {
            out.push_str("\nWhat to do:\n");
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
