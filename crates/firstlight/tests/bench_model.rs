//! `firstlight bench model`: no speed without verified logits, a run folder with both, and an error for each invalid argument.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use support::{expect, json, refuses};
use tempfile::tempdir;

#[test]
fn random_model_is_verified_then_timed() {
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
    expect(here, &["check", "--report", "run"], 0);
    assert_eq!(std::fs::read_to_string(here.join("run/report.md")).unwrap(), report);

    expect(here, &["synth", "kimi-linear-mini", "m"], 0);
    let (said, _) = expect(here, &["bench", "model", "m", "--tests", "tg4", "-r", "1"], 0);
    assert!(said.contains("weights of its folder") && said.contains("tg4"), "{said}");
}

/// A Python package whose model calls `firstlight logits`, one token at a time.
const STAND_IN: &str = r#"
import array, json, os, struct, subprocess, tempfile

def logits(folder, ids):
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out")
        line = [os.environ["FIRSTLIGHT"], "logits", folder, "--dtype", "f32", "--ids", ",".join(map(str, ids)), "-o", out]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        data = open(out, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])["logits"]
    values = array.array("f", data[8 + length :][slice(*entry["data_offsets"])])
    return values[-entry["shape"][1] :]

def generate(tensors, settings, put):
    (ids,) = tensors["ids"].tolist()
    steps, tokens = array.array("f"), []
    for _ in range(int(settings["new_tokens"])):
        step = logits(settings["folder"], ids + tokens)
        tokens.append(step.index(max(step)))
        put(tokens[-1:])
        steps.extend(step)
    shape = [len(tokens), 1]
    chosen = memoryview(array.array("i", tokens)).cast("B").cast("i", shape)
    return {"logits": memoryview(steps).cast("B").cast("f", shape + [len(steps) // len(tokens)]), "tokens": chosen}

def wrong(tensors, settings, put):
    ids = tensors["ids"].tolist()
    ids[0][-1] += 1
    return generate({"ids": memoryview(array.array("i", ids[0])).cast("B").cast("i", [1, len(ids[0])])}, settings, put)
"#;

#[test]
fn r2_09_installed_package_runs_the_same_tests() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("stand_in.py"), STAND_IN).unwrap();
    let peers = ["--peer", "model=stand_in:generate", "--peer", "model=stand_in:wrong"];
    let arguments =
        [
            &[
                "bench",
                "model",
                "granite-hybrid-mini",
                "--random",
                "--layers",
                "3",
                "--dtype",
                "f32",
            ][..],
            &["--tests", "pp16,tg3@8", "-r", "2", "-o", "run", "--json"],
            &["--python", "python3", "--peer-path", ".", "--only", "transformers"],
            &peers,
        ]
        .concat();
    let mut command = support::command(here, &arguments);
    let output = command.env("FIRSTLIGHT", env!("CARGO_BIN_EXE_firstlight")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "one of them is wrong: {said}");
    let ran: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |peer: &str| -> Vec<_> {
        let all = ran["checks"].as_array().unwrap().iter();
        let of = all.filter(|row| row["variant"] == peer);
        of.map(|row| (row["case"].as_str().unwrap(), row["status"].as_str().unwrap())).collect()
    };
    let cases =
        ["generates-8-after-37", "pp16", "tg3@8"].map(|case| format!("granite-hybrid-mini/{case}"));
    let passed: Vec<_> = cases.iter().map(|case| (case.as_str(), "PASS")).collect();
    assert_eq!(rows("stand_in:generate"), passed, "{ran:#}");
    assert_eq!(rows("stand_in:wrong"), [(cases[0].as_str(), "FAIL")]);
    // `--only` names an engine that cannot be loaded here.
    assert_eq!(rows("transformers.granitemoehybrid"), [(cases[0].as_str(), "FAIL")]);
    assert!(rows("transformers.kimi_linear").is_empty(), "it runs no model of this type");

    let speeds = ran["speeds"].as_array().unwrap();
    let of: Vec<_> = speeds.iter().map(|speed| (&speed["test"], &speed["peer"])).collect();
    let (pp, tg, peer) = ("pp16".into(), "tg3@8".into(), "stand_in:generate".into());
    let none = serde_json::Value::Null;
    assert_eq!(of, [(&pp, &none), (&tg, &none), (&pp, &peer), (&tg, &peer)]);
    let [read, decoded] = &speeds[2..] else { panic!("{ran:#}") };
    assert!(read["first_token"]["cold_ms"].as_f64().unwrap() > 0.0, "{read}");
    assert!(read["first_token"]["warm_ms"].as_f64().unwrap() > 0.0, "{read}");
    // The package has the same bandwidth limit as the engine.
    assert_eq!(decoded["limit"]["bytes_per_step"], speeds[1]["limit"]["bytes_per_step"]);
    let limit = speeds[1]["limit"]["tokens_per_second"].as_f64().unwrap();
    let percent = 100.0 * decoded["mean_tokens_per_second"].as_f64().unwrap() / limit;
    assert!((decoded["limit"]["percent"].as_f64().unwrap() - percent).abs() < 1e-6, "{decoded}");

    let report = std::fs::read_to_string(here.join("run/report.md")).unwrap();
    let report = report.replace('\\', "");
    assert!(report.contains("times as fast as stand_in:generate"), "{report}");
    assert!(!report.contains("times as fast as stand_in:wrong"), "{report}");
}

#[test]
fn invalid_arguments_fail_before_loading() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let bench = |arguments: &[&str], words: &[&str]| {
        refuses(here, &[&["bench", "model"], arguments].concat(), words);
    };
    bench(&["gpt-2", "--random"], &["there is no model shape `gpt-2`"]);
    bench(&["nowhere"], &["nowhere/config.json"]);
    bench(&["granite-hybrid-mini", "--random", "--tests", "pp5000"], &["pp5000 takes 5000 tokens"]);
    // Without `--tests`, tests longer than the context are skipped; here the context is 64 tokens.
    expect(here, &["model", "synth", "granite-hybrid-mini", "short"], 0);
    let config = std::fs::read_to_string(here.join("short/config.json")).unwrap();
    let limit = |tokens: u64| {
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["max_position_embeddings"] = tokens.into();
        std::fs::write(here.join("short/config.json"), config.to_string()).unwrap();
    };
    limit(64);
    bench(&["short"], &["pp512 takes 512 tokens, the model's context is 64"]);
    limit(200);
    let (out, told) = expect(here, &["bench", "model", "short", "-r", "1"], 0);
    let notice = "notice: not timed, beyond the model's context of 200: pp512, pp4096, tg128@8192";
    assert_eq!(told.lines().next(), Some(notice));
    assert!(out.contains("\ntg128 ") && !out.contains("pp512"), "{out}");
    bench(
        &["granite-hybrid-mini", "--random", "--layers", "9"],
        &["the model has 4 layers, and 9 were asked for"],
    );
    let huge = ["granite-4.0-h-micro", "--random", "--sequences", "4096", "--tests", "tg16@65536"];
    // Processors without bf16 instructions store the weights as float32.
    #[cfg(target_arch = "x86_64")]
    let narrow = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let narrow = false;
    let weights = if narrow { "weights 6.38 GB" } else { "weights 12.77 GB" };
    bench(&huge, &["the model needs", weights, "are free"]);
}
