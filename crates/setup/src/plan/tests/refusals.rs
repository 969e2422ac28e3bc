//! Refusals: the conflict is minimal, and the suggested plans exist.

use super::{machine, profile, request};
use crate::plan::problem::{IgnoredLimits, Limit, Problem};
use crate::plan::refusal::conflict;
use crate::plan::search::solve;
use crate::{PlanRequest, machines, plan};
use facts::{PlanRefusal, PlanTarget};
use proptest::prelude::*;

fn refused(request: &PlanRequest, target: &PlanTarget) -> Box<PlanRefusal> {
    plan(request, target).expect_err("no plan")
}

fn facts(refusal: &PlanRefusal) -> Vec<&str> {
    refusal.conflict.iter().map(|fact| fact.value.as_str()).collect()
}

/// Checks that the limits of a conflict exclude every stack, and that dropping any one of them gives one.
pub(super) fn smallest(request: &PlanRequest, target: &PlanTarget) {
    let problem = Problem::of(request, target);
    let kept = conflict(&problem);
    let others: IgnoredLimits =
        problem.limits().into_iter().filter(|limit| !kept.contains(limit)).collect();
    let optional = problem.optional();
    assert!(solve(&problem, &others, &optional).0.is_none(), "{kept:?} leaves a stack");
    for limit in &kept {
        let without: IgnoredLimits = others.iter().copied().chain([*limit]).collect();
        assert!(solve(&problem, &without, &optional).0.is_some(), "{limit:?} is not needed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Any requirements on any machine: a plan, or a minimal conflict.
    #[test]
    fn every_conflict_is_the_smallest(
        wants in prop::collection::vec(prop::sample::select(vec![
            "torch", "torch==2.5.1", "torch==2.15.0", "triton==3.5.0", "torchvision==0.20.1", "flash-attn",
            "flash-attn==2.8.3.post2", "mamba-ssm==2.3.2.post1", "causal-conv1d==1.7.0", "vllm==0.33.0", "vllm",
            "xformers==0.0.35", "bitsandbytes", "deepspeed", "flash-linear-attention", "fla-core==0.6.0",
            "transformers==4.57.1", "apache-tvm-ffi==0.1.11", "numpy>=2",
        ]), 1..4),
        at in 0..machines().len(),
        python in prop::option::of(9_u32..16),
        cuda in prop::option::of(prop::sample::select(vec![(11, 8), (12, 4), (12, 8), (13, 0)])),
        driver in prop::option::of(prop::sample::select(vec!["450.80.02", "550.163.01", "570.148.08", "595.10"])),
        build in any::<bool>(),
    ) {
        let mut request = request(&wants.join(" "));
        request.python = python.map(|minor| (3, minor));
        request.cuda = cuda;
        if build {
            request.allow_builds(&["all".to_owned()]);
        }
        let mut target = machines().remove(at);
        target.driver = driver.map(str::to_owned);
        if plan(&request, &target).is_err() {
            smallest(&request, &target);
        }
    }
}

#[test]
fn r4_04_a_wheel_that_is_missing_is_named_with_those_that_are_there() {
    let refusal = refused(&request("torch==2.3.1 flash-attn==2.8.3"), &machine("rtx4090"));
    let facts = facts(&refusal);
    assert!(facts.contains(&"flash-attn==2.8.3 is requested"), "{facts:#?}");
    assert!(facts.iter().any(|fact| fact.starts_with("torch==2.3.1 is requested")), "{facts:#?}");
    let missing = facts.iter().find(|fact| fact.contains("may not be built from source"));
    assert!(missing.is_some_and(|fact| fact.contains("torch 2.2 to 2.12")), "{facts:#?}");
    // The report found no wheel for torch 2.3.1. There is one, of an older release.
    let nearest = &refusal.nearest[..];
    let older =
        nearest.iter().find(|near| near.change.contains("allow any flash-attn")).expect("a plan");
    assert!(older.stack.contains("torch 2.3.1 cu121, flash-attn 2.7.4.post1"), "{nearest:#?}");
    assert!(
        nearest.iter().any(|near| near.change.contains("--allow-source flash-attn")),
        "{nearest:#?}"
    );
}

#[test]
fn mamba_and_vllm_cannot_share_an_environment() {
    let mut request = request("mamba-ssm==2.3.2.post1 vllm==0.33.0");
    request.allow_builds(&["all".to_owned()]);
    let refusal = refused(&request, &machine("h200"));
    let facts = facts(&refusal);
    let pins = |package: &str, pin: &str| {
        facts.iter().any(|fact| fact.starts_with(package) && fact.contains(pin))
    };
    assert!(pins("mamba-ssm 2.3.2.post1 requires", "apache-tvm-ffi<=0.1.9"), "{facts:#?}");
    assert!(pins("vllm 0.33.0 requires", "apache-tvm-ffi==0.1.11"), "{facts:#?}");
    assert!(refusal.nearest.iter().any(|near| near.change == "leave out vllm"), "{refusal:#?}");
}

#[test]
fn leaving_out_a_package_drops_all_requirements_for_it() {
    let changes = |wants: &str| -> Vec<String> {
        let refusal = refused(&request(wants), &machine("a100"));
        refusal.nearest.into_iter().map(|near| near.change).collect()
    };
    let alone = changes("torch>=2 torch<2");
    assert!(
        !alone.is_empty() && alone.iter().all(|it| it.starts_with("allow any torch")),
        "{alone:?}"
    );
    // The other one remains.
    let both = changes("triton>=3 triton<3 numpy");
    assert_eq!(both.iter().filter(|change| *change == "leave out triton").count(), 1, "{both:?}");
}

#[test]
fn jetson_orin_is_no_server() {
    let refusal = refused(&request("torch"), &machine("jetson-orin"));
    assert_eq!(
        facts(&refusal),
        [
            "torch is required",
            "the GPU has compute capability 8.7 of a Jetson, which runs only its own code"
        ]
    );
    let near = refusal.nearest.last().unwrap();
    let command = "uv pip install --python 3.10 torch==2.10.0 --index-url https://pypi.jetson-ai-lab.io/jp6/cu126";
    assert!(near.change.ends_with(command), "{near:?}");
    assert!(near.stack.starts_with("Python 3.10, torch 2.10.0 of CUDA 12.6"), "{near:?}");
    // It has no code for an older Jetson.
    let xavier = PlanTarget { gpus: vec![(7, 2)], ..machine("jetson-orin") };
    let refusal = refused(&request("torch"), &xavier);
    assert!(refusal.nearest.iter().all(|near| !near.change.contains("NVIDIA")), "{refusal:#?}");
}

#[test]
fn volta_has_no_flash_attention_and_gets_alternatives() {
    let volta = PlanTarget { gpus: vec![(7, 0)], ..machine("h100") };
    let refusal = refused(&request("torch flash-attn"), &volta);
    let facts = facts(&refusal);
    assert!(facts.contains(&"flash-attn needs compute capability 8.0 or later"), "{facts:#?}");
    assert_eq!(
        refusal.nearest.last().map(|near| near.change.as_str()),
        Some("leave out flash-attn")
    );
}

#[test]
fn old_driver_is_reported_and_a_new_one_is_the_remedy() {
    let old = PlanTarget { driver: Some("550.163.01".to_owned()), ..machine("rtx4090") };
    let refusal = refused(&request("torch==2.15.0"), &old);
    let facts = facts(&refusal);
    assert!(facts.iter().any(|fact| fact.contains("550.163.01, which runs CUDA 12")), "{facts:#?}");
    assert!(refusal.nearest.iter().any(|near| near.change.contains("update the driver to 580")));
}

#[test]
fn optional_package_never_refuses_a_plan() {
    let refusal = refused(&profile("nsa-rtx4090"), &machine("gh200"));
    let facts = facts(&refusal);
    assert!(facts.iter().all(|fact| !fact.contains("flash-attn")), "{facts:#?}");
    assert!(facts.iter().any(|fact| fact.contains("CUDA builds for aarch64 exist for torch 2.4")));
}

#[test]
fn every_limit_has_a_sentence() {
    let target = PlanTarget { driver: Some("550.163.01".to_owned()), ..machine("gb10") };
    let mut request = request("torch==2.15.0 flash-attn deepspeed");
    (request.python, request.cuda) = (Some((3, 9)), Some((12, 4)));
    let problem = Problem::of(&request, &target);
    for limit in problem.limits() {
        let fact = crate::plan::refusal::fact(&problem, limit);
        assert!(fact.value.len() > 10 && !fact.value.contains('?'), "{limit:?}: {fact:?}");
    }
    assert!(problem.limits().contains(&Limit::Gpu));
}
