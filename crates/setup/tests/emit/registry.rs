//! Plans of real machines against PyPI: every file in them exists. Only metadata is read.

use crate::tools::uv;
use facts::{InstallPlan, PackageOrigin};
use setup::lock::lock;
use setup::{PlanRequest, machines, plan, profiles};

fn planned(profile: &str, machine: &str) -> InstallPlan {
    let profile = profiles().iter().find(|one| one.name == profile).unwrap();
    let target = machines().into_iter().find(|one| one.name == machine).unwrap();
    plan(&PlanRequest::of_profile(profile).unwrap(), &target).unwrap()
}

/// The plan with the packages on PyPI: torch and its siblings (`2.7.1+cu128`) in their public version, which has the
/// same dependencies; without packages that only a separate index or a release page has.
fn on_pypi(mut plan: InstallPlan) -> InstallPlan {
    let pypi = plan.indexes[0].name.clone();
    let flavour = |version: &str| {
        version.split_once("+cu").is_some_and(|(_, label)| label.parse::<u32>().is_ok())
    };
    plan.packages.retain(|package| package.index == pypi || flavour(&package.version));
    for package in plan.packages.iter_mut().filter(|package| package.index != pypi) {
        package.index.clone_from(&pypi);
        package.version = package.version.split('+').next().unwrap().to_owned();
        package.files.clear();
    }
    plan.indexes.truncate(1);
    plan
}

/// Locks the plan and compares each file in the tables with the registry's data.
fn every_file_exists(profile: &str, machine: &str) {
    let plan = on_pypi(planned(profile, machine));
    let locked =
        lock(&plan, uv()).unwrap_or_else(|error| panic!("{profile} on {machine}: {error}"));
    assert!(locked.locked);
    for package in &plan.packages {
        let found = locked.packages.iter().find(|one| one.name == package.name).unwrap();
        let cloned = matches!(&package.origin, PackageOrigin::Build(recipe) if recipe.requirement.contains("git+"));
        assert!(cloned || !found.files.is_empty(), "{}", package.name);
        for file in &package.files {
            let same =
                |one: &facts::PlannedFile| one.name == file.name && one.sha256 == file.sha256;
            assert!(
                found.files.iter().any(same),
                "{file:?} is not what the registry has: {:?}",
                found.files
            );
        }
    }
}

#[test]
fn every_registry_file_of_the_a10_plan_exists() {
    every_file_exists("granite-a10", "a10");
}

#[test]
fn every_registry_file_of_the_gh200_plans_exists() {
    every_file_exists("h2o-llm-studio", "gh200");
    every_file_exists("ffpa-gh200", "gh200");
}
