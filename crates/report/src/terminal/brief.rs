use super::Style;
use super::layout::{fields, paint, paragraph};
use super::model::model;
use crate::escape;
use crate::sections::{describe, finding_tone, findings_sentence, unexplained_problems, version};
use facts::{Confidence, DoctorReport, Finding, Platform, RemedyStep, Severity};

/// Only what the user has to act on: problems, worst first, with causes and commands. A flag shows the rest.
pub fn doctor_brief(report: &DoctorReport, style: Style) -> String {
    doctor_brief_with(report, style, IndexCheck::NotAsked)
}

/// Whether a package index was queried for the files that the remedies install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexCheck<'a> {
    /// It was not queried.
    NotAsked,
    /// It did not answer: the reason.
    Unanswered(&'a str),
    /// It answered; missing files are in the findings.
    Answered,
}

/// [`doctor_brief`] with the result of querying a package index.
pub fn doctor_brief_with(report: &DoctorReport, style: Style, index: IndexCheck<'_>) -> String {
    let mut out = fields(style, &where_we_are(report));
    out.push('\n');
    out.push_str(&paragraph(style, &findings_sentence(report)));
    for found in report.findings.iter().filter(|found| found.severity != Severity::Info) {
        out.push('\n');
        finding(&mut out, found, style);
    }
    let problems: Vec<&str> = unexplained_problems(report).collect();
    if !problems.is_empty() {
        out.push('\n');
    }
    for problem in problems {
        out.push_str(&paragraph(style, &format!("problem: {problem}")));
    }
    let advice: Vec<&Finding> =
        report.findings.iter().filter(|found| found.severity == Severity::Info).collect();
    if !advice.is_empty() {
        out.push('\n');
    }
    for found in advice {
        out.push_str(&paragraph(style, &format!("info: {} [{}]", found.title, found.rule)));
    }
    if let Some(wanted) = &report.model {
        out.push('\n');
        out.push_str(&model(wanted, style));
    }
    if !report.findings.is_empty() {
        out.push('\n');
        out.push_str(&paragraph(
            style,
            "--verbose shows the evidence; `firstlight explain RULE` tells more",
        ));
        out.push_str(&unresolved(report, style, index));
    }
    out
}

/// A note that no index was queried for the commands above, if one of them installs packages.
pub(super) fn unresolved(report: &DoctorReport, style: Style, index: IndexCheck<'_>) -> String {
    let installs = |step: &RemedyStep| matches!(step, RemedyStep::Install { .. });
    if !report.findings.iter().flat_map(|found| &found.remedy).any(installs) {
        return String::new();
    }
    let fix = "`firstlight doctor --fix` resolves them by a dry run";
    let words = match index {
        IndexCheck::NotAsked => format!("no index was asked about these commands; {fix}"),
        IndexCheck::Unanswered(reason) => {
            format!("whether these files exist was not checked: {reason}; {fix}")
        }
        IndexCheck::Answered => format!("the index has the files of these commands; {fix}"),
    };
    paragraph(style, &words)
}

/// A machine without a GPU may have lost it: an instance of the wrong type, a container without `--gpus`, no driver.
const NO_DRIVER: &str = "no GPU and no trace of an NVIDIA driver (if it should have one: `firstlight explain no-driver`)";

/// The machine in one or two lines, and each environment in one.
fn where_we_are(report: &DoctorReport) -> Vec<(String, String)> {
    let machine = &report.machine;
    let mut words = vec![machine.platform.to_string()];
    words.extend(machine.gpus.iter().map(|gpu| {
        let sm = gpu.compute_capability.as_ref().map(|fact| format!(" ({})", version(fact.value)));
        format!("{}{}", gpu.name.value, sm.unwrap_or_default())
    }));
    let linux = matches!(machine.platform, Platform::LinuxX86_64 | Platform::LinuxAarch64);
    words.extend(match (machine.gpus.is_empty(), &machine.driver) {
        (true, None) if linux => Some(NO_DRIVER.to_owned()),
        (true, _) => Some("no GPU".to_owned()),
        (false, _) => None,
    });
    let driver = machine.driver.as_ref().and_then(|driver| driver.version());
    words.extend(driver.map(|fact| format!("driver {}", fact.value)));
    let mut rows = vec![("machine".to_owned(), words.join(", "))];
    for env in &report.envs {
        let torch = env.torch.as_ref();
        let torch = torch.map_or("no torch".to_owned(), |torch| format!("torch {}", torch.version));
        let words = format!("{} ({}, {torch})", env.root, describe(env));
        rows.push(("env".to_owned(), words));
    }
    rows
}

fn finding(out: &mut String, finding: &Finding, style: Style) {
    let (tone, word) = finding_tone(finding.severity);
    let word = word.to_lowercase();
    let title = paragraph(style, &format!("{word}: {} [{}]", finding.title, finding.rule));
    out.push_str(&title.replacen(&word, &paint(style, tone, &word), 1));
    let cause = match finding.confidence {
        Confidence::Certain => finding.cause.clone(),
        Confidence::Likely => format!("likely: {}", finding.cause),
        Confidence::Possible => format!("possibly: {}", finding.cause),
    };
    out.push_str(&fields(style, &[("cause".to_owned(), cause)]));
    for command in &finding.fix {
        out.push_str(&format!("  fix         {}\n", escape::terminal(command)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Driver, Machine};

    #[test]
    fn environment_with_a_problem_is_not_cleared() {
        let report = |problems: &[&str], findings| {
            let problems: Vec<String> = problems.iter().map(|it| (*it).to_owned()).collect();
            let env = facts::PyEnv { problems, ..env() };
            let machine = Machine { platform: Platform::LinuxX86_64, ..Machine::unknown() };
            doctor_brief(&DoctorReport::new(machine, vec![env], findings), Style::default())
        };
        let clear = "No rule found anything wrong";
        assert!(report(&[], Vec::new()).contains(clear));
        let text = report(&["/v/pyvenv.cfg has no `home` line"], Vec::new());
        assert!(!text.contains(clear), "{text}");
        assert!(text.contains("No finding, and 1 problem with the environments"), "{text}");
        assert!(text.contains("problem: /v/pyvenv.cfg has no `home` line"), "{text}");
        // A finding about the same file has the problem.
        let twice = "x is installed 2 times: /v/site-packages/x-1.dist-info, /v/site-packages/x-2.dist-info";
        let evidence = facts::Evidence {
            what: "x 1".to_owned(),
            source: "/v/site-packages/x-1.dist-info".to_owned(),
        };
        let finding = Finding {
            rule: "duplicate-dist".to_owned(),
            severity: Severity::Warning,
            confidence: Confidence::Certain,
            title: "x is installed 2 times in /v".to_owned(),
            evidence: vec![evidence],
            cause: "an interrupted upgrade".to_owned(),
            fix: Vec::new(),
            remedy: Vec::new(),
            links: Vec::new(),
        };
        let text = report(&[twice], vec![finding]);
        assert!(!text.contains("problem:"), "{text}");
    }

    fn env() -> facts::PyEnv {
        facts::PyEnv {
            root: "/v".to_owned(),
            kind: facts::EnvKind::Venv,
            found_by: "--venv".to_owned(),
            manager: None,
            interpreter: facts::Interpreter {
                executable: None,
                resolved: None,
                version: None,
                abi_tag: None,
                base: None,
            },
            site_packages: vec!["/v/site-packages".to_owned()],
            dists: Vec::new(),
            torch: None,
            native_files: Vec::new(),
            ptxas: Vec::new(),
            companions: Vec::new(),
            in_front: Vec::new(),
            unmet_imports: Vec::new(),
            missing_names: Vec::new(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn machine_without_gpu_names_the_missing_driver() {
        let machine = |platform, driver| {
            let machine = Machine { platform, driver, ..Machine::unknown() };
            where_we_are(&DoctorReport::new(machine, Vec::new(), Vec::new())).remove(0).1
        };
        let none = machine(Platform::LinuxX86_64, None);
        for words in ["no GPU and no trace of an NVIDIA driver", "`firstlight explain no-driver`"] {
            assert!(none.contains(words), "{none}");
        }
        let driver = Some(Driver::default());
        assert_eq!(machine(Platform::LinuxX86_64, driver), "linux-x86_64, no GPU");
        assert_eq!(machine(Platform::MacosAarch64, None), "macos-aarch64, no GPU");
    }
}
