//! A driver that hangs or crashes: doctor answers within three seconds and reports what it could not read.
#![cfg(target_os = "linux")] // NVML is used only on Linux.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::environment;
use support::fake_driver::{with_driver, with_gpu};
use tempfile::tempdir;

/// The time within which doctor has to answer.
const LIMIT: Duration = Duration::from_secs(3);

/// Doctor's timeout for a driver that does not answer.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs doctor within the limit and returns its standard output, with single spaces. If a busy machine exceeds the limit, doctor is
/// run once more, and the limit is its timeout plus twice its time with a driver that answers.
fn answers(what: &str, mut command: Command) -> String {
    let (output, took) = timed(&mut command);
    if took >= LIMIT {
        let again = timed(&mut command).1;
        command.env_remove("FAKE_NVML_HANG").env("PATH", "/usr/bin:/bin");
        let limit = LIMIT.max(DRIVER_TIMEOUT + 2 * timed(&mut command).1);
        assert!(took.min(again) < limit, "{what}: {took:?}, {again:?} of {limit:?}");
    }
    assert!(output.status.code().is_some_and(|code| code < 2), "{what}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    support::unbroken(&text)
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
fn hanging_call_is_named_and_earlier_results_are_kept() {
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
fn hanging_shutdown_loses_no_result() {
    let folder = tempdir().unwrap();
    let command = doctor(folder.path(), true, &[("FAKE_NVML_HANG", "nvmlShutdown")]);
    let started = Instant::now();
    let text = answers("nvmlShutdown", command);
    assert!(text.contains("Fake GPU 1") && !text.contains("driver-silent"), "{text}");
    assert!(started.elapsed() < DRIVER_TIMEOUT, "doctor waited for nvmlShutdown");
}

#[test]
fn crashing_library_does_not_crash_doctor() {
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
fn unsupported_calls_are_reported_one_by_one() {
    let folder = tempdir().unwrap();
    let text = answers("refused", doctor(folder.path(), true, &[("FAKE_NVML_REFUSE", "1")]));
    for words in [
        "NVML refused queries of the driver: nvmlSystemGetCudaDriverVersion_v2: Not Supported",
        "NVML refused queries of GPU 1: nvmlDeviceGetName: Not Supported",
        "nvmlDeviceGetCudaComputeCapability: Not Supported",
        "the processes on GPU 0 cannot be listed",
        // The GPU memory is then reported as host memory, as on a GB10.
        "NVIDIA GPU without a name",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    // nvidia-smi is not run for GPUs that NVML listed.
    assert!(!text.contains("gpu 2"), "{text}");
}

#[test]
fn lost_gpu_is_named_and_others_are_listed() {
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
        ("gpu-memory-errors", "GPU 1 (Fake GPU) needs a reset to replace memory"),
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
fn short_report_names_hanging_call() {
    let folder = tempdir().unwrap();
    let behaviour = [("FAKE_NVML_HANG", "nvmlInit_v2")];
    let text = answers("brief", doctor(folder.path(), false, &behaviour));
    assert!(text.contains("does not answer: nvmlInit_v2 did not return within 2.0 s"), "{text}");
    assert!(text.contains("--wait 30"), "{text}");
}

/// An nvidia-smi that never exits and whose child process keeps its output open.
#[test]
fn hanging_nvidia_smi_times_out() {
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
    // With NVML present, nvidia-smi is never started.
    let real = support::json(folder.path(), &["ps"], 2)["error"].to_string();
    if real.contains("no NVIDIA GPU is visible here") {
        assert!(text.contains("nvidia-smi did not answer within 2.0 s"), "{text}");
        assert!(text.contains("[driver-silent]"), "{text}");
    }
}

#[test]
fn timeout_can_be_raised() {
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

/// Runs a command with the stand-in GPU. Returns the text of the stream that names the device, unwrapped, and the exit status.
fn device_line(folder: &Path, arguments: &[&str], behaviour: &[(&str, &str)]) -> (String, i32) {
    let output = with_gpu(folder, arguments, behaviour).output().unwrap();
    // `run` names the device on standard error, because standard output has only the model's text.
    let is_first = |text: &[u8]| text.starts_with(b"device: ") || text.starts_with(b"error: ");
    let text = if is_first(&output.stderr) { &output.stderr } else { &output.stdout };
    let words = support::unbroken(&String::from_utf8_lossy(text));
    (words, output.status.code().unwrap())
}

#[test]
fn best_working_device_is_chosen_and_named() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    support::expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "1"], 0);
    let logits = ["logits", "m", "--ids", "1,2", "-o", "o.safetensors", "--dtype", "bf16"];
    let run = ["run", "m", "--ids", "1,2", "-n", "1"];
    let gpu = "device: stand-in (cuda) ";
    for command in [&logits[..], &run] {
        assert!(device_line(here, command, &[]).0.starts_with(gpu), "{command:?}");
        let asked = [command, &["--backend", "cuda"]].concat();
        assert!(device_line(here, &asked, &[]).0.starts_with(gpu), "{asked:?}");
        let (line, status) = device_line(here, &[command, &["--backend", "cpu"]].concat(), &[]);
        assert!(line.contains("(cpu); --backend cpu was given"), "{line}");
        assert_eq!(status, 0);
        // A GPU that cannot be used is reported with the reason.
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
            let (line, status) = device_line(here, command, behaviour);
            assert!(line.starts_with("device: the processor, "), "{line}");
            assert!(line.contains(why) && line.contains("(cpu)"), "{behaviour:?}: {line}");
            assert_eq!(status, 0, "{behaviour:?}");
            let (line, status) = device_line(here, &asked, behaviour);
            assert!(line.starts_with("error: backend cuda is not available"), "{line}");
            assert!(line.contains(why), "{line}");
            assert_eq!(status, 2);
        }
    }
}

#[test]
fn unsupported_gpu_work_falls_back_to_cpu() {
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
        let (line, status) = device_line(here, command, behaviour);
        assert!(line.starts_with("device: the processor, ") && line.contains(why), "{line}");
        assert_eq!(status, 0);
        let (line, status) =
            device_line(here, &[command, &["--backend", "cuda"]].concat(), behaviour);
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
fn bf16_states_need_a_gpu_and_mamba2() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    support::expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "1"], 0);
    support::expect(here, &["synth", "qwen3-next-mini", "q", "--layers", "1"], 0);
    let held = |dtype: &'static str| ["--mamba-ssm-cache-dtype", dtype];
    let run = |model, more: &[&'static str]| {
        let command = [&["run", model, "--ids", "1,2", "-n", "1"], more].concat();
        device_line(here, &command, &[])
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
    // Batch 4, 36 layers, 2 bytes less per value, and states of [64 heads, 64 channels, 128].
    assert_eq!(states(&wide) - states(&narrow), 4 * 36 * 2 * 64 * 64 * 128);
    // Only GPUs record steps as graphs, so only their memory counts them.
    let bytes = |on: &str, key: &str| wide[on][key].as_u64().unwrap();
    let parts = ["weights", "states", "caches", "workspace", "recorded_steps"];
    for (on, recorded) in [("engine_on_gpus", 192 << 20), ("engine", 0)] {
        assert_eq!(bytes(on, "recorded_steps_bytes"), recorded);
        let sum: u64 = parts.iter().map(|part| bytes(on, &format!("{part}_bytes"))).sum();
        assert_eq!(bytes(on, "peak_bytes"), sum, "{on}");
    }
}

#[test]
fn kernel_commands_name_their_device() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    // The stand-in computes nothing, so no kernel passes; the device is named nevertheless.
    let verify = ["verify", "rmsnorm", "--extent", "quick"];
    let (line, _) = device_line(here, &verify, &[]);
    assert!(line.starts_with("device: stand-in (cuda) device: the processor, "), "{line}");
    let output = with_gpu(here, &[&verify[..], &["--json"]].concat(), &[]).output().unwrap();
    let devices: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(devices["devices"][0]["backend"], "cuda");
    assert_eq!(devices["devices"][1]["backend"], "cpu");
    let (line, _) = device_line(here, &[&verify[..], &["--backend", "cpu"]].concat(), &[]);
    assert!(line.starts_with("device: the processor, "), "{line}");
    // Timing takes a while, so only the refusal is tested, which is equal in all commands.
    for command in [
        &["bench"][..],
        &["bench", "model", "granite-hybrid-mini", "--random", "--tests", "pp16"],
        &verify,
    ] {
        let asked = [command, &["--backend", "cuda"]].concat();
        let (line, status) = device_line(here, &asked, &[("FAKE_CUDA_COMPUTE", "75")]);
        assert!(line.starts_with("error: backend cuda is not available: stand-in has"), "{line}");
        assert_eq!(status, 2);
    }
}
