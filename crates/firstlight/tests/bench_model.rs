//! `firstlight bench model`: no speed without agreement, a run folder that tells both, and every mistake named.

#![allow(clippy::unwrap_used)] // Test helpers beside the tests.

mod support;

use support::{expect, json, refuses};
use tempfile::tempdir;

#[test]
fn a_random_model_is_verified_then_timed_into_a_run_folder() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let line =
        ["bench", "model", "granite-moe-mini", "--random", "--layers", "2", "--sequences", "2"];
    let tests = ["--tests", "pp32,tg8@16", "-r", "3", "-o", "run"];
    let ran = json(here, &[&line[..], &tests[..]].concat(), 0);
    assert_eq!((&ran["layers"], &ran["random"]), (&2.into(), &true.into()), "{ran}");
    let checks = ran["checks"].as_array().unwrap();
    assert!(checks.len() >= 7 && checks.iter().all(|row| row["status"] == "PASS"), "{checks:?}");
    let [read, decoded] = ran["speeds"].as_array().unwrap().as_slice() else { panic!("{ran}") };
    assert_eq!((&read["test"], &decoded["test"]), (&"pp32".into(), &"tg8@16".into()));
    for speed in [read, decoded] {
        assert_eq!(speed["samples_tokens_per_second"].as_array().unwrap().len(), 3);
        assert!(speed["mean_tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(
            speed["launches"].as_object().unwrap().contains_key("linear.bf16")
                || speed["launches"].as_object().unwrap().contains_key("linear.f32")
        );
    }
    assert!(read["first_token"]["cold_ms"].as_f64().unwrap() > 0.0 && read["limit"].is_null());
    assert!(decoded["limit"]["percent"].as_f64().unwrap() > 0.0, "{decoded}");

    let report = std::fs::read_to_string(here.join("run/report.md")).unwrap();
    for words in ["granite-moe-mini: granite-hybrid, 2 layers", "pp32", "tg8@16", "models.json"] {
        assert!(report.contains(words), "{words}");
    }
    let table = std::fs::read_to_string(here.join("run/models.csv")).unwrap();
    assert_eq!(table.lines().count(), 3, "{table}");
    expect(here, &["report", "run"], 0);
    assert_eq!(std::fs::read_to_string(here.join("run/report.md")).unwrap(), report);

    expect(here, &["synth", "kimi-linear-mini", "m"], 0);
    let (said, _) = expect(here, &["bench", "model", "m", "--tests", "tg4", "-r", "1"], 0);
    assert!(said.contains("weights of its folder") && said.contains("tg4"), "{said}");
}

#[test]
fn mistakes_are_named_before_anything_is_loaded() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let bench = |arguments: &[&str], words: &[&str]| {
        refuses(here, &[&["bench", "model"], arguments].concat(), words);
    };
    bench(&["gpt-2", "--random"], &["there is no model shape `gpt-2`"]);
    bench(&["nowhere"], &["nowhere/config.json"]);
    bench(&["granite-hybrid-mini", "--random", "--tests", "pp5000"], &["pp5000 takes 5000 tokens"]);
    bench(&["granite-hybrid-mini", "--random", "--layers", "9"], &["`num_hidden_layers` is 4"]);
}
