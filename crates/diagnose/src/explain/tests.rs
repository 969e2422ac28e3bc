//! Every sample is matched by its rule in every terminal and log format, and other texts are not matched.

mod catalogue;
mod common_lines;
mod corpus;
mod levels;
mod reports;
mod samples;

use super::*;
use crate::test_support::{env, machines};
use std::collections::BTreeSet;

/// Errors with other causes, separated by `---` lines.
const UNRELATED: &str = include_str!("unrelated.txt");

fn rules_for(text: &str) -> Vec<&'static str> {
    explain(text, &machines::x86(), &[]).iter().map(|found| found.rule.id).collect()
}

fn samples() -> impl Iterator<Item = (&'static Rule, &'static crate::Text)> {
    RULES.iter().flat_map(|rule| rule.texts.iter().map(move |text| (rule, text)))
}

/// Breaks a text into lines of at most `width` characters, in the middle of words, as a terminal does.
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
        (from..from + 30)
            .map(|step| {
                format!(
                    "2026-11-21 08:00:{:02} INFO [train.py:{step}] step {step} loss 2.31 lr 3e-4\n",
                    step % 60
                )
            })
            .collect()
    };
    format!("{}{text}\n{}", noise(0), noise(30))
}

/// A text as terminals, frames of tools and loggers print it.
fn decorated(text: &str) -> [(&'static str, String); 11] {
    let each =
        |prefix: &str| -> String { text.lines().map(|line| format!("{prefix}{line}\n")).collect() };
    [
        ("plain", text.to_owned()),
        ("wrapped at 60", wrapped(text, 60)),
        ("wrapped at 79", wrapped(text, 79)),
        ("coloured", colored(text)),
        ("framed", framed(text)),
        ("in a log", logged(text)),
        ("of docker compose", each("trainer-1  | ")),
        ("of a rank", each("[rank3]: ")),
        ("of vLLM", each("(EngineCore_0 pid=271) ERROR 05-23 09:31:47 [core.py:396] ")),
        ("of journald", each("Oct 04 13:19:39 host unit[394]: ")),
        ("with times", each("2026-11-22T18:33:01.2371532Z ")),
    ]
}

#[test]
fn every_sample_finds_its_rule_first_in_every_format() {
    let mut failed = Vec::new();
    for (rule, text) in samples() {
        // The files here decide between rules that share a message; without files the first of the list is shown first.
        let same = |other: &&(&Rule, &crate::Text)| other.1.pattern == text.pattern;
        let leads =
            samples().find(|other| same(&other)).is_none_or(|(first, _)| first.id == rule.id);
        for (decoration, pasted) in decorated(text.sample) {
            let found = rules_for(&pasted);
            if leads && found.first() != Some(&rule.id) || !found.contains(&rule.id) {
                failed.push(format!("{} {decoration}: {found:?}\n{}", rule.id, text.sample));
            }
        }
        assert!(
            Pasted::new(text.sample).find(&Pattern::new(text.pattern)).is_some(),
            "{}",
            text.pattern
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_row_of_the_catalogue_finds_its_rule() {
    for (row, words, id) in catalogue::ROWS {
        assert!(crate::rule(id).is_some(), "row {row}: no rule {id}");
        if !words.is_empty() {
            for (decoration, pasted) in decorated(words) {
                assert_eq!(
                    rules_for(&pasted).first(),
                    Some(id),
                    "row {row} {decoration}: {pasted}"
                );
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
    for (decoration, pasted) in texts.into_iter().flat_map(decorated) {
        assert_eq!(rules_for(&pasted), [""; 0], "{decoration}: {pasted}");
        let found = explain_text(&pasted, &machines::x86(), &[], &[]);
        let named: Vec<&str> = found.entities.iter().map(|entity| entity.name.as_str()).collect();
        assert!(!found.answers(), "{decoration}: {named:?}\n{pasted}");
    }
}

/// The answer that is shown first: a rule that is not a remark, else an entity, else a rule.
fn first_answer(text: &str, machine: &Machine, envs: &[PyEnv]) -> String {
    let found = explain_text(text, machine, envs, &[]);
    let of_match = |found: &Match| {
        let meaning = found.meaning.clone().unwrap_or_else(|| found.rule.about.to_owned());
        let fix = if found.fix.is_empty() { &found.fix_elsewhere } else { &found.fix };
        format!("{}\n{meaning}\n{}", found.rule.id, fix.join("\n"))
    };
    let of_cause = |cause: &Cause| {
        format!("{}\n{}\n{}", cause.cause, cause.check.join("\n"), cause.fix.join("\n"))
    };
    let of_entity = |entity: &Entity| {
        let causes: Vec<String> = entity.causes.iter().map(of_cause).collect();
        let fix = entity.fix.join("\n");
        format!("{}\n{}\n{}\n{fix}", entity.name, entity.meaning, causes.join("\n"))
    };
    match found.leader() {
        Some(Leader::Rule(found)) => of_match(found),
        Some(Leader::Entity(entity)) => of_entity(entity),
        None => String::new(),
    }
}

#[test]
fn samples_of_every_kind_are_explained_first() {
    let mut failed = Vec::new();
    for (row, samples) in samples::SAMPLES.iter().chain(common_lines::COMMON_LINES) {
        for sample in *samples {
            let answer = first_answer(sample.text, &machines::x86(), &[]);
            let flat = answer.to_lowercase();
            let lacks = sample
                .says
                .iter()
                .find(|words| !words.split('|').any(|words| flat.contains(&words.to_lowercase())));
            if let Some(words) = lacks {
                failed.push(format!("{row}: {:?}\n  lacks {words:?} in\n{answer}\n", sample.text));
            }
        }
    }
    assert!(failed.is_empty(), "{}\n{}", failed.len(), failed.join("\n"));
}

/// Wrapped, coloured and logged texts name the same entities.
#[test]
fn entities_are_read_in_every_format() {
    let texts = [
        ("NVRM: Xid (PCI:0019:01:00): 145, RLW_RXPIPE Nonfatal XC1 i0 Link 00", "xid"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "compute-sanitizer"),
        ("OSError: [Errno 28] No space left on device", "ENOSPC"),
        ("error: class \"cudaDeviceProp\" has no member \"clockRate\"", "CUDA 13 removed"),
        (
            "ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (unknown location)",
            "flash_attn.cute",
        ),
    ];
    for (text, expect) in texts {
        for (decoration, pasted) in decorated(text) {
            let answer = first_answer(&pasted, &machines::x86(), &[]);
            assert!(
                answer.contains(expect),
                "{decoration}: {expect} is not in\n{answer}\nof\n{pasted}"
            );
        }
    }
}

#[test]
fn files_confirm_or_refute_a_rule_or_cannot_decide() {
    let text = "AssertionError: Torch not compiled with CUDA enabled";
    let cpu = [env("/p/.venv").uv().torch("2.9.0+cpu", None).build()];
    let cuda = [env("/v").torch("2.11.0+cu128", Some("12.8")).build()];
    let check = |machine: Machine, envs: &[PyEnv], expect: Option<bool>, command: &str| {
        let matches = explain(text, &machine, envs);
        assert_eq!(matches[0].rule.id, "cpu-only-torch");
        assert_eq!(matches[0].confirmed_here, expect);
        let fix = &matches[0].fix;
        assert_eq!(fix.is_empty(), command.is_empty(), "{fix:?}");
        assert!(command.is_empty() || fix.iter().any(|line| line.contains(command)), "{fix:?}");
        assert!(expect.is_none() || !matches[0].evidence.is_empty(), "what was looked at");
    };
    check(
        machines::gh200(),
        &cpu,
        Some(true),
        "uv pip install --python /p/.venv/bin/python torch==2.9.0",
    );
    check(machines::gh200(), &cuda, Some(false), "");
    check(machines::x86(), &cuda, None, "/v/bin/python -m pip");
    check(machines::gh200(), &[], None, "--venv");
}

#[test]
fn files_select_among_rules_with_the_same_message() {
    let text = "RuntimeError: CUDA error: no kernel image is available for execution on the device";
    let torch = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
    let pascal = machines::x86_with("Tesla P100-PCIE-16GB", (6, 0), "570.148.08", (12, 8));
    let matches = explain(text, &pascal, &torch);
    assert_eq!(matches[0].rule.id, "gpu-too-old");
    assert_eq!(matches[0].confirmed_here, Some(true));
    assert!(matches.iter().any(|found| found.rule.id == "gpu-too-new"));
}

#[test]
fn a_message_inside_a_longer_one_is_not_another_error() {
    // The general `undefined symbol: _ZN3c10...` is part of the symbol that shows the ABI.
    let text = "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    assert_eq!(rules_for(text), ["extension-new-abi"]);
    assert_eq!(rules_for("undefined symbol: _ZN3c104cuda9SetDeviceEab"), ["torch-minor-drift"]);
}

#[test]
fn every_match_has_a_fix() {
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
fn the_root_cause_of_a_long_log_comes_first() {
    let engine = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}";
    let check = |lines: &[&str], expect: &[&str]| {
        let text = lines.join("\n");
        for (decoration, pasted) in decorated(&text) {
            assert_eq!(rules_for(&pasted), expect, "{decoration}");
        }
    };
    check(
        &[
            "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12020).",
            "RuntimeError: No CUDA GPUs are available",
            engine,
        ],
        &["driver-too-old", "no-driver", "visible-devices", "engine-core-failed"],
    );
    check(
        &[
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
            "ninja: build stopped: subcommand failed.",
            "RuntimeError: Error compiling objects for extension",
        ],
        &["nvcc-architecture", "build-failed"],
    );
    // A message that working programs also print is not the reason why a program stopped.
    check(
        &[
            "The fast path is not available because one of `(mamba_inner_fn)` is None",
            "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory",
            engine,
        ],
        &["missing-cuda-library", "slow-hybrid-path", "engine-core-failed"],
    );
}

#[test]
fn a_text_about_another_environment_is_not_judged_here() {
    let text = "  File \"/other/lib/python3.12/site-packages/torch/cuda/__init__.py\", line 3
AssertionError: Torch not compiled with CUDA enabled";
    let here = [env("/p").uv().found_by("./.venv").torch("2.9.0+cpu", None).build()];
    let found = &explain(text, &machines::gh200(), &here)[0];
    assert_eq!((found.confirmed_here, found.findings.len()), (None, 0));
    assert!(found.fix.iter().all(|line| !line.contains("/p/")), "{:?}", found.fix);
    // The same message about the environment here, and about one that the user named.
    let own = text.replace("/other/", "/p/");
    assert_eq!(explain(&own, &machines::gh200(), &here)[0].confirmed_here, Some(true));
    let named = [env("/p").uv().found_by("--venv").torch("2.9.0+cpu", None).build()];
    assert_eq!(explain(text, &machines::gh200(), &named)[0].confirmed_here, Some(true));
}

#[test]
fn truncated_texts_match_by_their_beginning() {
    let check = |text: &str, expect: &[&str]| assert_eq!(rules_for(text), expect, "{text}");
    check(
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsu",
        &["ptx-newer-than-driver"],
    );
    check("RuntimeError: CUDA error: the provided", &[]);
    check(
        "ImportError: x.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationE",
        &["extension-other-torch"],
    );
}

/// Texts that users asked about before any rule knew them.
#[test]
fn texts_of_users_find_their_rule() {
    for (text, id) in [
        ("RuntimeError: 0 active drivers ([]). There should only be one.", "no-driver"),
        (
            "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
            "container-without-gpus",
        ),
        (
            "nvidia-container-cli: initialization error: WSL environment detected but no adapters were found",
            "wsl-gpu",
        ),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "wsl-gpu"),
        ("ValueError: invalid literal for int() with base 10: 'MIG-4c60d78c'", "mig-device"),
        (
            "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":830",
            "mig-device",
        ),
        ("Failed to hoist tmem_store", "triton-hoist-tmem"),
        (
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "engine-core-failed",
        ),
        (
            "ImportError: libcudss.so.0: cannot open shared object file: No such file or directory",
            "jetson-missing-library",
        ),
        ("Failed to initialize NVML: Unknown Error", "container-lost-gpus"),
        (
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
            "shared-memory",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "nvcc-architecture"),
        (
            "out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
            "triton-shared-memory",
        ),
        (
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
            "driver-library-mismatch",
        ),
        (
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
            "build-failed",
        ),
        ("NameError: name 'bare_metal_version' is not defined", "cuda-home-not-set"),
        (
            "undefined symbol: _ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationESsb",
            "extension-old-abi",
        ),
    ] {
        assert_eq!(rules_for(text).first(), Some(&id), "{text}");
    }
}

/// The host cannot refute an error that is visible only inside a container.
#[test]
fn container_errors_are_not_refuted_on_the_host() {
    let text = "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].";
    let torch = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
    for machine in [machines::x86(), machines::a10(), machines::h200()] {
        let found = &explain(text, &machine, &torch)[0];
        assert_eq!((found.rule.id, found.confirmed_here), ("container-without-gpus", None));
        assert!(found.fix.iter().any(|line| line.contains("docker run --gpus all")));
    }
    let podman = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all";
    let fix = &explain(podman, &machines::a10(), &[])[0].fix;
    assert!(fix.iter().any(|line| line.contains("nvidia-ctk cdi generate")), "{fix:?}");
}

/// The doctor's findings about packages that the text names are added, and no others.
#[test]
fn findings_about_named_packages_are_added() {
    let envs = [env("/v")
        .dist("numba", "0.61.0")
        .installer("numba", "pip")
        .requires("numba", "numpy<2.3,>=1.24")
        .dist("numpy", "2.3.1")
        .installer("numpy", "pip")
        .build()];
    let machine = machines::x86();
    let findings = crate::run(&machine, &envs);
    let about_numba = |finding: &&Finding| finding.title.contains("numba");
    assert!(findings.iter().any(|finding| about_numba(&finding)), "{findings:#?}");
    let text = "ImportError: Numba needs NumPy 2.2 or less. Got NumPy 2.3.";
    let found = explain_text(text, &machine, &envs, &findings);
    assert!(found.findings.iter().any(|finding| about_numba(&finding)), "{found:#?}");
    let other = explain_text("KeyError: 'lm_head.weight'", &machine, &envs, &findings);
    assert!(!other.answers(), "{other:#?}");
}

/// The environment shows which release is required and which package owns a file.
#[test]
fn entities_are_resolved_with_the_environment() {
    let machine = machines::a10();
    let triton = [env("/v")
        .torch("2.8.0+cu128", Some("12.8"))
        .requires("torch", "triton==3.4.0; platform_system == \"Linux\"")
        .dist("triton", "3.5.0")
        .build()];
    let text = "ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler'";
    let found = explain_text(text, &machine, &triton, &[]);
    let entity = &found.entities[0];
    assert_eq!(entity.confirmed_here, Some(true), "{entity:#?}");
    assert!(entity.fix[0].contains("triton==3.4.0"), "{entity:#?}");
    assert!(entity.evidence.iter().any(|seen| seen.what == "triton 3.5.0"), "{entity:#?}");

    let symbol = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib";
    let kernel = [env("/v")
        .torch("2.9.1+cu128", Some("12.8"))
        .dist("sgl-kernel", "0.3.20")
        .misses(
            "sgl-kernel",
            "sgl_kernel/common_ops.abi3.so",
            symbol,
            "torch/lib/libc10_cuda.so",
            "",
        )
        .build()];
    let text = format!(
        "ImportError: /v/lib/python3.12/site-packages/sgl_kernel/common_ops.abi3.so: undefined symbol: {symbol}"
    );
    let found = explain_text(&text, &machine, &kernel, &[]);
    let fix: Vec<&String> = found.matches.iter().flat_map(|found| &found.fix).collect();
    assert!(fix.iter().any(|line| line.contains("sgl-kernel")), "{fix:?}");
    assert!(
        fix.iter().all(|line| !line.contains("flash-attn") && !line.contains("--no-binary")),
        "{fix:?}"
    );
}
