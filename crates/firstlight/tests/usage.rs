//! Invalid command lines and those of other programs: a one-line error and a hint.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use support::{expect, json, refuses};
use tempfile::tempdir;

#[test]
fn foreign_options_get_the_equivalent_as_hint() {
    let folder = tempdir().unwrap();
    for (line, sentence, hint) in [
        ("run m -ngl 99", "'-ngl'", "--backend cpu"),
        ("run m -n 8 -ngl 99", "'-ngl'", "--backend cpu"),
        ("serve m --n-gpu-layers 99", "'--n-gpu-layers'", "--backend cpu"),
        ("serve m --gpu-memory-utilization 0.9", "'--gpu-memory-utilization'", "90 %"),
        ("serve --model m", "'--model'", "the model is an argument without an option"),
        ("run m --device cpu", "'--device'", "--backend cpu"),
        ("run m -t 4", "'-t'", "taskset"),
        ("serve m --kv-cache-dtype fp8", "'--kv-cache-dtype'", "--dtype"),
        ("serve m --quantization=fp8", "'--quantization'", "model quantize"),
        ("pull m", "'pull'", "--download"),
        ("list", "'list'", "Hugging Face cache"),
        ("show m", "'show'", "firstlight fit"),
        ("version", "'version'", "firstlight --version"),
        ("install torch", "'install'", "firstlight apply"),
        ("generate m", "'generate'", "firstlight run"),
        ("rm m", "'rm'", "rm -r"),
        ("serve m --dtype auto", "'auto' for '--dtype <DTYPE>'", "leave it out"),
        ("serve m --dtype half", "'half' for '--dtype <DTYPE>'", "leave it out"),
        ("gate", "--certificate <FILE>", "usage: firstlight gate "),
        ("chek", "'chek'", "did you mean 'check'"),
        ("chekc", "'chekc'", "did you mean 'check'"),
        ("verify --op rmsnorm", "'--op'", "firstlight verify rmsnorm"),
        ("bogus", "'bogus'", "`firstlight --help`"),
        ("check --quik", "'--quik'", "did you mean '--quick'"),
        ("verify --zzz", "'--zzz'", "`firstlight verify --help`"),
        (
            "verify --backend metal",
            "[possible values: auto, cpu, cuda]",
            "`firstlight verify --help`",
        ),
        ("model synth --zzz", "'--zzz'", "`firstlight model synth --help`"),
        ("serve", "<MODEL>", "usage: firstlight serve"),
        ("check --quick --full", "cannot be used with", "`firstlight check --help`"),
        ("fit m -b x", "expected a whole number, 1 or more", "`firstlight fit --help`"),
        ("serve m --port 80x", "'--port <PORT>': expected a whole number", "firstlight serve"),
        ("serve m --port 80000", "80000 is not in 0..=65535", "firstlight serve"),
        ("check --gpu x", "expected a whole number", "`firstlight check --help`"),
        ("remote host doctor -v", "'doctor'", "firstlight remote host -- doctor -v"),
        ("remote host --dri-run", "'--dri-run'", "did you mean '--dry-run'"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        refuses(folder.path(), &words, &[sentence]);
        let (_, err) = expect(folder.path(), &words, 2);
        assert!(err.lines().nth(1).unwrap().contains(hint), "{line}: no `{hint}` in {err}");
        assert!(!err.contains("tip:") && !err.contains("Usage:"), "{line}: {err}");
        let document = json(folder.path(), &words, 2);
        assert!(document["error"].as_str().unwrap().contains(sentence), "{line}: {document}");
        assert!(document["hint"].as_str().unwrap().contains(hint), "{line}: {document}");
    }
}

#[test]
fn explain_refuses_an_empty_file() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("empty.log"), "\n").unwrap();
    refuses(folder.path(), &["explain", "empty.log"], &["there is nothing to explain"]);
}

#[test]
fn missing_command_lists_the_visible_ones() {
    let folder = tempdir().unwrap();
    let document = json(folder.path(), &[], 2);
    let error = document["error"].as_str().unwrap();
    assert!(error.contains("doctor, ") && error.contains("check, "), "{error}");
    for hidden in ["render-templates", "ask-nvml", "rank,"] {
        assert!(!error.contains(hidden), "{error}");
    }
}

#[test]
fn tables_of_models_fit_80_columns() {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["model", "synth", "granite-moe-mini", "m"], 0);
    for line in [&["model", "synth"][..], &["model", "quantize", "m", "q", "--to", "int8"]] {
        let (out, _) = expect(folder.path(), line, 0);
        let wide = out.lines().find(|line| line.chars().count() > 80);
        assert!(out.lines().count() > 2 && wide.is_none(), "{line:?}: {wide:?}");
    }
}

#[test]
fn accepts_names_of_other_programs() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    let asked = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let memory = json(here, &words, 0)["model"]["memory"].take();
        (memory["context_tokens"].as_u64().unwrap(), memory["sequences"].as_u64().unwrap())
    };
    for line in [
        "fit m --max-model-len 512 --max-num-seqs 3",
        "fit m --context 512 --batch 3",
        "fit m -c 512 -np 3",
        "fit m --ctx-size 512 --sequences 3",
    ] {
        assert_eq!(asked(line), (512, 3), "{line}");
    }
    for line in [
        "run m -p x -n 2 --dtype bfloat16",
        "run m -p x -n 2 --dtype float32 --temp 0 -s 1",
        "run m -p x -n 2 --chunk 8 --tensor-parallel-size 1",
        "run m -p x -n 2 -tp 1",
        "verify rmsnorm --quick --backend cpu",
        "verify rmsnorm --extent quick --backend cpu",
        "plan torch --compute-capability 8.0",
        "plan torch --gpu 8.0",
        "doctor --wait 3",
        "run m -p x -n 2 --mamba-ssm-cache-dtype f32",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let status = support::run(here, &words).status.code();
        assert!(matches!(status, Some(0 | 1)), "{line}: {status:?}");
    }
    // An unknown backend is rejected by the argument parser.
    let (_, err) = expect(here, &["run", "m", "-p", "x", "--backend", "abacus"], 2);
    assert!(err.contains("possible values"), "{err}");
}

/// Options of the same meaning have the same name in every command.
#[test]
fn options_have_one_name_in_all_commands() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let help = |command: &str| {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        expect(here, &words, 0).0
    };
    let (models, kernels) = (["run", "chat", "serve"], ["check", "verify", "bench"]);
    let with = |first: &[&'static str], more: &[&'static str]| [first, more].concat();
    let on_gpus = with(&models, &kernels);
    for (option, commands) in [
        ("--quick", kernels.to_vec()),
        ("--full", kernels.to_vec()),
        ("--max-model-len <TOKENS>", with(&models, &["fit", "doctor", "check"])),
        ("--max-num-seqs <N>", vec!["fit", "doctor", "check", "serve", "bench model"]),
        ("--max-num-batched-tokens <TOKENS>", vec!["run", "serve", "model logits"]),
        ("--gpu <N>", with(&on_gpus, &["bench model", "bench fabric", "model logits"])),
        ("--compute-capability <X.Y>", vec!["plan"]),
        ("--dtype <DTYPE>", with(&models, &["bench model", "model logits"])),
        ("--max-tokens <N>", vec!["run", "chat"]),
        (
            "--driver-timeout <SECONDS>",
            vec!["check", "doctor", "explain", "plan", "ps", "fit", "gate"],
        ),
    ] {
        for command in commands {
            assert!(help(command).contains(option), "{command} has no {option}");
        }
    }
    // The former names are aliases, which the help does not list.
    for command in ["check", "verify", "bench", "plan", "fit", "doctor", "run", "chat", "serve"] {
        let help = help(command);
        for other in
            ["--extent", "--batch ", "--sequences", "--context", "--chunk", "--wait", "--gpu <X.Y>"]
        {
            assert!(!help.contains(other), "{command} has {other}");
        }
    }
}

#[test]
fn run_accepts_max_model_len() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    let added = |more: &[&str]| {
        let ran = json(here, &[&["run", "m", "--ids", "1,2,3"], more].concat(), 0);
        ran["answers"][0]["tokens"].as_array().unwrap().len()
    };
    for option in ["--max-model-len", "--ctx-size", "-c"] {
        assert_eq!(added(&[option, "10"]), 7);
        assert_eq!(added(&[option, "10", "-n", "7"]), 7);
        assert_eq!(added(&[option, "1000"]), 128);
        let line = ["run", "m", "--ids", "1,2,3", option, "10", "-n", "8"];
        let sentence = format!("a prompt of 3 tokens and 8 to add are 11; {option} is 10");
        refuses(here, &line, &[&sentence]);
        let (_, told) = expect(here, &line, 2);
        assert!(told.contains("ask for at most -n 7"), "{told}");
        refuses(here, &["run", "m", "--ids", "1,2,3", option, "3"], &["1 to add are 4"]);
        let sentence = format!("{option} 10000000 is more than the model's longest context");
        refuses(here, &["run", "m", "--ids", "1", option, "10000000"], &[&sentence]);
    }
}

/// `2>&1 | head` closes standard error before the command ends.
#[test]
fn closed_standard_error_does_not_panic() {
    let folder = tempdir().unwrap();
    for line in ["matrix --machine v100", "plan torch --gpu 8.0", "run none -p x", "nonsense"] {
        let words: Vec<&str> = line.split(' ').collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = support::command(folder.path(), &words);
        let status = command.stdout(std::process::Stdio::null()).stderr(writer).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 2)), "{line}: {status}");
    }
}

#[test]
fn former_names_work_with_a_notice() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let (_, told) = expect(here, &["synth", "granite-rope-mini", "m"], 0);
    assert!(told.contains("notice: `firstlight synth` is now `firstlight model synth`"), "{told}");
    let (_, told) = expect(here, &["model", "synth", "granite-rope-mini", "n"], 0);
    assert!(!told.contains("notice"), "{told}");
    let (_, told) = expect(here, &["plan", "torch", "--gpu", "8.0"], 0);
    assert!(told.contains("notice: --gpu is now --compute-capability"), "{told}");
    let (old, told) = expect(here, &["matrix", "--machine", "v100", "--verbose"], 0);
    assert!(
        told.contains("notice: `firstlight matrix` is now `firstlight plan --matrix`"),
        "{told}"
    );
    let (new, told) = expect(here, &["plan", "--matrix", "--machine", "v100", "--explain"], 0);
    assert_eq!((new, told.as_str()), (old, ""));
    let (help, _) = expect(here, &["--help"], 0);
    for hidden in ["  synth ", "  op ", "  man ", "  matrix ", "  report "] {
        assert!(!help.contains(hidden), "{hidden} in {help}");
    }
    for shown in ["model", "compare", "gate", "serve"] {
        assert!(help.contains(&format!("  {shown} ")), "{shown}: {help}");
    }
}
