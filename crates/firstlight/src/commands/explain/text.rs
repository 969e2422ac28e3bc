//! What `explain` shows on a terminal, wrapped to its width. Commands are not wrapped, so that they can be copied.

use diagnose::{Entity, Explanation, Leader, Match, OutOfMemory};
use facts::Evidence;
use report::terminal::{Style, one_finding, paragraph};
use std::fmt::Write as _;

/// A rule the user named: its meaning, and whether it applies here.
pub(super) fn by_name(found: &Match, style: Style) -> String {
    let mut out = String::new();
    one(&mut out, found, "Not found on this machine.", style);
    out
}

/// The rules and entities of a text: the leading answer and what the files here confirm in full, the others in a line each.
pub(super) fn by_text(found: &Explanation, memory: Option<OutOfMemory>, style: Style) -> String {
    let mut out = String::new();
    if let Some(memory) = memory {
        let doubt = match memory.may_be_false_alarm() {
            true => {
                " (possibly a false alarm: cuDNN says the same of layouts and shapes it does not support)"
            }
            false => "",
        };
        let words = format!("The text says that memory ran out ({}){doubt}.", memory.as_str());
        let _ = writeln!(out, "{}", paragraph(style, &words));
    }
    let leader = found.leader();
    match leader {
        Some(Leader::Rule(first)) => one(&mut out, first, ELSEWHERE, style),
        Some(Leader::Entity(first)) => entity(&mut out, first, style),
        None => {}
    }
    let led =
        |other: &Match| matches!(leader, Some(Leader::Rule(first)) if std::ptr::eq(first, other));
    let mut brief: Vec<String> = Vec::new();
    for other in found.matches.iter().filter(|other| !led(other)) {
        if other.confirmed_here == Some(true) {
            out.push_str("\n----\n\n");
            one(&mut out, other, ELSEWHERE, style);
        } else {
            let (id, title) = (other.rule.id, other.rule.title);
            brief.push(format!("  {id}: {title} (`firstlight explain {id}`)"));
        }
    }
    let led = |other: &Entity| matches!(leader, Some(Leader::Entity(first)) if std::ptr::eq(first, other));
    for (place, other) in
        found.entities.iter().filter(|other| !led(other) && other.answers()).enumerate()
    {
        // A log names many things: after a few in full, names are enough.
        if place < FULL && matches!(leader, Some(Leader::Entity(_))) {
            out.push_str("\n----\n\n");
            entity(&mut out, other, style);
        } else {
            let first =
                other.meaning.split_once(". ").map_or(other.meaning.as_str(), |(first, _)| first);
            brief.push(format!("  {}: {}", other.name, first.trim_end_matches('.')));
        }
    }
    for finding in &found.findings {
        out.push_str("\nThe doctor found about a package that the text names:\n");
        out.push_str(&one_finding(finding, style));
    }
    if !brief.is_empty() {
        out.push_str("\nThe text also fits:\n");
        for line in brief {
            out.push_str(&paragraph(style, &line));
        }
    }
    let named: Vec<&Entity> = found.entities.iter().filter(|other| !other.answers()).collect();
    if !named.is_empty() {
        out.push_str("\nPackages that it runs through:\n");
        for other in named {
            let seen: Vec<&str> = other.evidence.iter().map(|seen| seen.what.as_str()).collect();
            let seen =
                if seen.is_empty() { "not installed here".to_owned() } else { seen.join(", ") };
            out.push_str(&paragraph(style, &format!("  {}: {seen}", other.name)));
        }
    }
    if !found.answers() {
        unknown(&mut out, found, memory.is_some(), style);
    }
    out
}

/// So many entities are shown in full after the first.
const FULL: usize = 2;

/// A text that nothing explains: the most similar rules.
fn unknown(out: &mut String, found: &Explanation, memory: bool, style: Style) {
    if memory {
        return;
    }
    let head = "No rule knows this text; `firstlight explain` lists all rules.";
    let shown = std::mem::take(out);
    out.push_str(&paragraph(style, head));
    if !found.similar.is_empty() {
        out.push_str("The most similar ones:\n");
        for rule in &found.similar {
            out.push_str(&paragraph(
                style,
                &format!("  {}: {} (`firstlight explain {0}`)", rule.id, rule.title),
            ));
        }
    }
    out.push_str(&shown);
}

/// Shown where the files of this machine speak against a text.
const ELSEWHERE: &str = "This machine does not have this problem: its files do not show it. If the error is from another \
                         machine or environment, run `firstlight explain` there, or name the environment with --venv.";

/// Paragraphs wrapped to the width; lines that begin with two blanks are shown as they are.
fn flow(style: Style, text: &str) -> String {
    let mut out = String::new();
    let mut words = String::new();
    let flush = |words: &mut String, out: &mut String| {
        if !words.is_empty() {
            out.push_str(&paragraph(style, words));
            words.clear();
        }
    };
    for line in text.trim().lines() {
        if line.starts_with("  ") {
            flush(&mut words, &mut out);
            out.push_str(line);
            out.push('\n');
        } else if line.trim().is_empty() {
            flush(&mut words, &mut out);
            out.push('\n');
        } else {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(line.trim());
        }
    }
    flush(&mut words, &mut out);
    out
}

fn seen(out: &mut String, head: &str, evidence: &[Evidence], style: Style) {
    for seen in evidence {
        let words = format!("{head}: {} ({})", seen.what, seen.source);
        let _ = write!(out, "\n{}", paragraph(style, &words));
    }
}

fn commands(out: &mut String, head: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{head}:");
    for line in lines {
        let _ = writeln!(out, "  {line}");
    }
}

fn entity(out: &mut String, entity: &Entity, style: Style) {
    let _ = write!(out, "{}\n{}", paragraph(style, &entity.name), flow(style, &entity.meaning));
    let head = match entity.confirmed_here {
        Some(false) => "Your files do not show this",
        _ => "Seen on this machine",
    };
    seen(out, head, &entity.evidence, style);
    if entity.confirmed_here == Some(true) {
        let _ = write!(out, "\n{}", paragraph(style, "The files here agree."));
    }
    commands(out, "What to do", &entity.fix);
}

fn one(out: &mut String, found: &Match, refuted: &str, style: Style) {
    let rule = found.rule;
    let about = found.meaning.as_deref().unwrap_or(rule.about);
    let head = format!("{}: {}", rule.id, rule.title);
    // Writing to a String cannot fail.
    let _ = write!(out, "{}\n{}", paragraph(style, &head), flow(style, about));
    for finding in &found.findings {
        out.push_str("\nFound on this machine:\n");
        out.push_str(&one_finding(finding, style));
    }
    if found.findings.is_empty() {
        let shown = match found.confirmed_here {
            Some(false) => "Your files do not show this",
            _ => "Seen on this machine",
        };
        seen(out, shown, &found.evidence, style);
        let verdict = match found.confirmed_here {
            Some(true) => "The files here agree.",
            Some(false) => refuted,
            None if rule.check.is_none() => {
                "No file can show this; the error text alone is the evidence."
            }
            None => "This cannot be checked here: what would show it is not on this machine.",
        };
        let _ = write!(out, "\n{}", paragraph(style, verdict));
        let head =
            if found.confirmed_here == Some(false) { "Where it is found" } else { "What to do" };
        commands(out, head, &found.fix);
        commands(out, "The usual commands on the machine that printed it", &found.fix_elsewhere);
        for link in rule.links {
            let _ = write!(out, "\n{link}");
        }
        if !rule.links.is_empty() {
            out.push('\n');
        }
    }
}
