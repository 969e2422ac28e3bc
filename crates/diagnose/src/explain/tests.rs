//! Every text a rule knows is found by it, whatever a terminal or a log did to it, and no other text is.

mod catalogue;

use super::*;
use crate::test_support::{env, machines};

/// Errors of other causes, one after each `---` line.
const UNRELATED: &str = include_str!("unrelated.txt");

fn rules_for(text: &str) -> Vec<&'static str> {
    explain(text, &machines::x86(), &[]).iter().map(|found| found.rule.id).collect()
}

fn samples() -> impl Iterator<Item = (&'static Rule, &'static crate::Text)> {
    RULES.iter().flat_map(|rule| rule.texts.iter().map(move |text| (rule, text)))
}

/// Breaks a text into lines of at most `width` letters, in the middle of words, as a terminal does.
fn wrapped(text: &str, width: usize) -> String {
    let lines = text.lines().flat_map(|line| {
        let letters: Vec<char> = line.chars().collect();
        letters.chunks(width).map(|chunk| chunk.iter().collect::<String>()).collect::<Vec<_>>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn colored(text: &str) -> String {
    let words: Vec<String> =
        text.split(' ').map(|word| format!("\u{1b}[1;31m{word}\u{1b}[0m")).collect();
    words.join(" ").replace('\n', "\u{1b}[K\r\n")
}

fn framed(text: &str) -> String {
    text.lines().map(|line| format!("\u{2502} {line:<100} \u{2502}\n")).collect()
}

fn logged(text: &str) -> String {
    let noise = |from: usize| -> String {
        (from..from + 400)
            .map(|step| {
                format!(
                    "2026-11-21 08:00:{:02} INFO [train.py:{step}] step {step} loss 2.31 lr 3e-4\n",
                    step % 60
                )
            })
            .collect()
    };
    format!("{}{text}\n{}", noise(0), noise(400))
}

/// What a terminal, a tool's frame or a log makes of a text.
fn dressed(text: &str) -> [(&'static str, String); 6] {
    [
        ("plain", text.to_owned()),
        ("wrapped at 60", wrapped(text, 60)),
        ("wrapped at 79", wrapped(text, 79)),
        ("coloured", colored(text)),
        ("framed", framed(text)),
        ("in a log", logged(text)),
    ]
}

#[test]
fn every_sample_finds_its_rule_first_in_any_dress() {
    for (rule, text) in samples().filter(|(_, text)| !text.sample.is_empty()) {
        for (dress, pasted) in dressed(text.sample) {
            let found = rules_for(&pasted);
            assert_eq!(found.first(), Some(&rule.id), "{dress}: {found:?}\n{pasted}");
        }
        assert!(Pasted::new(text.sample).find(text.pattern).is_some(), "{}", text.pattern);
    }
}

#[test]
fn every_row_of_the_catalogue_is_its_rule() {
    for (row, words, id) in catalogue::ROWS {
        assert!(crate::rule(id).is_some(), "row {row}: no rule {id}");
        if !words.is_empty() {
            for (dress, pasted) in dressed(words) {
                assert_eq!(rules_for(&pasted).first(), Some(id), "row {row} {dress}: {pasted}");
            }
            let long = format!("ImportError: /v/lib/python3.12/site-packages/x.so: {words}");
            assert!(*words == "Killed" || rules_for(&long).contains(id), "row {row}: {long}");
        }
    }
    let rows = |prefix: &str| {
        let rows: BTreeSet<&str> = catalogue::ROWS
            .iter()
            .map(|row| row.0)
            .filter(|row| row.starts_with('R') == (prefix == "R"))
            .collect();
        rows.len()
    };
    assert_eq!((rows(""), rows("R")), (31, 13));
}

#[test]
fn words_without_a_sample_are_another_rules_too() {
    for (rule, text) in samples().filter(|(_, text)| text.sample.is_empty()) {
        let other = samples().any(|(other, its)| {
            other.id != rule.id && its.pattern == text.pattern && !its.sample.is_empty()
        });
        assert!(other, "{}: no sample of {:?}", rule.id, text.pattern);
    }
}

#[test]
fn patterns_are_specific() {
    for (rule, text) in samples() {
        let letters = text.pattern.chars().filter(|c| c.is_alphanumeric()).count();
        assert!(letters >= 15 || text.pattern.starts_with('^'), "{}: {:?}", rule.id, text.pattern);
    }
}

#[test]
fn other_errors_find_no_rule() {
    let texts: Vec<&str> =
        UNRELATED.split("---\n").filter(|text| !text.trim().is_empty()).collect();
    assert!(texts.len() >= 40, "{}", texts.len());
    for (dress, pasted) in texts.into_iter().flat_map(dressed) {
        assert_eq!(rules_for(&pasted), [""; 0], "{dress}: {pasted}");
    }
}

#[test]
fn the_files_here_confirm_or_refute_or_cannot_tell() {
    let text = "AssertionError: Torch not compiled with CUDA enabled";
    let cpu = [env("/p/.venv").uv().torch("2.9.0+cpu", None).build()];
    let cuda = [env("/v").torch("2.11.0+cu128", Some("12.8")).build()];
    let check = |machine: Machine, envs: &[PyEnv], expect: Option<bool>, command: &str| {
        let matches = explain(text, &machine, envs);
        assert_eq!(matches[0].rule.id, "cpu-only-torch");
        assert_eq!(matches[0].confirmed_here, expect);
        assert!(matches[0].fix.iter().any(|line| line.contains(command)), "{:?}", matches[0].fix);
    };
    check(
        machines::gh200(),
        &cpu,
        Some(true),
        "uv pip install --python /p/.venv/bin/python torch==2.9.0",
    );
    check(machines::gh200(), &cuda, Some(false), "/v/bin/python -m pip");
    check(machines::x86(), &cuda, None, "/v/bin/python -m pip");
    check(machines::gh200(), &[], None, "--venv");
}

#[test]
fn among_rules_with_the_same_words_the_one_the_files_show_comes_first() {
    let text = "RuntimeError: CUDA error: no kernel image is available for execution on the device";
    let torch = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
    let pascal = machines::x86_with("Tesla P100-PCIE-16GB", (6, 0), "570.148.08", (12, 8));
    let matches = explain(text, &pascal, &torch);
    assert_eq!(matches[0].rule.id, "gpu-too-old");
    assert_eq!(matches[0].confirmed_here, Some(true));
    assert!(matches.iter().any(|found| found.rule.id == "gpu-too-new"));
}

#[test]
fn words_inside_longer_words_are_not_another_error() {
    // The general `undefined symbol: _ZN3c10...` lies inside the symbol that tells the ABI.
    let text = "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    assert_eq!(rules_for(text), ["extension-new-abi"]);
    assert_eq!(rules_for("undefined symbol: _ZN3c104cuda9SetDeviceEab"), ["torch-minor-drift"]);
}

#[test]
fn every_match_says_what_to_do() {
    let torch = [env("/v").uv().torch("2.9.1+cu128", Some("12.8")).build()];
    for rule in RULES {
        for (machine, envs) in [
            (machines::x86(), &[][..]),
            (machines::h200(), &torch[..]),
            (machines::jetson_orin(), &torch[..]),
            (machines::m3_max(), &[][..]),
        ] {
            let found = explain_rule(rule, &machine, envs);
            assert!(found.fix.iter().all(|line| !line.trim().is_empty()), "{}", rule.id);
            assert!(!found.fix.is_empty() || !found.findings.is_empty(), "{}", rule.id);
        }
    }
}

#[test]
fn an_unknown_text_has_near_rules_or_none() {
    let near =
        |text: &str| -> Vec<&str> { nearest_to_text(text).iter().map(|rule| rule.id).collect() };
    assert_eq!(near("the torchvision operators are gone")[0], "torch-pairs");
    assert_eq!(
        near("driver and library version differ, mismatch of NVML")[0],
        "driver-library-mismatch"
    );
    assert_eq!(near("xyzzy plugh"), [""; 0]);
    assert_eq!(near(""), [""; 0]);
}
