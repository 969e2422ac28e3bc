//! Findings: the problem, the evidence, the cause, the fix.

use crate::document::{Block, Prose, Tone, slug};
use crate::format;
use crate::run::{FACTS_FILE, Run};
use facts::{Confidence, DoctorReport, Finding, Platform, Severity};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let findings = &run.doctor.findings;
    let intro =
        Prose::new().text(format!("{}, from ", sentence(run.doctor))).file(FACTS_FILE).text(".");
    let cards = findings.iter().enumerate().map(|(i, finding)| card(i, finding, FACTS_FILE));
    std::iter::once(Block::Paragraph(intro)).chain(cards).collect()
}

/// The problems of the environments that no finding is about. Findings about the packages of an environment name the
/// same file.
pub fn unexplained_problems(doctor: &DoctorReport) -> impl Iterator<Item = &str> {
    let evidence = || doctor.findings.iter().flat_map(|finding| &finding.evidence);
    doctor.envs.iter().flat_map(move |env| {
        let of_packages = move |source: &str| {
            env.site_packages
                .iter()
                .any(|site| source.strip_prefix(site.as_str()).is_some_and(|file| file.len() > 1))
        };
        env.problems.iter().map(String::as_str).filter(move |problem| {
            !evidence().any(|it| of_packages(&it.source) && problem.contains(&it.source))
        })
    })
}

/// `3 findings: 1 error, 1 warning and 1 for information`.
pub(crate) fn sentence(doctor: &DoctorReport) -> String {
    let findings = &doctor.findings;
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    // A run without recorded facts has no findings.
    if findings.is_empty() && doctor.machine.platform == Platform::Unknown {
        return "The facts of the machine were not kept with this run".to_owned();
    }
    if findings.is_empty() {
        return match unexplained_problems(doctor).count() {
            0 => "No rule found anything wrong with this machine or its environments".to_owned(),
            problems => format!(
                "No finding, and {} with the environments",
                format::count(problems, "problem")
            ),
        };
    }
    format!(
        "{}: {}, {} and {} for information",
        format::count(findings.len(), "finding"),
        format::count(of(Severity::Error), "error"),
        format::count(of(Severity::Warning), "warning"),
        of(Severity::Info)
    )
}

/// Anchor of the finding at this index; two findings of one rule have different ones.
pub(super) fn anchor(place: usize, finding: &Finding) -> String {
    format!("finding-{}-{}", place + 1, slug(&finding.rule))
}

pub(crate) fn tone(severity: Severity) -> (Tone, &'static str) {
    match severity {
        Severity::Error => (Tone::Bad, "ERROR"),
        Severity::Warning => (Tone::Warn, "WARNING"),
        Severity::Info => (Tone::Plain, "INFO"),
    }
}

/// A finding with its cause and its remedy; `file` has the recorded one.
pub(crate) fn card(place: usize, finding: &Finding, file: &str) -> Block {
    let (tone, word) = tone(finding.severity);
    let certainty = match finding.confidence {
        Confidence::Certain => "the evidence allows no other reading",
        Confidence::Likely => "the usual cause of this evidence",
        Confidence::Possible => "one of several possible causes",
    };
    let evidence = finding
        .evidence
        .iter()
        .map(|seen| Prose::new().text(format!("{} – ", seen.what)).code(&seen.source));
    let mut blocks = vec![Block::Paragraph(
        Prose::new().strong("Cause").text(format!(" ({certainty}): {}", finding.cause)),
    )];
    if finding.fix.is_empty() {
        blocks.push(Block::Paragraph(
            Prose::new().strong("Fix").text(": no command; see the cause."),
        ));
    } else {
        blocks.push(Block::Paragraph(Prose::new().strong("Fix")));
        blocks.push(Block::Code(finding.fix.clone()));
    }
    // Collapsed, because the commands come first.
    let mut folded = vec![Block::List(evidence.collect())];
    if !finding.links.is_empty() {
        let mut links = Prose::new().text("Read more: ");
        for (i, link) in finding.links.iter().enumerate() {
            links = if i > 0 { links.text(", ") } else { links }.web(link);
        }
        folded.push(Block::Paragraph(links));
    }
    folded.push(Block::Paragraph(
        Prose::new().text("Rule ").code(&finding.rule).text(", recorded in ").file(file).text("."),
    ));
    let summary =
        Prose::from(format!("Evidence: {}", format::count(finding.evidence.len(), "observation")));
    blocks.push(Block::Details { summary, blocks: folded });
    let title = Prose::new().chip(tone, word).text(format!(" {}", finding.title));
    Block::Card { tone, id: anchor(place, finding), title, blocks }
}
