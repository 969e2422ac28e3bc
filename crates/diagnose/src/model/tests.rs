//! Published models: layers, parameter counts, and missing kernels in an environment.

mod configs;
mod fuzz;

use super::*;
use crate::test_support::{env, machines};
use configs::*;
use facts::Fact;

fn options() -> ModelOptions {
    ModelOptions {
        source: "m/config.json".into(),
        context_tokens: 4096,
        sequences: 1,
        weights: None,
    }
}

fn read(config: &str, machine: &Machine, envs: &[PyEnv]) -> (ModelReport, Vec<Finding>) {
    model(config, &options(), machine, envs, &[]).expect("a known model")
}

fn parameters(config: &str) -> u64 {
    let (report, _) = read(config, &machines::a10(), &[]);
    report.memory.parameters.expect("a count").value
}

/// From the config alone, without weight files: all weights but the embedding and the head are quantized.
#[test]
fn quantized_weights_count_their_stored_bytes() {
    let table = 2.0 * 2.0 * 128_256.0 * 4096.0;
    let linear = 8.030e9 - 2.0 * 128_256.0 * 4096.0;
    for (quantised, each) in [
        (r#"{"quant_method": "gptq", "bits": 4, "group_size": 128}"#, 0.5 + 2.0 / 128.0),
        (r#"{"quant_method": "awq", "bits": 4, "group_size": 64}"#, 0.5 + 3.0 / 64.0),
        (r#"{"quant_method": "gptq", "bits": 8, "group_size": 32}"#, 1.0 + 2.0 / 32.0),
    ] {
        let config = LLAMA_8B.replacen('{', &format!("{{\"quantization_config\": {quantised},"), 1);
        let (report, _) = read(&config, &machines::a10(), &[]);
        let weights = report.memory.weights_bytes.expect("a count").value as f64;
        let wanted = table + linear * each;
        assert!((weights / wanted - 1.0).abs() < 1e-3, "{quantised}: {weights}, wanted {wanted}");
    }
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // Exact, if the exact count is published.
    for (config, expect) in [
        (LLAMA_8B, 8_030_261_248),
        (MIXTRAL, 46_702_792_704),
        (KIMI_LINEAR, 49_122_681_728),
        (MAMBA_28B, 2_768_345_600),
        (JAMBA, 51_570_323_328),
    ] {
        assert_eq!(parameters(config), expect, "{config}");
    }
    // Within 0.5 %, if the count is published in billions.
    for (config, billions) in [
        (GRANITE_MICRO, 3.191),
        (MAMBA2_27B, 2.703),
        (BAMBA_9B, 9.78),
        (FALCON_H1_05B, 0.5214),
        (NEMOTRON_H_8B, 8.10),
        (QWEN3_NEXT, 79.67),
        (GPT_OSS_20B, 20.91),
    ] {
        let counted = parameters(config) as f64 / 1e9;
        assert!((counted / billions - 1.0).abs() < 0.005, "{counted} of {billions}: {config}");
    }
}

#[test]
fn layers_are_read_from_the_config() {
    let check = |config: &str, family: &str, kinds: &[(&str, usize)]| {
        let (report, _) = read(config, &machines::a10(), &[]);
        assert_eq!(report.family, family);
        let found: Vec<(&str, usize)> =
            report.layers.iter().map(|group| (group.kind.as_str(), group.indices.len())).collect();
        assert_eq!(found, kinds, "{family}");
    };
    // 36 to 4 layers, not 80 to 20 (row R2-11).
    check(GRANITE_MICRO, "granite-hybrid", &[("mamba2", 36), ("attention", 4)]);
    check(KIMI_LINEAR, "kimi-linear", &[("kda", 20), ("latent-attention", 7)]);
    check(QWEN3_NEXT, "qwen3-next", &[("gated-delta-net", 36), ("attention", 12)]);
    check(NEMOTRON_H_8B, "nemotron-h", &[("mamba2", 24), ("feed-forward", 24), ("attention", 4)]);
    check(FALCON_H1_05B, "falcon-h1", &[("attention+mamba2", 36)]);
    check(BAMBA_9B, "bamba", &[("mamba2", 29), ("attention", 3)]);
    check(JAMBA, "jamba", &[("mamba", 28), ("attention", 4)]);
    check(MAMBA_28B, "mamba", &[("mamba", 64)]);
    check(MAMBA2_27B, "mamba2", &[("mamba2", 64)]);
    check(GPT_OSS_20B, "gpt-oss", &[("attention", 24)]);
    check(LLAMA_8B, "plain-attention", &[("attention", 32)]);
    let (report, _) = read(GRANITE_MICRO, &machines::a10(), &[]);
    assert_eq!(report.layers[1].indices, [5, 15, 25, 35]);
    // `fit` reads no environment either, and has no --venv.
    let command = "`firstlight doctor --model MODEL --venv DIR`";
    assert!(report.kernels.iter().all(|need| need.reason.contains(command)), "{report:?}");
    assert!(!report.kernels.is_empty());
    let resaved = GRANITE_MICRO
        .replace("\"mamba\"", "\"linear_attention\"")
        .replace("\"attention\"", "\"full_attention\"");
    assert_eq!(read(&resaved, &machines::a10(), &[]).0.layers, report.layers);
}

#[test]
fn state_and_cache_are_the_published_bytes() {
    let memory = |config: &str| read(config, &machines::a10(), &[]).0.memory;
    // Per sequence 72 MiB of float32 state plus the convolution states; per token 8 KiB of keys and values.
    let granite = memory(GRANITE_MICRO);
    assert_eq!(granite.state_bytes_per_sequence, (72 << 20) + 36 * 4352 * 3 * 2);
    assert_eq!(granite.cache_bytes_per_token, 8 << 10);
    assert_eq!(granite.weights_bytes.expect("bytes").value / 10_000_000, 638);
    // Per sequence 40 MiB of float32 state and 1.4 MiB of convolution states; per token 8,064 bytes of latents.
    let kimi = memory(KIMI_LINEAR);
    assert_eq!(kimi.state_bytes_per_sequence, (40 << 20) + 20 * 3 * 4096 * 3 * 2);
    assert_eq!(kimi.cache_bytes_per_token, 8064);
    assert_eq!(kimi.weights_bytes.expect("bytes").value, 2 * 49_122_681_728);
    // 17 bytes per 32 values of the experts' matrices, 2 bytes per other value; 2 KiB of keys and values per token and
    // layer.
    let oss = memory(GPT_OSS_20B);
    let experts = 24 * 32 * (5760 + 2880) * 2880_u64;
    let others = parameters(GPT_OSS_20B) - experts;
    assert_eq!(oss.weights_bytes.expect("bytes").value, experts / 32 * 17 + 2 * others);
    assert_eq!((oss.cache_bytes_per_token, oss.state_bytes_per_sequence), (24 * 2 * 8 * 64 * 2, 0));
}

#[test]
fn a_model_fits_by_bytes() {
    // Row R0-14: 98.25 GB on a card with 94.50 GiB.
    let mut gh200 = machines::gh200();
    gh200.gpus[0].memory_total_bytes = Some(Fact::new(101_470_000_000, "NVML"));
    let (report, findings) = read(KIMI_LINEAR, &gh200, &[]);
    let memory = &report.memory;
    let needed = memory.needed_bytes.expect("a sum");
    let parts = 2 * 49_122_681_728
        + memory.state_bytes_per_sequence
        + 4096 * 8064
        + memory.workspace_bytes
        + (1 << 30);
    assert_eq!(needed, parts);
    assert_eq!(memory.left_bytes, Some(101_470_000_000 - needed as i64));
    assert_eq!((memory.fits, findings.len()), (Some(true), 0));
    // 3.2 GB remain in addition to the weights, too few for a million tokens.
    assert!(memory.longest_context_tokens.expect("some") < 300_000);
    let (report, findings) = read(KIMI_LINEAR, &machines::a10(), &[]);
    assert_eq!(report.memory.fits, Some(false));
    assert_eq!(findings[0].rule, "model-memory");
    assert!(
        findings[0].evidence[0].what.contains("98245363456 bytes = 98.25 GB = 91.50 GiB"),
        "{findings:?}"
    );
    let files = Weights { parameters: 10, bytes: 20, source: "m/model.safetensors".into() };
    let counted = ModelOptions { weights: Some(files), ..options() };
    let (report, _) = model(KIMI_LINEAR, &counted, &gh200, &[], &[]).expect("a known model");
    assert_eq!(report.memory.weights_bytes, Some(Fact::new(20, "m/model.safetensors")));
    // An engine may hold the weights in a wider type than the stored one; then the weights alone do not fit.
    let (mut report, _) = read(GRANITE_MICRO, &machines::a10(), &[]);
    report.memory.available = Some(Fact::new(8_000_000_000, "/proc/meminfo"));
    (report.memory.fits, report.memory.left_bytes) = (Some(false), Some(-5_000_000_000));
    let cause = |held| memory_finding(&report, held, false).expect("a finding").cause;
    assert!(cause(None).starts_with("The weights fit;"));
    assert!(cause(Some(12_000_000_000)).starts_with("The weights alone"));
    // A GB10 has the memory of the host.
    let (report, _) = read(GRANITE_MICRO, &machines::gb10(), &[]);
    assert!(report.memory.available.expect("some").source.contains("/proc/meminfo"));
}

#[test]
fn missing_kernels_are_named_before_anything_runs() {
    let torch = || env("/v").uv().torch("2.9.1+cu128", Some("12.8")).dist("transformers", "4.57.1");
    let check = |config: &str, env: PyEnv, statuses: &[(&str, &str, KernelStatus)]| {
        let (report, findings) = read(config, &machines::a10(), &[env]);
        let found: Vec<_> = report
            .kernels
            .iter()
            .map(|need| (need.layer.as_str(), need.package.as_str(), need.status))
            .collect();
        assert_eq!(found, statuses);
        findings
            .into_iter()
            .filter(|finding| finding.rule == "slow-hybrid-path")
            .collect::<Vec<_>>()
    };
    use KernelStatus::*;
    let findings = check(
        GRANITE_MICRO,
        torch()
            .dist("mamba-ssm", "2.2.6")
            .native("mamba-ssm", "selective_scan_cuda.cpython-312-x86_64-linux-gnu.so")
            .build(),
        &[
            ("mamba2", "causal-conv1d", Missing),
            ("mamba2", "mamba-ssm", Ready),
            ("attention", "flash-attn", Optional),
        ],
    );
    assert_eq!(
        findings[0].title,
        "36 of 40 layers of GraniteMoeHybridForCausalLM take their slow path in /v: causal-conv1d missing"
    );
    assert!(findings[0].cause.contains("one warning or none"), "{findings:?}");
    assert!(
        findings[0].fix[2].ends_with("--no-binary causal-conv1d causal-conv1d"),
        "{findings:?}"
    );
    assert!(findings[0].fix[2].contains("TORCH_CUDA_ARCH_LIST=8.6"), "{findings:?}");
    let full = torch()
        .dist("mamba-ssm", "2.2.6")
        .native("mamba-ssm", "selective_scan_cuda.cpython-312-x86_64-linux-gnu.so")
        .dist("causal-conv1d", "1.5.3")
        .native("causal-conv1d", "causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so");
    let findings = check(
        GRANITE_MICRO,
        full.build(),
        &[
            ("mamba2", "causal-conv1d", Ready),
            ("mamba2", "mamba-ssm", Ready),
            ("attention", "flash-attn", Optional),
        ],
    );
    assert!(findings.is_empty(), "{findings:?}");
    let findings = check(
        QWEN3_NEXT,
        torch().dist("causal-conv1d", "1.5.3").build(),
        &[
            ("gated-delta-net", "causal-conv1d", Broken),
            ("gated-delta-net", "flash-linear-attention", Missing),
            ("attention", "flash-attn", Optional),
        ],
    );
    assert_eq!(
        findings[0].fix.last().map(String::as_str),
        Some("uv pip install --python /v/bin/python flash-linear-attention")
    );
    check(
        KIMI_LINEAR,
        torch().dist("fla-core", "0.4.0").build(),
        &[("kda", "flash-linear-attention", Ready), ("latent-attention", "flash-attn", Optional)],
    );
    assert!(check(LLAMA_8B, torch().build(), &[("attention", "flash-attn", Optional)]).is_empty());
    let jamba = check(
        JAMBA,
        torch().build(),
        &[
            ("mamba", "causal-conv1d", Missing),
            ("mamba", "mamba-ssm", Missing),
            ("attention", "flash-attn", Optional),
        ],
    );
    assert!(jamba[0].cause.contains("refuses to run Jamba"), "{jamba:?}");
}

#[test]
fn environment_without_torch_runs_no_layer() {
    let title = |env: PyEnv| {
        let (_, findings) = read(GRANITE_MICRO, &machines::a10(), &[env]);
        findings.into_iter().find(|it| it.rule == "slow-hybrid-path").expect("the slow path").title
    };
    let words = "36 of 40 layers of GraniteMoeHybridForCausalLM would take their slow path in /v, where nothing runs yet: no ";
    let nothing = title(env("/v").build());
    assert!(nothing.starts_with(&format!("{words}torch and no transformers: ")), "{nothing}");
    let torch = title(env("/v").torch("2.9.1+cu128", Some("12.8")).build());
    assert!(torch.starts_with(&format!("{words}transformers: ")), "{torch}");
}

#[test]
fn packages_that_cannot_run_here_are_not_prescribed() {
    let find = |machine: &Machine, cuda: Option<&str>| {
        let env = env("/v").torch("2.9.1", cuda).dist("transformers", "4.57.1").build();
        let (_, findings) = read(GRANITE_MICRO, machine, &[env]);
        findings.into_iter().find(|it| it.rule == "slow-hybrid-path").expect("the slow path")
    };
    let mut pascal = machines::a10();
    pascal.gpus[0].compute_capability = Some(Fact::new((6, 1), "NVML"));
    let elsewhere = "firstlight plan --for m/config.json --machine h100";
    for (machine, cuda, words, fix) in [
        (machines::x86(), None, "they run on NVIDIA GPUs, and there is none here", elsewhere),
        (pascal, Some("12.6"), "7.0 or newer, and the newest here has 6.1", elsewhere),
        (
            machines::a10(),
            None,
            "torch 2.9.1 in /v is not a CUDA build",
            "firstlight plan --for m/config.json",
        ),
    ] {
        let found = find(&machine, cuda);
        assert_eq!((found.severity, found.fix[1].as_str()), (Severity::Info, fix), "{found:?}");
        assert!(found.cause.contains(words) && found.fix.len() == 2, "{found:?}");
    }
    // Without nvcc nothing can be built here, so wheels come first.
    let bare = Machine { toolkits: Vec::new(), ..machines::a10() };
    let found = find(&bare, Some("12.8"));
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.fix[0].contains("-m firstlight run SCRIPT.py"), "{found:?}");
    assert_eq!(found.fix[2], "firstlight plan --for m/config.json");
}

#[test]
fn a_package_that_does_not_load_is_broken() {
    let env = env("/v").torch("2.9.1+cu128", Some("12.8")).dist("causal-conv1d", "1.5.3");
    let env =
        env.native("causal-conv1d", "causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so").build();
    let rule = crate::rule("extension-new-abi").expect("the rule");
    let broken = rule
        .finding(
            Severity::Error,
            Confidence::Certain,
            "causal_conv1d 1.5.3 in /v was built for the new C++ ABI",
        )
        .finish();
    let (report, _) = model(GRANITE_MICRO, &options(), &machines::a10(), &[env], &[broken])
        .expect("a known model");
    assert_eq!(report.kernels[0].status, KernelStatus::Broken);
    assert!(report.kernels[0].reason.contains("extension-new-abi"), "{:?}", report.kernels[0]);
}

#[test]
fn unknown_configs_report_the_reason() {
    let check = |config: &str, words: &str| {
        let error = model(config, &options(), &machines::a10(), &[], &[]).expect_err("no config");
        assert!(error.to_string().contains(words), "{error}");
    };
    check("", "m/config.json: is not JSON");
    check("[]", "is not a JSON object");
    check("{}", "without model_type and architectures");
    check(
        r#"{"model_type": "rwkv7", "hidden_size": 8}"#,
        "rwkv7 is no model family that firstlight knows",
    );
    check(
        &KIMI_LINEAR.replace("linear_attn_config", "x"),
        "`linear_attn_config` is missing, expected the layers of each kind",
    );
    check(
        &GRANITE_MICRO.replace("\"num_hidden_layers\": 40", "\"num_hidden_layers\": 41"),
        "as many entries as there are layers: 41, not 40",
    );
    check(&NEMOTRON_H_8B.replace("M-M-M-M*", "M-M-M-MX"), "it has a `X`");
    check(
        &LLAMA_8B.replace("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 999999999999"),
        "`num_hidden_layers` is 999999999999",
    );
}

/// A config with at most four experts, so that many configs are read quickly.
fn few_experts(config: &str) -> serde_json::Value {
    let mut value: serde_json::Value = serde_json::from_str(config).expect("JSON");
    for key in ["num_experts", "num_local_experts"] {
        if value[key].as_u64() > Some(4) {
            value[key] = 4.into();
        }
    }
    value
}

/// Extreme values may not overflow or divide by zero.
#[test]
fn extreme_numbers_do_not_panic() {
    let configs = [
        GRANITE_MICRO,
        KIMI_LINEAR,
        QWEN3_NEXT,
        NEMOTRON_H_8B,
        FALCON_H1_05B,
        BAMBA_9B,
        JAMBA,
        MAMBA_28B,
        MAMBA2_27B,
        LLAMA_8B,
    ];
    for config in configs {
        let value = few_experts(config);
        for key in value.as_object().expect("an object").keys() {
            for new in [
                "0",
                "18446744073709551615",
                "-1",
                "\"auto\"",
                "null",
                "[]",
                "{}",
                "1.5",
                "[1]",
                "true",
            ] {
                let mut changed = value.clone();
                changed[key] = serde_json::from_str(new).expect("JSON");
                // Any result passes, as long as nothing panics.
                let _ = model(&changed.to_string(), &options(), &machines::a10(), &[], &[]);
            }
        }
    }
}
