use super::formats::Format;
use facts::{InstallPlan, PackageOrigin, PlanRequirement, PlannedPackage};
use std::fmt::Write as _;

/// The leading comment of each file: what made it, for which machine, how to update it, and whether it is locked.
pub(super) fn head(plan: &InstallPlan, format: &Format) -> String {
    let target = &plan.target;
    let mut head = format!(
        "# {name}: {about}\n# Made by firstlight {version} for {target} ({os} {arch}). Do not edit it; renew it:\n#   {command} --emit {name} -o {name}\n",
        name = format.name,
        about = format.about,
        version = env!("CARGO_PKG_VERSION"),
        target = target.name,
        os = target.os,
        arch = target.arch,
        command = command(plan),
    );
    head += if plan.locked {
        "# Locked: every package that is installed is named, each with its files and their hashes.\n"
    } else {
        "# Not locked: it names what was chosen; what that needs is added when the plan is locked or installed.\n"
    };
    for package in &plan.packages {
        if let PackageOrigin::Build(recipe) = &package.origin {
            let (least, most) = recipe.minutes;
            let _ = writeln!(
                head,
                "# {} {} is built from source: {least} to {most} minutes, {:.0} GB of memory for each compile job.",
                package.name,
                package.version,
                recipe.job_bytes as f64 / 1e9,
            );
        }
    }
    head.push('\n');
    head
}

/// Maximum memory of one compile job of any build in 10^9 bytes; `None` without builds.
pub(super) fn jobs(plan: &InstallPlan) -> Option<u64> {
    let job = |package: &PlannedPackage| match &package.origin {
        PackageOrigin::Build(recipe) => Some(recipe.job_bytes.div_ceil(1_000_000_000)),
        PackageOrigin::Wheel => None,
    };
    plan.packages.iter().filter_map(job).max()
}

/// The command that produces this plan.
fn command(plan: &InstallPlan) -> String {
    let mut command = format!("firstlight plan --machine {}", plan.target.name);
    match profile(plan) {
        Some(profile) => {
            let _ = write!(command, " --for {profile}");
        }
        None => {
            let built = plan.wants.iter().filter(|want| want.source_build);
            let built: Vec<_> = built.map(|want| want.package.as_str()).collect();
            if !built.is_empty() {
                let _ = write!(command, " --allow-source {}", built.join(","));
            }
            for PlanRequirement { package, specifiers, .. } in &plan.wants {
                let quote = if specifiers.is_empty() { "" } else { "'" };
                let _ = write!(command, " {quote}{package}{specifiers}{quote}");
            }
        }
    }
    if plan.locked {
        command += " --lock";
    }
    command
}

/// The stored profile that requested everything.
fn profile(plan: &InstallPlan) -> Option<&str> {
    let name = plan.wants.first()?.because.strip_prefix("profile ")?;
    let same = |want: &PlanRequirement| want.because.strip_prefix("profile ") == Some(name);
    plan.wants.iter().all(same).then_some(name)
}
