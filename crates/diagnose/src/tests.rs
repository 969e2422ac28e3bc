//! Properties of all rules.

use crate::rules::RULES;
use facts::Severity;
use std::collections::BTreeSet;

#[test]
fn rule_ids_are_unique_and_match_the_files() {
    let ids: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), RULES.len(), "an id is used twice");
    // The rules about lines of the driver's log share one file.
    let of_log = ["open-kernel-modules", "gsp-firmware", "gpu-bar", "gpu-init-failed"];
    let file =
        |id: &&str| if of_log.contains(id) { "driver_log".into() } else { id.replace('-', "_") };
    let listed: BTreeSet<String> = ids.iter().map(file).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("the rules folder")
        .map(|entry| entry.expect("an entry").path())
        // A folder has the tests of a rule.
        .filter(|path| path.is_file())
        .map(|path| path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned())
        .map(|name| name.strip_suffix(".rs").expect("only .rs files").to_owned())
        .collect();
    assert_eq!(listed, files);
}

#[test]
fn every_rule_passes_its_cases() {
    for rule in RULES.iter().filter(|rule| rule.check.is_some()) {
        let cases = (rule.cases)();
        assert!(cases.iter().any(|case| !case.expect.is_empty()), "{} never finds", rule.id);
        assert!(cases.iter().any(|case| case.expect.is_empty()), "{} never refrains", rule.id);
        for case in &cases {
            crate::test_support::check(rule, case);
        }
    }
}

#[test]
fn every_finding_has_evidence_and_a_fix() {
    for case in RULES.iter().flat_map(|rule| (rule.cases)()) {
        let findings = crate::run(&case.machine, &case.envs);
        for finding in &findings {
            let at = format!("{} in {:?}", finding.rule, case.what);
            assert!(crate::rule(&finding.rule).is_some(), "{at}: no such rule");
            assert!(!finding.title.is_empty() && !finding.cause.is_empty(), "{at}");
            assert!(!finding.evidence.is_empty(), "{at}: no evidence");
            for evidence in &finding.evidence {
                assert!(!evidence.what.trim().is_empty(), "{at}: empty evidence");
                assert!(!evidence.source.trim().is_empty(), "{at}: evidence without a source");
            }
            assert!(finding.severity == Severity::Info || !finding.fix.is_empty(), "{at}: no fix");
            let runs = |line: &String| !line.trim_start().starts_with('#');
            assert!(finding.fix.is_empty() || finding.fix.iter().any(runs), "{at}: remarks only");
            let texts: Vec<String> = finding.remedy.iter().map(ToString::to_string).collect();
            assert_eq!(texts, finding.fix, "{at}");
            for step in &finding.remedy {
                // `--fix` runs the steps that are data, so a package change must not be a plain command.
                if let facts::RemedyStep::Command { command } = step {
                    let words: Vec<&str> = command.split_whitespace().collect();
                    let installs = words
                        .windows(2)
                        .any(|pair| pair[0] == "pip" && matches!(pair[1], "install" | "uninstall"));
                    assert!(!installs, "{at}: {command}");
                }
            }
            for line in &finding.fix {
                let host = line.split("https://").nth(1);
                assert!(
                    host.is_none_or(|rest| rest.starts_with("download.pytorch.org/whl/")),
                    "{at}: {line}"
                );
            }
        }
        let order: Vec<_> = findings.iter().map(|f| (f.severity, f.rule.clone())).collect();
        assert!(order.is_sorted(), "worst first: {order:?}");
    }
}

/// The records contain text from other people's files: no spelling may cause a panic.
#[test]
fn odd_strings_in_records_do_not_panic() {
    let words = [
        "",
        " ",
        "+",
        "==",
        "~",
        "/~",
        "é漢",
        "cu",
        "cuda",
        "+cu",
        "13",
        "1.",
        ".",
        "4294967296",
        "a=='",
        "0+cu999.x",
    ];
    for word in words {
        for other in words {
            let mut env = crate::test_support::env(word)
                .python(other)
                .torch(&format!("2.9.0+{word}"), Some(other))
                .dist(&format!("nvidia-{word}"), other)
                .dist("torchvision", word)
                .requires("torchvision", &format!("torch{other}{word}"))
                .dist("triton", other)
                .requires("torch", &format!("triton{word};{other}"))
                .installer("torch", word)
                .dist_at(word, other, word)
                .build();
            env.found_by = "python on PATH".into();
            env.problems = vec![format!("{word}/~{other}"), format!("/~{word}.dist-info{other}")];
            let mut machine = crate::test_support::machines::h200();
            let driver = machine.driver.as_mut().expect("a driver");
            driver.kernel_module = Some(facts::Fact::new(word.into(), other));
            driver.cuda_limit = Some(facts::Fact::new((u32::MAX, u32::MAX), word));
            machine.gpus[0].compute_capability = Some(facts::Fact::new((u32::MAX, 0), other));
            let venv = crate::test_support::env(other).found_by("./.venv").build();
            for finding in crate::run(&machine, &[env, venv]) {
                assert!(
                    !finding.evidence.is_empty() && !finding.cause.is_empty(),
                    "{}",
                    finding.rule
                );
            }
        }
    }
}

#[test]
fn explanations_are_complete_and_short() {
    for rule in RULES {
        let words = rule.about.split_whitespace().count();
        assert!((40..=220).contains(&words), "{}: {words} words", rule.id);
        assert!(!rule.title.is_empty() && !rule.title.ends_with('.'), "{}", rule.id);
        assert!(
            rule.about.lines().all(|line| line.chars().count() <= 120),
            "{}: long line",
            rule.id
        );
        assert!(rule.links.iter().all(|link| link.starts_with("https://")), "{}", rule.id);
        assert_eq!(crate::rule(&rule.id.to_uppercase()).map(|found| found.id), Some(rule.id));
    }
}

/// The invariant of lib.rs, checked in the text of every file: no file, process, variable or clock is used.
#[test]
fn no_source_file_does_io() {
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a source folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.ends_with("tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source file");
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for word in ["std::fs", "std::env", "std::process", "std::net", "std::time", "std::io"]
            {
                assert!(!shipped.contains(word), "{word} in {}", path.display());
            }
            read += 1;
        }
    }
    assert!(read > RULES.len());
}
