mod chosen;
mod index;
mod libraries;
mod refusals;

use super::*;
use crate::{RequestedPackage, machines, profiles};
use facts::PackageOrigin;

pub(super) fn machine(name: &str) -> PlanTarget {
    machines().into_iter().find(|machine| machine.name == name).expect(name)
}

pub(super) fn request(wants: &str) -> PlanRequest {
    let wants = wants
        .split_whitespace()
        .map(|line| RequestedPackage::parse(line, "requirement").expect(line));
    PlanRequest { wants: wants.collect(), ..PlanRequest::default() }
}

pub(super) fn profile(name: &str) -> PlanRequest {
    let profile = profiles().iter().find(|profile| profile.name == name).expect(name);
    PlanRequest::of_profile(profile).expect(name)
}

/// The packages of a plan as `name version index`, with the suffix ` built` for built packages.
pub(super) fn packages(plan: &InstallPlan) -> Vec<String> {
    let built = |origin: &PackageOrigin| match origin {
        PackageOrigin::Wheel => "",
        PackageOrigin::Build(_) => " built",
    };
    let line = |package: &facts::PlannedPackage| {
        format!("{} {} {}{}", package.name, package.version, package.index, built(&package.origin))
    };
    plan.packages.iter().map(line).collect()
}

/// Every tenth conflict is minimized; with `FIRSTLIGHT_CONFLICTS=all` each of them.
#[test]
fn every_profile_on_every_machine_gives_a_plan_or_a_refusal_with_sources() {
    let step = match std::env::var_os("FIRSTLIGHT_CONFLICTS") {
        Some(all) if all == "all" => 1,
        _ => 10,
    };
    let mut refused = 0;
    // Targets that differ only in their name have equal plans.
    let mut seen: Vec<PlanTarget> = Vec::new();
    for target in machines() {
        let nameless = PlanTarget { name: String::new(), source: String::new(), ..target.clone() };
        if seen.contains(&nameless) {
            continue;
        }
        seen.push(nameless);
        for profile in profiles() {
            let request = PlanRequest::of_profile(profile).expect("a profile");
            match plan(&request, &target) {
                Ok(plan) => {
                    assert!(!plan.packages.is_empty() && !plan.locked);
                    for package in &plan.packages {
                        assert!(!package.source.is_empty(), "{} {package:?}", target.name);
                        assert!(!package.because.is_empty(), "{} {package:?}", target.name);
                        let index = plan.indexes.iter().find(|index| index.name == package.index);
                        assert!(index.is_some(), "{} {package:?}", target.name);
                    }
                    assert!(plan.rejected.iter().all(|row| row.reason.len() > 5));
                    assert!(plan.warnings.iter().all(|fact| !fact.source.is_empty()));
                    assert!(plan.indexes.iter().skip(1).all(|index| index.explicit));
                }
                Err(refusal) => {
                    assert!(!refusal.conflict.is_empty(), "{} {}", target.name, profile.name);
                    for fact in &refusal.conflict {
                        assert!(!fact.value.is_empty() && !fact.source.is_empty(), "{fact:?}");
                    }
                    if refused % step == 0 {
                        refusals::smallest(&request, &target);
                    }
                    refused += 1;
                }
            }
        }
    }
    assert!(refused >= 5 * step, "{refused} profiles were refused");
}

#[test]
fn r2_05_an_a10_gets_torch_before_its_dependents() {
    let plan = plan(&profile("granite-a10"), &machine("a10")).expect("a plan");
    let names: Vec<&str> = plan.packages.iter().map(|package| package.name.as_str()).collect();
    let place = |name: &str| names.iter().position(|other| *other == name).expect(name);
    let order = ["torch", "triton", "transformers", "flash-attn", "causal-conv1d", "mamba-ssm"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{names:?}");
    assert_eq!(plan.python, "3.11");
    let chosen = packages(&plan);
    for expect in [
        "torch 2.7.1 pypi",
        "flash-attn 2.8.3+cu12torch2.7cxx11abiTRUE flash-attn-releases-v2.8.3",
        "causal-conv1d 1.5.3.post1+cu12torch2.7cxx11abiTRUE causal-conv1d-releases-v1.5.3.post1",
        "mamba-ssm 2.2.6.post3+cu12torch2.7cxx11abiTRUE mamba-releases-v2.2.6.post3",
    ] {
        assert!(chosen.iter().any(|line| line == expect), "{expect}: {chosen:#?}");
    }
}
