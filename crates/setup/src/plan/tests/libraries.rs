//! Plans judged by the CUDA libraries inside wheels: the CUDA they need and the GPUs they have code for.

use super::{machine, packages, request};
use crate::{plan, target};
use facts::{InstallPlan, PlanRefusal, PlanTarget};
use knowledge::Arch;

fn gpu(capability: (u32, u32), driver: Option<&str>) -> PlanTarget {
    let driver = driver.map(str::to_owned);
    PlanTarget { driver, ..target::with_gpu(capability, Arch::X86_64) }
}

fn version<'a>(plan: &'a InstallPlan, name: &str) -> &'a str {
    let package = plan.packages.iter().find(|package| package.name == name);
    &package.unwrap_or_else(|| panic!("{name}: {:?}", packages(plan))).version
}

fn conflict(refusal: &PlanRefusal) -> String {
    let facts = refusal.conflict.iter().chain(refusal.further.iter().flatten());
    facts.map(|fact| fact.value.as_str()).collect::<Vec<_>>().join("; ")
}

/// Row P01: vllm 0.33.0 of PyPI needs libcudart.so.13, whatever build of torch is next to it.
#[test]
fn an_older_driver_gets_a_vllm_of_cuda_12() {
    for driver in ["570.148.08", "550.54.14"] {
        let plan = plan(&request("vllm"), &gpu((8, 6), Some(driver))).expect("a plan");
        assert_eq!(version(&plan, "vllm"), "0.19.1");
        assert!(version(&plan, "torch").starts_with("2.10.0"), "{:?}", packages(&plan));
        assert!(
            plan.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("12.")),
            "{:?}",
            plan.cuda
        );
        let newer = plan.rejected.iter().find(|row| row.candidate == "vllm 0.33.0").expect("a row");
        assert!(newer.reason.contains("need CUDA 13"), "{newer:?}");
    }
}

#[test]
fn pinned_vllm_of_cuda_13_is_refused_for_an_older_driver() {
    let refusal = plan(&request("vllm==0.33.0"), &gpu((8, 6), Some("570.148.08")));
    let facts = conflict(&refusal.expect_err("no plan"));
    assert!(
        facts.contains("the driver is 570.148.08") && facts.contains("needs CUDA 13"),
        "{facts}"
    );
}

#[test]
fn driver_older_than_cuda_11_has_no_plan() {
    for driver in ["440.33.01", "450.36", "418.0", "300", "1.2"] {
        let refusal = plan(&request("torch"), &gpu((8, 0), Some(driver))).expect_err(driver);
        let facts = conflict(&refusal);
        assert!(facts.contains(&format!("the driver is {driver}, which runs CUDA 10")), "{facts}");
        let update = refusal.nearest.iter().any(|it| it.change.contains("update the driver"));
        assert!(update, "{driver}: {:?}", refusal.nearest);
    }
    assert!(plan(&request("torch"), &gpu((8, 0), Some("450.80.02"))).is_ok());
}

#[test]
fn vllm_without_a_gpu_names_the_wheels_for_cpus() {
    let refusal = plan(&request("vllm"), &machine("cpu-x86_64")).expect_err("no plan");
    let facts = conflict(&refusal);
    assert!(facts.contains("firstlight plans vllm only for NVIDIA GPUs"), "{facts}");
    assert!(
        facts.contains("vLLM publishes wheels for CPUs with its releases on GitHub"),
        "{facts}"
    );
    assert!(!facts.contains("vllm needs an NVIDIA GPU"), "{facts}");
}

/// Row D2: the CUDA of the plan is the one that vllm's libraries need.
#[test]
fn newest_vllm_comes_with_a_torch_of_its_own_cuda() {
    for name in ["h100", "gh200", "b200"] {
        let plan = plan(&request("vllm"), &machine(name)).expect(name);
        assert_eq!(version(&plan, "vllm"), "0.33.0", "{name}");
        assert!(
            plan.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("13.")),
            "{:?}",
            plan.cuda
        );
        let driver = plan.warnings.iter().any(|fact| fact.value.contains("needs driver 580"));
        assert!(driver, "{:?}", plan.warnings);
    }
}

/// Row P03: releases without code for Volta are passed over.
#[test]
fn volta_plans_the_newest_vllm_with_sm_70_code() {
    let volta = gpu((7, 0), None);
    let chosen = plan(&request("vllm"), &volta).expect("a plan");
    assert_eq!(version(&chosen, "vllm"), "0.19.1");
    let newest = chosen.rejected.iter().find(|row| row.candidate == "vllm 0.33.0").expect("a row");
    assert!(newest.reason.contains("compute capability 7.0") || newest.reason.contains("CUDA 13"));
    let refusal = plan(&request("vllm==0.33.0"), &volta).expect_err("no plan");
    let facts = conflict(&refusal);
    assert!(facts.contains("compute capability 7.0") && facts.contains("sm_75"), "{facts}");
}

/// Row D8: the versions and the missing GPU each exclude it, and both are reported.
#[test]
fn every_independent_conflict_is_reported() {
    let refusal = plan(&request("flash-attn>=99"), &machine("cpu-x86_64")).expect_err("no plan");
    assert!(!refusal.further.is_empty(), "{refusal:?}");
    let facts = conflict(&refusal);
    let gpu = "firstlight plans flash-attn only for NVIDIA GPUs";
    assert!(facts.contains(gpu) && facts.contains("flash-attn>=99"), "{facts}");
    assert!(facts.contains("the newest release that is known is 2."), "{facts}");
    // Without the versions the GPU is still missing; without the package there is no conflict.
    let one = plan(&request("flash-attn"), &machine("cpu-x86_64")).expect_err("no plan");
    assert!(one.further.is_empty(), "{one:?}");
}

/// Row D8: the reason why a torch was passed over does not claim that it was chosen.
#[test]
fn passed_over_torch_is_not_called_chosen() {
    let chosen = plan(&request("vllm==0.33.0"), &gpu((9, 0), None)).expect("a plan");
    let reasons: Vec<&str> = chosen.rejected.iter().map(|row| row.reason.as_str()).collect();
    assert!(reasons.iter().all(|reason| !reason.contains("was chosen")), "{reasons:?}");
    assert!(reasons.contains(&"vllm 0.33.0 requires torch==2.14.0, not 2.15.0"), "{reasons:?}");
}
