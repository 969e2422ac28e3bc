//! Chosen plans: the rows of the field reports and special cases of the published tables.

use super::{machine, packages, profile, request};
use crate::{plan, profiles};
use facts::{InstallPlan, PackageOrigin, PlanTarget};

fn has(plan: &InstallPlan, line: &str) {
    let all = packages(plan);
    assert!(all.iter().any(|package| package == line), "{line}: {all:#?}");
}

fn warned(plan: &InstallPlan, words: &str) {
    let all: Vec<&str> = plan.warnings.iter().map(|fact| fact.value.as_str()).collect();
    assert!(all.iter().any(|warning| warning.contains(words)), "{words}: {all:#?}");
}

fn rejected<'a>(plan: &'a InstallPlan, candidate: &str) -> &'a str {
    let row = plan.rejected.iter().find(|row| row.candidate == candidate);
    row.map_or("not rejected", |row| row.reason.as_str())
}

#[test]
fn r0_06_an_aarch64_plan_never_takes_a_cpu_torch() {
    for name in ["gh200", "gb200", "gb10", "jetson-thor"] {
        for torch in ["torch", "torch==2.7.1", "torch==2.9.1", "torch==2.10.0", "torch==2.11.0"] {
            let Ok(plan) = plan(&request(torch), &machine(name)) else { continue };
            assert!(plan.cuda.is_some(), "{name} {torch}");
            let chosen = &plan.packages[0];
            // PyPI's aarch64 wheels have CUDA since 2.11.
            let label = chosen.version.contains("+cu");
            let from_pypi = chosen.index == "pypi" && !label;
            let minor = knowledge::minor_of(&chosen.version).expect("a version");
            assert!(label || (from_pypi && minor >= (2, 11)), "{name} {torch}: {chosen:?}");
        }
    }
}

#[test]
fn r0_07_entries_off_their_pair_are_flagged() {
    let plan = plan(&profile("kimi-gh200"), &machine("gh200")).expect("a plan");
    for line in [
        "torch 2.5.1+cu124 pytorch-cu124",
        "torchvision 0.20.1 pytorch-cu124",
        "torchaudio 2.5.1 pytorch-cu124",
        "triton 3.5.0 pypi",
        "flash-linear-attention 0.4.0 pypi",
        "transformers 4.57.1 pypi",
        "tokenizers 0.22.1 pypi",
    ] {
        has(&plan, line);
    }
    warned(
        &plan,
        "doubtful pair: torch 2.5.1 was released with triton 3.1, and 3.5.0 is requested",
    );
}

#[test]
fn r1_07_both_linux_architectures_take_cu128_and_macos_takes_pypi() {
    let request = profile("h2o-llm-studio");
    for name in ["gh200", "gb200", "h100", "a10"] {
        let plan = plan(&request, &machine(name)).expect(name);
        has(&plan, "torch 2.7.1+cu128 pytorch-cu128");
        let index = plan.indexes.iter().find(|index| index.name == "pytorch-cu128").expect(name);
        assert!(
            index.explicit && index.url == "https://download.pytorch.org/whl/cu128",
            "{index:?}"
        );
    }
    let plan = plan(&request, &machine("m-series")).expect("a plan");
    has(&plan, "torch 2.7.1 pypi");
    assert_eq!((plan.cuda, plan.indexes.len()), (None, 1));
}

#[test]
fn r1_09_packages_excluded_by_a_marker_are_absent() {
    let request = profile("h2o-llm-studio");
    let names = |name: &str| -> Vec<String> {
        let plan = plan(&request, &machine(name)).expect(name);
        plan.packages.into_iter().map(|package| package.name).collect()
    };
    let kept_off = ["bitsandbytes", "flash-attn", "deepspeed"];
    for name in ["gh200", "m-series"] {
        let names = names(name);
        assert!(kept_off.iter().all(|package| !names.iter().any(|n| n == package)), "{names:?}");
    }
    let names = names("a10");
    assert!(kept_off.iter().all(|package| names.iter().any(|n| n == package)), "{names:?}");
}

#[test]
fn r1_10_a_missing_option_has_a_warning_and_a_named_fallback() {
    let plan = plan(&profile("h2o-llm-studio"), &machine("m-series")).expect("a plan");
    warned(&plan, "instead of AdamW8bit and 8-bit weights, torch.optim.AdamW");
    warned(&plan, "instead of FlashAttention-2 kernels, torch's scaled_dot_product_attention");
    warned(&plan, "instead of ZeRO, torch's DistributedDataParallel");
}

#[test]
fn r4_07_the_profile_carries_its_switches() {
    let profile = profiles().iter().find(|profile| profile.name == "nsa-rtx4090").expect("known");
    let option = |name: &str| profile.options.iter().find(|o| o.name == name).expect("an option");
    assert_eq!(option("triton_sel_force").who, "testing only");
    assert_eq!(
        (option("triton_sel_force").value.as_str(), option("fa2_enabled").value.as_str()),
        ("false", "true")
    );
    let plan = plan(&super::profile("nsa-rtx4090"), &machine("rtx4090")).expect("a plan");
    has(&plan, "torch 2.3.1 pypi");
    has(&plan, "triton 2.3.1 pypi");
}

#[test]
fn r4_08_a_wheel_is_chosen_only_where_tags_and_abi_fit() {
    let chosen = |torch: &str, python: (u32, u32), name: &str| {
        let mut request = request(&format!("{torch} flash-attn==2.8.3"));
        request.python = Some(python);
        let plan = plan(&request, &machine(name)).ok()?;
        let flash = plan.packages.into_iter().find(|package| package.name == "flash-attn")?;
        Some(flash.files.first()?.name.clone())
    };
    // The old C++ ABI up to torch 2.6 with CUDA 12.4, the new one since 2.7.
    let old = chosen("torch==2.5.1", (3, 11), "a10").expect("a wheel");
    assert_eq!(old, "flash_attn-2.8.3+cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl");
    let new = chosen("torch==2.8.0", (3, 13), "a10").expect("a wheel");
    assert_eq!(new, "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp313-cp313-linux_x86_64.whl");
    // None for this Python, none for this processor, none for its glibc.
    assert_eq!(chosen("torch==2.8.0", (3, 14), "a10"), None);
    assert_eq!(chosen("torch==2.5.1", (3, 11), "gh200"), None);
    let old = PlanTarget { glibc: Some("2.27".to_owned()), ..machine("a10") };
    assert!(plan(&request("torch==2.5.1 flash-attn==2.8.3"), &old).is_err());
}

#[test]
fn the_newest_torch_for_which_every_extension_has_a_wheel() {
    let plan =
        plan(&request("flash-attn mamba-ssm causal-conv1d"), &machine("gh200")).expect("a plan");
    assert!(plan.packages[0].version.starts_with("2.11.0"), "{:?}", packages(&plan));
    assert!(plan.packages.iter().all(|package| package.origin == PackageOrigin::Wheel));
    let reason = rejected(&plan, "torch 2.12.1 cu126");
    assert!(
        reason.contains("no wheel of causal-conv1d") && reason.contains("torch 2.5 to 2.11"),
        "{reason}"
    );
    // mamba-ssm's own wheels for older torch require a triton that those do not have.
    let older = super::plan(&request("torch==2.8.0 mamba-ssm==2.3.2.post1"), &machine("h200"));
    let refusal = older.expect_err("no plan");
    assert!(
        refusal.rejected.iter().any(|row| row.reason.contains("triton>=3.5.0")),
        "{refusal:#?}"
    );
}

#[test]
fn the_newest_flash_attn_has_no_wheel() {
    let plan = plan(&request("flash-attn"), &machine("h200")).expect("a plan");
    assert_eq!(rejected(&plan, "flash-attn 2.8.3.post2"), "only its source is published");
    warned(&plan, "built and served by a company");
    let flash = plan.packages.iter().find(|package| package.name == "flash-attn").expect("it");
    assert!(flash.version.starts_with("2.8.3+cu"), "{flash:?}");
}

#[test]
fn unofficial_wheels_are_used_only_on_request() {
    let mut request = request("flash-attn");
    let by_default = plan(&request, &machine("gh200")).expect("a plan");
    assert!(by_default.packages[0].version.starts_with("2.12.1"));
    request.community = true;
    let plan = plan(&request, &machine("gh200")).expect("a plan");
    assert!(plan.packages[0].version.starts_with("2.13.0"), "{:?}", packages(&plan));
    warned(&plan, "built by one person");
}

#[test]
fn torch_2_10_is_recognized_by_its_file() {
    let plan = plan(&request("torch==2.10.0"), &PlanTarget { driver: None, ..machine("h200") });
    let mut asked = request("torch==2.10.0");
    asked.cuda = Some((12, 8));
    let plan = plan.and_then(|_| super::plan(&asked, &machine("h200"))).expect("a plan");
    warned(&plan, "uploaded again with build tags");
    let file = &plan.packages[0].files[0];
    assert!(file.name.starts_with("torch-2.10.0-3-cp312") && file.sha256.is_some(), "{file:?}");
}

#[test]
fn gpus_get_builds_with_code_for_them() {
    let cuda = |gpu: (u32, u32), name: &str, wants: &str| {
        let target = PlanTarget { gpus: vec![gpu], ..machine(name) };
        let plan = plan(&request(wants), &target).expect(name);
        (plan.packages[0].version.clone(), plan.cuda.expect("CUDA"))
    };
    // Pascal and Volta: cu126, which ends with torch 2.14.
    assert_eq!(cuda((6, 1), "a10", "torch"), ("2.14.1+cu126".to_owned(), "12.6".to_owned()));
    assert_eq!(cuda((7, 0), "a10", "torch"), ("2.14.1+cu126".to_owned(), "12.6".to_owned()));
    // Thor: nothing before cu130.
    assert_eq!(cuda((11, 0), "jetson-thor", "torch").1, "13.0");
    // No GPU of today: only PTX could run.
    let other = crate::with_gpu((99, 0), crate::Arch::X86_64);
    let plan = super::plan(&request("torch"), &other).expect("a plan");
    warned(&plan, "no machine code for compute capability 99.0, only PTX of 12.0");
    // GB10 runs code of 12.0, and torch's warning about it is benign.
    let plan = super::plan(&request("torch"), &machine("gb10")).expect("a plan");
    warned(&plan, "is benign");
    // A driver of CUDA 12 gets no torch of CUDA 13.
    let old = PlanTarget {
        driver: Some("570.148.08".to_owned()),
        cuda_limit: Some((12, 8)),
        ..machine("a10")
    };
    let plan = super::plan(&request("torch"), &old).expect("a plan");
    assert_eq!(plan.packages[0].version, "2.14.1+cu126");
    assert!(rejected(&plan, "torch 2.15.0 cu130").contains("needs driver 580"));
}

#[test]
fn a_build_is_for_the_local_gpus_and_states_its_cost() {
    let mut request = request("torch==2.13.0 flash-attn==2.8.3");
    request.allow_builds(&["flash-attn".to_owned()]);
    let plan = plan(&request, &machine("gb10")).expect("a plan");
    let flash = plan.packages.iter().find(|package| package.name == "flash-attn").expect("it");
    let PackageOrigin::Build(recipe) = &flash.origin else { panic!("{flash:?}") };
    let env =
        |name: &str| recipe.env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!(env("FLASH_ATTENTION_FORCE_BUILD"), Some("TRUE"));
    assert_eq!(env("FLASH_ATTN_CUDA_ARCHS"), Some("120"));
    warned(&plan, "flash-attn 2.8.3 is built from source: 5 to 60 minutes, 5 GB");
    let place =
        |name: &str| plan.packages.iter().position(|package| package.name == name).expect(name);
    assert!(place("torch") < place("ninja") && place("ninja") < place("flash-attn"));
}

#[test]
fn torch_is_planned_only_if_a_package_needs_it() {
    let plan = plan(&request("numpy einops==0.8.1"), &machine("cpu-x86_64")).expect("a plan");
    assert_eq!(packages(&plan), ["numpy  pypi", "einops 0.8.1 pypi"]);
    let plan = super::plan(&request("torch"), &machine("cpu-aarch64")).expect("a plan");
    has(&plan, "torch 2.15.0+cpu pytorch-cpu");
}

#[test]
fn a_duplicate_request_counts_once() {
    let plan =
        plan(&request("torch>=2.5 torch<2.9 flash-attn torch"), &machine("a10")).expect("a plan");
    assert!(plan.packages[0].version.starts_with("2.8.0"), "{:?}", packages(&plan));
    assert_eq!(plan.packages.iter().filter(|package| package.name == "torch").count(), 1);
}

#[test]
fn a_model_s_layers_ask_for_their_kernels() {
    let granite = crate::PlanRequest::of_layers(&["mamba2", "attention"]);
    let plan = plan(&granite, &machine("h200")).expect("a plan");
    let names: Vec<&str> = plan.packages.iter().map(|package| package.name.as_str()).collect();
    for name in ["torch", "transformers", "flash-attn", "causal-conv1d", "mamba-ssm"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let mamba = plan.packages.iter().find(|package| package.name == "mamba-ssm").expect("it");
    assert_eq!(mamba.because, "config.json: mamba2 layers");
    // An RTX 2080 has no FlashAttention; attention layers run without it.
    let turing = PlanTarget { gpus: vec![(7, 5)], ..machine("a10") };
    let plan = super::plan(&granite, &turing).expect("a plan");
    assert!(plan.packages.iter().all(|package| package.name != "flash-attn"));
    warned(&plan, "flash-attn is left out");
}

#[test]
fn installed_python_is_preferred_to_a_newer_one() {
    let with = |pythons: &[(u32, u32)], asked: Option<(u32, u32)>| {
        let request =
            super::PlanRequest { pythons: pythons.to_vec(), python: asked, ..request("torch") };
        plan(&request, &machine("a10")).expect("a plan").python
    };
    assert_eq!(with(&[], None), "3.12");
    assert_eq!(with(&[(3, 11)], None), "3.11");
    assert_eq!(with(&[(3, 10), (3, 13)], None), "3.13");
    // A Python without published wheels, and a requested one.
    assert_eq!(with(&[(3, 6)], None), "3.12");
    assert_eq!(with(&[(3, 11)], Some((3, 13))), "3.13");
    // If nothing fits the installed Python, another one is better than no plan.
    let fitting = super::PlanRequest { pythons: vec![(3, 14)], ..request("torch==2.7.1") };
    assert_eq!(plan(&fitting, &machine("a10")).expect("a plan").python, "3.12");
}
