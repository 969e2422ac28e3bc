//! Terminal output of `explain`, wrapped to the width. Commands are not wrapped, so that they can be copied.

use diagnose::{Cause, Entity, Explanation, Leader, Match, OutOfMemory};
use facts::Evidence;
use report::terminal::{Style, one_finding, paragraph};
use std::fmt::Write as _;

/// A rule by its name: its meaning, and whether it applies here.
pub(super) fn by_name(found: &Match, style: Style) -> String {
    let mut out = String::new();
    one(&mut out, found, "Not found on this machine.", style);
    out
}

/// The rules and entities of a text: the best match and everything that the files here confirm in full, the others on a
/// line each.
pub(super) fn by_text(found: &Explanation, memory: Option<OutOfMemory>, style: Style) -> String {
    let mut out = String::new();
    if let Some(memory) = memory {
        let doubt = match memory.may_be_false_alarm() {
            true => {
                " (possibly a false alarm: cuDNN reports the same for layouts and shapes it does not support)"
            }
            false => "",
        };
        let words = format!("The text reports that memory ran out ({}){doubt}.", memory.as_str());
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
        // A log has many entities: after the first ones, only names are shown.
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
        out.push_str("\nThe doctor's findings about packages in the text:\n");
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
        out.push_str("\nPackages in the traceback:\n");
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

/// Number of entities that are shown in full after the first.
const FULL: usize = 2;

/// A text without an explanation: the most similar rules.
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

/// Shown if the files of this machine refute a text.
const ELSEWHERE: &str = "This machine does not have this problem: its files do not show it. If the error is from another \
                         machine or environment, run `firstlight explain` there, or name the environment with --venv.";

/// Paragraphs wrapped to the width; lines that begin with two spaces are kept.
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

/// The possible causes of a text, each with its remedy and the commands that distinguish it from the others. If the files here
/// confirm one cause, only that one.
fn causes(out: &mut String, head: &str, causes: &[Cause], style: Style) {
    if causes.is_empty() {
        return;
    }
    if let Some(shown) = causes.iter().find(|cause| cause.confirmed_here == Some(true)) {
        let _ = write!(
            out,
            "\n{}",
            paragraph(style, &format!("The files here show the cause: {}", shown.cause))
        );
        commands(out, "What to do", &shown.fix);
        return;
    }
    let _ = write!(out, "\n{}", paragraph(style, head));
    for (place, cause) in causes.iter().enumerate() {
        let against = match cause.confirmed_here {
            Some(false) => " (the files here speak against it)",
            _ => "",
        };
        out.push_str(&paragraph(style, &format!("{}. {}{against}", place + 1, cause.cause)));
        for line in &cause.check {
            let _ = writeln!(out, "     check: {line}");
        }
        for line in &cause.fix {
            let _ = writeln!(out, "     then:  {line}");
        }
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
    causes(out, "Possible causes:", &entity.causes, style);
    let head = if entity.causes.is_empty() { "What to do" } else { "Under every cause" };
    commands(out, head, &entity.fix);
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
            None if rule.check.is_none() => "No file shows this; only the error text is evidence.",
            None => "This cannot be checked here: the evidence is not on this machine.",
        };
        let _ = write!(out, "\n{}", paragraph(style, verdict));
        causes(out, "Other causes that print the same words:", &found.causes, style);
        let head = match (found.confirmed_here, found.causes.is_empty()) {
            (Some(false), _) => "Where the fix applies",
            (_, false) => "If none of these applies",
            _ => "What to do",
        };
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
