//! `firstlight plan`: what it prints, and how it ends.

use std::path::Path;
use std::process::{Command, Output};

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.arg("plan").args(arguments).env("NO_COLOR", "1").env_remove("COLUMNS");
    command.output().expect("firstlight runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn a_plan_fits_80_columns_and_ends_well() {
    let output = plan(&["--for", "granite-a10", "--machine", "a10"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    let commands = |line: &str| line.trim_start().starts_with("firstlight ");
    let wide = out.lines().find(|line| line.chars().count() > 80 && !commands(line));
    assert_eq!(wide, None, "{out}");
    for words in ["plan for a10", "flash-attn", "mamba-ssm", "--lock --emit plan.toml -o plan.toml"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }
    let explained = text(&plan(&["--for", "granite-a10", "--machine", "a10", "--explain"]).stdout);
    assert!(explained.contains("torch 2.15.0 cu132") && explained.contains("table of firstlight"));
}

#[test]
fn a_refusal_is_a_finding_and_json_is_a_document() {
    let output = plan(&["torch", "--machine", "jetson-orin"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("these cannot all hold") && out.contains("jetson-ai-lab"), "{out}");
    let output = plan(&["flash-attn", "--machine", "gh200", "--json"]);
    let json: facts::Plan = serde_json::from_slice(&output.stdout).expect("a plan");
    assert_eq!(json.target.name, "gh200");
    let output = plan(&["torch", "--machine", "jetson-orin", "--json"]);
    let json: facts::Refusal = serde_json::from_slice(&output.stdout).expect("a refusal");
    assert!(!json.conflict.is_empty());
}

#[test]
fn names_that_are_misspelt_are_suggested() {
    for (arguments, words) in [
        (&["--machine", "gh20"][..], "did you mean `gh200`?"),
        (&["--for", "granite-a1", "--machine", "a10"], "did you mean `granite-a10`?"),
        (&["--machine", "a10", "--emit", "plan.tml"], "did you mean `plan.toml`?"),
        (&["--machine", "a10", "flash-attn>>2"], "is no requirement"),
    ] {
        let output = plan(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_model_s_config_says_which_kernels_to_plan_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = r#"{"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 1024, "vocab_size": 1000, "state_size": 128, "num_heads": 32, "head_dim": 64, "expand": 2,
        "n_groups": 1, "conv_kernel": 4}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("writes");
    let path = folder.path().to_str().expect("UTF-8");
    let output = plan(&["--for", path, "--machine", "h200"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    assert!(out.contains("mamba-ssm") && out.contains("causal-conv1d"), "{out}");
}

#[test]
fn a_plan_is_written_in_another_tool_s_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.toml");
    let path = file.to_str().expect("UTF-8");
    let output = plan(&["torch", "--machine", "cpu-x86_64", "--emit", "plan.toml", "-o", path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&file).expect("a file");
    let plan = setup::emit::read_plan(&written).expect("a plan");
    assert_eq!(plan.target.name, "cpu-x86_64");
}

/// Writes the plan of these arguments in a format, and gives the file and its text without the comment above it.
fn written(folder: &Path, format: &str, arguments: &[&str]) -> (String, String) {
    let path = folder.join(format).to_str().expect("UTF-8").to_owned();
    let output = plan(&[arguments, &["--emit", format, "-o", &path]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let text = std::fs::read_to_string(&path).expect("a file");
    let body = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    (path, body)
}

#[test]
fn r4_07_a_profile_is_written_planned_for_and_written_the_same() {
    let (first, second) = (tempfile::tempdir().expect("a"), tempfile::tempdir().expect("b"));
    let asked = ["flash-attn", "--machine", "h200"];
    let (file, body) = written(first.path(), "profile.yaml", &asked);
    assert!(body.contains("flash_attn_version: ") && body.contains("cuda_version: "), "{body}");
    let asked = ["--for", &file, "--machine", "h200"];
    assert_eq!(written(second.path(), "profile.yaml", &asked).1, body);
    // It is pinned, not asked for anew: an older torch stays the older one.
    let older = "torch_version: 2.8.0\ncuda_version: '12.8'\n";
    std::fs::write(&file, older).expect("writes");
    let (_, again) = written(second.path(), "profile.yaml", &asked);
    assert!(again.contains("torch_version: 2.8.0") && again.contains("12.8"), "{again}");
    std::fs::write(&file, format!("{older}triton_sel_force: true\n")).expect("writes");
    let output = plan(&asked);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`triton_sel_force` is for testing only"));
}

#[test]
fn a_plan_that_was_written_is_looked_at_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = ["--for", "granite-a10", "--machine", "a10"];
    let (file, _) = written(folder.path(), "plan.toml", &asked);
    let (_, direct) = written(folder.path(), "pyproject.toml", &asked);
    assert_eq!(written(folder.path(), "pyproject.toml", &["--from", &file]).1, direct);
    let output = plan(&["--from", &file]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("plan for a10"));

    // A version that is not what the tables have is a finding, and a machine on which it cannot be is a refusal.
    let written = std::fs::read_to_string(&file).expect("a file");
    let planned = setup::emit::read_plan(&written).expect("a plan");
    let torch = planned.packages.iter().find(|package| package.name == "torch").expect("torch");
    std::fs::write(&file, written.replace(&torch.version, "2.0.0")).expect("writes");
    let output = plan(&["--from", &file]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains(&format!("torch 2.0.0 is {} today", torch.version)), "{out}");
    let elsewhere = written.replace("gpus = [[8, 6]]", "gpus = []");
    assert_ne!(elsewhere, written);
    std::fs::write(&file, elsewhere).expect("writes");
    let output = plan(&["--from", &file]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("these cannot all hold"), "{out}");

    let output = plan(&["--from", &file, "torch"]);
    assert_eq!(output.status.code(), Some(2), "a plan is not planned for something else");
}
