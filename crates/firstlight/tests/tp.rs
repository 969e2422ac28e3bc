//! `--tp`: tensor parallel ranks give the results of one process, and no rank outlives another.
#![cfg(target_os = "linux")] // Processes are found in /proc.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::fake_driver::{nccl, with_driver, with_gpu};
use support::processes::{children, gone, kill, threads};
use support::{command, expect, json, refuses};
use tempfile::{TempDir, tempdir};

fn model(shape: &str) -> TempDir {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["synth", shape, "model"], 0);
    folder
}

#[test]
fn tensor_parallel_tokens_equal_one_process() {
    for (shape, dtype) in [("granite-hybrid-mini", "f32"), ("kimi-linear-mini", "f32")] {
        let folder = model(shape);
        let run = |tp: &str| {
            let arguments = ["run", "model", "--ids", "5,9,260,17", "-n", "12", "--dtype", dtype];
            // Sampled, because a random model repeats one token under greedy decoding; the logits are the same.
            let rest = ["--backend", "cpu", "--temperature", "1", "--seed", "3", "--tp", tp];
            json(folder.path(), &[&arguments[..], &rest].concat(), 0)
        };
        let (one, two, four) = (run("1"), run("2"), run("4"));
        let tokens = |ran: &serde_json::Value| ran["answers"][0]["tokens"].clone();
        let different: BTreeSet<_> =
            tokens(&one).as_array().unwrap().iter().map(|x| x.as_u64()).collect();
        assert!(different.len() > 6, "{different:?}");
        assert_eq!(tokens(&two), tokens(&one), "{shape}");
        assert_eq!(tokens(&four), tokens(&one), "{shape}");
        assert!(
            two["weight_bytes_per_token"].as_u64() < one["weight_bytes_per_token"].as_u64(),
            "{two}"
        );
    }
}

/// One rank with the environment variables of torchrun.
fn launched(folder: &Path, rank: usize, port: u16, pp: &str) -> Child {
    let arguments = ["run", "model", "--ids", "5,9,260,17", "-n", "12", "--dtype", "f32", "--json"];
    let mut command = command(folder, &[&arguments[..], &["--pp", pp]].concat());
    let (rank, port) = (rank.to_string(), port.to_string());
    command.envs([("RANK", &*rank), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")]);
    command.envs([("LOCAL_WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", "job")]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn layers_are_divided_over_processes() {
    let folder = model("kimi-linear-mini");
    let run = |pp: &str| {
        let arguments = ["run", "model", "--ids", "5,9,260,17", "-n", "12", "--dtype", "f32"];
        let rest = ["--backend", "cpu", "--pp", pp];
        json(folder.path(), &[&arguments[..], &rest].concat(), 0)["answers"][0]["tokens"].clone()
    };
    let whole = run("1");
    assert_eq!(run("2"), whole);
    let both = ["run", "model", "--ids", "1", "--pp", "2", "--tp", "2"];
    let (_, said) = expect(folder.path(), &both, 2);
    assert!(said.starts_with("error: the argument '--pp <N>' cannot be used with '--tp <N>'"));
    // The ranks of a launcher, which may be on several hosts. The launcher's own store uses the port before.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let both = [1, 0].map(|rank| launched(folder.path(), rank, free - 1, "2"));
    let [other, first] = both.map(|process| process.wait_with_output().unwrap());
    assert!(first.status.success() && other.status.success(), "{first:?} {other:?}");
    let told: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(told["answers"][0]["tokens"], whole);
    assert!(other.stdout.is_empty() && other.stderr.is_empty(), "{other:?}");
    let wrong = launched(folder.path(), 0, free - 1, "3").wait_with_output().unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        said.starts_with("error: --pp 3 needs as many processes, torchrun started 2"),
        "{said}"
    );
}

#[test]
fn launches_of_all_ranks_are_counted() {
    let folder = model("granite-hybrid-mini");
    fn run<'a>(split: &[&'a str]) -> Vec<&'a str> {
        let arguments = ["run", "model", "--ids", "5,9,260,17", "-n", "8", "--backend", "cpu"];
        [&arguments[..], split].concat()
    }
    let counts = |split: &[&str]| {
        let ran = json(folder.path(), &run(split), 0);
        let launches = ran["launches"].as_object().unwrap().iter();
        launches.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
    };
    let one: BTreeMap<String, u64> = counts(&["--pp", "1"]);
    let attention = |all: &BTreeMap<String, u64>| -> u64 {
        all.iter().filter(|(name, _)| name.starts_with("attention.")).map(|(_, count)| count).sum()
    };
    // The attention layer is one of rank 1. Each layer is launched once, whatever rank has it.
    assert!(attention(&one) > 0, "{one:?}");
    assert_eq!(attention(&counts(&["--pp", "2"])), attention(&one));
    assert_eq!(attention(&counts(&["--tp", "2"])), 2 * attention(&one));
    let (_, said) = expect(folder.path(), &run(&["--pp", "2"]), 0);
    for words in [" of rank 0 loaded in ", " peak of rank 0, ", " (all 2 ranks)"] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    let (_, said) = expect(folder.path(), &run(&[]), 0);
    assert!(!said.contains("rank"), "{said}");
}

#[test]
fn logits_and_speeds_use_all_ranks() {
    let folder = model("granite-hybrid-mini");
    let logits = |name: &str, tp: &str| {
        let arguments = ["model", "logits", "model", "--ids", "5,9,260,17", "-o", name, "--tp", tp];
        expect(folder.path(), &[&arguments[..], &["--backend", "cpu"]].concat(), 0);
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let data = tensors.tensor("logits").unwrap().data().to_vec();
        data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<_>>()
    };
    let (one, two) = (logits("one", "1"), logits("two", "2"));
    assert_eq!(one.len(), 4 * 512);
    assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() <= 1e-5));
    let arguments = ["bench", "model", "granite-hybrid-mini", "--random", "--backend", "cpu"];
    let rest = ["--tests", "pp16,tg4", "--repeats", "1", "--tp", "2", "--dtype", "f32"];
    let report = json(folder.path(), &[&arguments[..], &rest].concat(), 0);
    assert_eq!(report["speeds"].as_array().unwrap().len(), 2, "{report}");
}

#[test]
fn tensor_parallel_memory_is_predicted_or_refused() {
    let folder = model("granite-hybrid-mini");
    let weights = |tp: &str| {
        let fit = json(folder.path(), &["fit", "model", "--tp", tp], 0);
        fit["engine"]["weights_bytes"].as_u64().unwrap()
    };
    let (one, two) = (weights("1"), weights("2"));
    assert!(two < one * 2 / 3, "{two} of {one}");
    let ids = ["--ids", "1,2", "--backend", "cpu", "--tp", "3"];
    let words = ["the model cannot be split: 8 heads of Mamba-2 do not split evenly over 3 ranks"];
    refuses(folder.path(), &[&["run", "model"], &ids[..]].concat(), &words);
    refuses(folder.path(), &["fit", "model", "--tp", "3"], &words);
}

#[test]
fn fit_uses_the_gpu_with_the_least_free_memory() {
    let folder = model("granite-hybrid-mini");
    // The GPU memory of this process on GPU 0.
    let held = folder.path().join("held");
    std::fs::write(&held, format!("{} 1000\n", std::process::id())).unwrap();
    let fit = |tp: &str, batch: &str, gpus: &str, status: i32| {
        let arguments = ["fit", "model", "--json", "--tp", tp, "--batch", batch];
        let held = held.to_str().unwrap();
        let behaviour = [("FAKE_NVML_COUNT", gpus), ("FAKE_NVML_PROCESSES", held)];
        let output = with_driver(folder.path(), &arguments, &behaviour).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let fit: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |key: &str| fit["engine_on_gpus"][key].as_u64();
        (of("weights_bytes").unwrap(), fit["engine_on_gpus"]["available"]["value"].as_u64())
    };
    let ((one, free), (two, least)) = (fit("1", "1", "2", 0), fit("2", "1", "2", 0));
    assert!(two < one * 3 / 4, "{two} of {one}");
    assert!(free.is_some() && free == least, "{free:?} {least:?}");
    // Too many sequences for one of the GPUs, and too few GPUs for a verdict.
    assert_eq!(fit("2", "100000000", "2", 1).1, least);
    assert_eq!(fit("2", "1", "1", 0).1, None);
}

/// A long-running command and its ranks.
fn long(folder: &Path) -> (Child, Vec<u32>) {
    let arguments = ["run", "model", "--ids", "5,9", "-n", "4000", "--backend", "cpu", "--tp", "4"];
    let mut command = command(folder, &arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut ranks = Vec::new();
    // The ranks are connected once each has a thread that waits for input.
    while ranks.len() != 3 || ranks.iter().any(|rank| threads(*rank) <= 2) {
        assert!(Instant::now() < until, "there are {ranks:?}");
        std::thread::sleep(Duration::from_millis(20));
        ranks = children(child.id());
    }
    (child, ranks)
}

#[test]
fn killed_rank_ends_all_and_is_named() {
    let folder = model("kimi-linear-mini");
    let (child, ranks) = long(folder.path());
    kill(ranks[1]);
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    let words = "error: rank 2 has ended: signal: 9 (SIGKILL)\nhint: ";
    assert!(err.contains(words), "{err}");
    assert!(gone(&ranks) < Duration::from_secs(10));

    let (mut child, ranks) = long(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let took = gone(&ranks);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Runs `logits` with the settings `behaviour` over two stand-in GPUs, which compute nothing. Returns standard error without the notices
/// about values.
fn on_gpus(folder: &Path, behaviour: &[(&str, &str)]) -> String {
    let arguments = ["model", "logits", "model", "--ids", "5,9", "-o", "out", "--backend", "cuda"];
    let rest = ["--dtype", "bf16", "--tp", "2"];
    let mut command = with_gpu(folder, &[&arguments[..], &rest].concat(), behaviour);
    // NCCL installations of this machine are hidden.
    command.env("PATH", "").env("HOME", folder).env("FAKE_NCCL_CALLS", folder.join("calls"));
    let output = command.env_remove("NCCL_NVLS_ENABLE").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let of_values = output.status.success() || err.contains("error: logit ");
    if of_values { err.split("error: logit ").next().unwrap().to_owned() } else { err }
}

#[test]
fn gpus_use_the_installed_nccl() {
    let folder = model("granite-hybrid-mini");
    let library = nccl(folder.path());
    let named = library.to_str().unwrap();
    let gpus = [("FAKE_CUDA_GPUS", "2"), ("FAKE_NCCL_SETTING", "1")];
    assert_eq!(on_gpus(folder.path(), &[&gpus[..], &[("FIRSTLIGHT_NCCL", named)]].concat()), "");
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let of = |rank: &str| -> Vec<&str> {
        let calls = calls.lines().filter_map(|line| line.strip_prefix(rank));
        calls.filter(|call| !call.starts_with("destroy")).collect()
    };
    // One init, two warm-up calls, two all-reduces for each of four layers, and the logits.
    assert_eq!((of("0 ").len(), of("0 ")), (1 + 2 + 2 * 4 + 1, of("1 ")), "{calls}");

    // Two NCCL libraries are installed: the first is used, and the other is reported.
    let places = ["venv", ".local"].map(|prefix| {
        let wheel = format!("{prefix}/lib/python3.12/site-packages/nvidia/nccl/lib");
        let wheel = folder.path().join(wheel);
        std::fs::create_dir_all(&wheel).unwrap();
        std::fs::copy(&library, wheel.join("libnccl.so.2")).unwrap();
        wheel.join("libnccl.so.2").display().to_string()
    });
    let venv = folder.path().join("venv");
    let both = [&gpus[..], &[("VIRTUAL_ENV", venv.to_str().unwrap())]].concat();
    let [first, second] = places;
    let words = format!("note: NCCL 2.28.9 at {first}; another one is at {second}\n");
    assert_eq!(on_gpus(folder.path(), &both), words);
}

#[test]
fn nccl_and_gpu_errors_are_one_line() {
    let folder = model("granite-hybrid-mini");
    let check = |behaviour: &[(&str, &str)], words: &str| {
        let err = on_gpus(folder.path(), behaviour);
        assert!(err.starts_with(&format!("error: {words}")), "{err}");
    };
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    let (text, library) = (text.display().to_string(), nccl(folder.path()).display().to_string());
    let two = ("FAKE_CUDA_GPUS", "2");
    let named = ("FIRSTLIGHT_NCCL", &*library);
    check(&[two, ("FIRSTLIGHT_NCCL", &text)], &format!("NCCL at {text} does not load: "));
    let silent = ("FAKE_NCCL_VERSION", "-1");
    check(&[two, named, silent], &format!("NCCL at {library} does not say its version"));
    let one = "--tp 2 needs one GPU per rank, this process can use 1";
    check(&[("FAKE_CUDA_GPUS", "1"), named], one);
}
