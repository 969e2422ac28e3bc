//! A driver in trouble: doctor answers within three seconds and says what it could not read.
#![cfg(target_os = "linux")] // NVML is asked nowhere else.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::environment;
use support::fake_driver::{with_driver, with_gpu};
use tempfile::tempdir;

/// What a person waits before pressing Ctrl-C.
const LIMIT: Duration = Duration::from_secs(3);

/// What it waits for a driver that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs doctor to its end, within the limit, and gives what it prints as JSON and as text. On a machine that is busy with other things doctor
/// itself takes longer: then it is run once more, and the limit is its patience and twice what it takes beside a driver that answers.
fn answers(what: &str, mut command: Command) -> String {
    let (output, took) = timed(&mut command);
    if took >= LIMIT {
        let again = timed(&mut command).1;
        command.env_remove("FAKE_NVML_HANG").env("PATH", "/usr/bin:/bin");
        let limit = LIMIT.max(PATIENCE + 2 * timed(&mut command).1);
        assert!(took.min(again) < limit, "{what}: {took:?}, {again:?} of {limit:?}");
    }
    assert!(output.status.code().is_some_and(|code| code < 2), "{what}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn timed(command: &mut Command) -> (Output, Duration) {
    let started = Instant::now();
    let output = command.output().unwrap();
    (output, started.elapsed())
}

fn doctor(folder: &Path, verbose: bool, behaviour: &[(&str, &str)]) -> Command {
    let venv = environment(folder, &[("requests", "2.32.5")]);
    let mut arguments = vec!["doctor", "--venv", venv.to_str().unwrap()];
    arguments.extend(verbose.then_some("--verbose"));
    with_driver(folder, &arguments, behaviour)
}

#[test]
fn each_call_that_hangs_is_named_and_what_came_before_it_is_kept() {
    for (call, kept, missing) in [
        ("nvmlInit_v2", "", "Fake GPU 0"),
        ("nvmlSystemGetDriverVersion", "", "580.159.04"),
        ("nvmlDeviceGetHandleByIndex_v2", "580.159.04", "Fake GPU 0"),
        ("nvmlDeviceGetMemoryInfo_v2", "Fake GPU 0, compute capability 9.0", "Fake GPU 1"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "24.00 GiB", "Fake GPU 1"),
    ] {
        let folder = tempdir().unwrap();
        let command = doctor(folder.path(), true, &[("FAKE_NVML_HANG", call)]);
        let text = answers(call, command);
        assert!(text.contains("[driver-silent]"), "{call}: {text}");
        for words in [call, "did not return within 2.0 s", "could not be read", kept] {
            assert!(text.contains(words), "{call}: no {words} in {text}");
        }
        assert!(!text.contains(missing), "{call}: {missing} in {text}");
    }
}

#[test]
fn a_hang_in_closing_costs_nothing() {
    let folder = tempdir().unwrap();
    let command = doctor(folder.path(), true, &[("FAKE_NVML_HANG", "nvmlShutdown")]);
    let started = Instant::now();
    let text = answers("nvmlShutdown", command);
    assert!(text.contains("Fake GPU 1") && !text.contains("driver-silent"), "{text}");
    assert!(started.elapsed() < PATIENCE, "the end was waited for");
}

#[test]
fn a_library_that_crashes_takes_nothing_else_down() {
    let folder = tempdir().unwrap();
    let command = doctor(folder.path(), true, &[("FAKE_NVML_CRASH", "nvmlDeviceGetUUID")]);
    let text = answers("crash", command);
    let words = "nvmlDeviceGetUUID (GPU 0) ended the process that called it";
    assert!(
        text.contains(words) && text.contains("requests") | text.contains("packages"),
        "{text}"
    );
}

#[test]
fn what_is_not_supported_is_said_call_by_call() {
    let folder = tempdir().unwrap();
    let text = answers("refused", doctor(folder.path(), true, &[("FAKE_NVML_REFUSE", "1")]));
    for words in [
        "NVML does not tell all of the driver: nvmlSystemGetCudaDriverVersion_v2: Not Supported",
        "NVML does not tell all of GPU 1: nvmlDeviceGetName: Not Supported",
        "nvmlDeviceGetCudaComputeCapability: Not Supported",
        "the processes on GPU 0 cannot be listed",
        // The memory is then the host's, as on a GB10.
        "NVIDIA GPU without a name",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    // nvidia-smi is not asked for GPUs that NVML listed already.
    assert!(!text.contains("gpu 2"), "{text}");
}

#[test]
fn gpus_stand_side_by_side_and_the_bad_one_is_named() {
    let folder = tempdir().unwrap();
    let kind = ("FAKE_NVML_GPU", "9.0 Fake GPU");
    let good = answers("good", doctor(folder.path(), true, &[kind]));
    for words in [
        "PCIe generation 1 of 5 1 of 5",
        "PCIe lanes 16 16",
        "NVLinks up 4 4",
        "GB/s of a link, each way 26.6 26.6",
        "power, W 76 of 700 76 of 700",
        "gpu 0 X NV4 gpu 1 NV4 X",
        "An idle GPU lowers the generation",
    ] {
        assert!(good.contains(words), "no {words} in {good}");
    }
    let faults = [
        ("nvlink-down", "GPU 1 (Fake GPU) has 3 of 4 NVLinks up"),
        ("pcie-link", "GPU 1 (Fake GPU) has x8 of x16 PCIe lanes"),
        ("gpu-memory-errors", "GPU 1 (Fake GPU) waits for a reset to replace memory"),
        ("clocks-held-down", "the clocks of GPU 1 (Fake GPU) are held down"),
        ("gpu-unlike-siblings", "GPU 0, GPU 1 (Fake GPU) differ: power cap"),
    ];
    let bad = answers("bad", doctor(folder.path(), true, &[kind, ("FAKE_NVML_FAULTS", "1")]));
    for (rule, words) in faults {
        let rule = format!("[{rule}]");
        assert!(bad.contains(&rule) && bad.contains(words), "no {rule} {words} in {bad}");
        assert!(!good.contains(&rule), "{rule} in {good}");
    }
    assert!(bad.contains("gpu 0 X NV3 gpu 1 NV3 X"), "{bad}");
}

#[test]
fn the_short_form_says_it_too() {
    let folder = tempdir().unwrap();
    let behaviour = [("FAKE_NVML_HANG", "nvmlInit_v2")];
    let text = answers("brief", doctor(folder.path(), false, &behaviour));
    assert!(text.contains("does not answer: nvmlInit_v2 did not return within 2.0 s"), "{text}");
    assert!(text.contains("--wait 30"), "{text}");
}

/// An nvidia-smi that never ends, and keeps its output open through a child of its own.
#[test]
fn an_nvidia_smi_that_hangs_is_given_up() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[]);
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    let smi = tools.join("nvidia-smi");
    std::fs::write(&smi, "#!/bin/sh\nsleep 20 &\nwait\n").unwrap();
    std::fs::set_permissions(&smi, std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = ["doctor", "--verbose", "--venv", venv.to_str().unwrap()];
    let mut command = support::command(folder.path(), &arguments);
    command.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
    let text = answers("nvidia-smi", command);
    // Where NVML is, nvidia-smi is not needed and never started.
    let real = support::json(folder.path(), &["ps"], 2)["error"].to_string();
    if real.contains("there is no NVIDIA driver here") {
        assert!(text.contains("nvidia-smi did not answer within 2.0 s"), "{text}");
        assert!(text.contains("[driver-silent]"), "{text}");
    }
}

#[test]
fn more_patience_is_an_option() {
    let folder = tempdir().unwrap();
    let behaviour = [("FAKE_NVML_HANG", "nvmlInit_v2")];
    let arguments = ["ps", "--wait", "0.3"];
    let started = Instant::now();
    let output = with_driver(folder.path(), &arguments, &behaviour).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("nvmlInit_v2 did not return within 0.3 s") && err.contains("hint: "),
        "{err}"
    );
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    for wrong in ["0", "-1", "x", "nan", "1e9"] {
        let (_, err) = support::expect(folder.path(), &["ps", &format!("--wait={wrong}")], 2);
        assert!(err.contains("0.1 to 86400"), "{err}");
    }
}

/// What a command prints first on a machine with the stand-in for a GPU, however it is wrapped, and its exit status.
fn first_words(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> (String, i32) {
    let output = with_gpu(folder, arguments, behaviour).output().unwrap();
    // `run` names the device on standard error, where its text is not mixed with it.
    let is_first = |text: &[u8]| text.starts_with(b"device: ") || text.starts_with(b"error: ");
    let text = if is_first(&output.stderr) { &output.stderr } else { &output.stdout };
    let words = String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ");
    (words, output.status.code().unwrap())
}

#[test]
fn the_best_device_that_works_is_taken_and_named_first() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    support::expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "1"], 0);
    let logits = ["logits", "m", "--ids", "1,2", "-o", "o.safetensors", "--dtype", "bf16"];
    let run = ["run", "m", "--ids", "1,2", "-n", "1"];
    let gpu = "device: stand-in (cuda) ";
    for command in [&logits[..], &run] {
        assert!(first_words(here, command, &[]).0.starts_with(gpu), "{command:?}");
        let asked = [command, &["--backend", "cuda"]].concat();
        assert!(first_words(here, &asked, &[]).0.starts_with(gpu), "{asked:?}");
        let (line, status) = first_words(here, &[command, &["--backend", "cpu"]].concat(), &[]);
        assert!(line.contains("(cpu); --backend cpu was given"), "{line}");
        assert_eq!(status, 0);
        // A GPU that cannot be used: what is wrong with it, and that it is not used.
        for (behaviour, why) in [
            (
                &[("FAKE_CUDA_INIT", "100"), ("CUDA_VISIBLE_DEVICES", "")][..],
                "is empty, which hides every GPU",
            ),
            (
                &[("FAKE_CUDA_INIT", "100"), ("CUDA_VISIBLE_DEVICES", "7")],
                "is `7`, which names no GPU",
            ),
            (&[("FAKE_CUDA_INIT", "999")], "the NVIDIA driver does not start"),
            (&[("FAKE_CUDA_VERSION", "11080")], "supports CUDA 11.8, these kernels need 12.0"),
            (&[("FAKE_CUDA_COMPUTE", "75")], "has compute capability 7.5, these kernels need 8.0"),
        ] {
            let (line, status) = first_words(here, command, behaviour);
            assert!(line.starts_with("device: the processor, "), "{line}");
            assert!(line.contains(why) && line.contains("(cpu)"), "{behaviour:?}: {line}");
            assert_eq!(status, 0, "{behaviour:?}");
            let (line, status) = first_words(here, &asked, behaviour);
            assert!(line.starts_with("error: backend cuda is not available"), "{line}");
            assert!(line.contains(why), "{line}");
            assert_eq!(status, 2);
        }
    }
}

#[test]
fn what_a_gpu_cannot_do_runs_on_the_processor_and_says_so() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    support::expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "1"], 0);
    let wide = ["run", "m", "--ids", "1,2", "-n", "1", "--dtype", "f32"];
    let little = [("FAKE_CUDA_FREE", "1000")];
    let small = ["run", "m", "--ids", "1,2", "-n", "1"];
    for (command, behaviour, why) in [
        (&wide[..], &[][..], "NOT stand-in: no engine runs models in f32 on cuda"),
        (&small, &little, "NOT stand-in: the model needs "),
    ] {
        let (line, status) = first_words(here, command, behaviour);
        assert!(line.starts_with("device: the processor, ") && line.contains(why), "{line}");
        assert_eq!(status, 0);
        let (line, status) =
            first_words(here, &[command, &["--backend", "cuda"]].concat(), behaviour);
        assert!(line.starts_with("error: ") && status == 2, "{line}");
    }
    let json = [&wide[..], &["--json"]].concat();
    let ran = with_gpu(here, &json, &[]).output().unwrap();
    let ran: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran["device"]["backend"], "cpu");
    assert_eq!(ran["device"]["unused_gpu"], "stand-in");
    assert!(ran["device"]["why"].as_str().unwrap().contains("f32"), "{ran}");
}

#[test]
fn states_in_bfloat16_are_for_gpus_and_for_mamba_2s_scan() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    support::expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "1"], 0);
    support::expect(here, &["synth", "qwen3-next-mini", "q", "--layers", "1"], 0);
    let held = |dtype: &'static str| ["--mamba-ssm-cache-dtype", dtype];
    let run = |model, more: &[&'static str]| {
        let command = [&["run", model, "--ids", "1,2", "-n", "1"], more].concat();
        first_words(here, &command, &[])
    };
    assert!(run("m", &held("bfloat16")).0.starts_with("device: stand-in (cuda) "));
    for dtype in ["auto", "float32"] {
        let (line, status) = run("m", &[&held(dtype)[..], &["--backend", "cpu"]].concat());
        assert_eq!(status, 0, "{line}");
    }
    let (line, status) = run("m", &[&held("bfloat16")[..], &["--backend", "cpu"]].concat());
    let words = "error: no engine holds recurrent states in bfloat16 on cpu";
    assert!(line.starts_with(words) && status == 2, "{line}");
    let (line, status) = run("q", &held("bfloat16"));
    let words = "error: bfloat16 states are of Mamba-2's scan alone, and this model has layers of gated-delta-net too";
    assert!(line.starts_with(words) && status == 2, "{line}");
    let of = |dtype: &'static str| {
        let fit = [&["fit", "granite-4.0-h-micro", "--batch", "4", "--json"], &held(dtype)[..]];
        let fit = with_gpu(here, &fit.concat(), &[]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&fit.stdout).unwrap()
    };
    let (wide, narrow) = (of("float32"), of("bfloat16"));
    assert!(wide["engine"].is_object() && narrow["engine"].is_null());
    let states = |fit: &serde_json::Value| fit["engine_on_gpus"]["states_bytes"].as_u64().unwrap();
    // 36 layers of 64 heads of 64 channels by 128.
    assert_eq!(states(&wide) - states(&narrow), 4 * 36 * 2 * 64 * 64 * 128);
    // Memory for recorded steps is counted on GPUs, which alone record them.
    let bytes = |on: &str, key: &str| wide[on][key].as_u64().unwrap();
    let parts = ["weights", "states", "caches", "workspace", "recorded_steps"];
    for (on, recorded) in [("engine_on_gpus", 192 << 20), ("engine", 0)] {
        assert_eq!(bytes(on, "recorded_steps_bytes"), recorded);
        let sum: u64 = parts.iter().map(|part| bytes(on, &format!("{part}_bytes"))).sum();
        assert_eq!(bytes(on, "peak_bytes"), sum, "{on}");
    }
}

#[test]
fn every_command_that_runs_kernels_names_its_device() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    // Nothing passes where nothing is computed; which device it was is said all the same.
    let verify = ["verify", "rmsnorm", "--extent", "quick"];
    let (line, _) = first_words(here, &verify, &[]);
    assert!(line.starts_with("device: stand-in (cuda) device: the processor, "), "{line}");
    let output = with_gpu(here, &[&verify[..], &["--json"]].concat(), &[]).output().unwrap();
    let devices: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(devices["devices"][0]["backend"], "cuda");
    assert_eq!(devices["devices"][1]["backend"], "cpu");
    let (line, _) = first_words(here, &[&verify[..], &["--backend", "cpu"]].concat(), &[]);
    assert!(line.starts_with("device: the processor, "), "{line}");
    // Timing takes a while; what is refused is refused in the same words everywhere.
    for command in [
        &["bench"][..],
        &["bench", "model", "granite-hybrid-mini", "--random", "--tests", "pp16"],
        &verify,
    ] {
        let asked = [command, &["--backend", "cuda"]].concat();
        let (line, status) = first_words(here, &asked, &[("FAKE_CUDA_COMPUTE", "75")]);
        assert!(line.starts_with("error: backend cuda is not available: stand-in has"), "{line}");
        assert_eq!(status, 2);
    }
}
