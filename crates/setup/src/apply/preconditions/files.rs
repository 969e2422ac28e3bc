//! Selects one file for each package: among those that the plan allows, the one for this Python and system.

use super::super::UnmetPrecondition;
use super::super::download::SelectedFile;
use crate::build::BuildSource;
use crate::wheel::WheelName;
use facts::{Dist, InstallPlan, PackageOrigin, PlannedFile, PlannedPackage};
use knowledge::{Arch, WheelTarget};

/// The reason for a package whose files were not looked up.
const UNLOCKED: &str = "has no file in the plan: the plan is not locked";

/// Selects files, and reports missing ones. A cloned source has no file.
pub(super) fn choose(plan: &InstallPlan, unmet: &mut Vec<UnmetPrecondition>) -> Vec<SelectedFile> {
    let mut chosen = Vec::new();
    for package in &plan.packages {
        let found = match &package.origin {
            PackageOrigin::Wheel => one(package, plan).map(Some),
            PackageOrigin::Build(recipe) if BuildSource::git(&recipe.requirement).is_some() => {
                Ok(None)
            }
            PackageOrigin::Build(_) => source(package).map(Some),
        };
        match found {
            Ok(found) => chosen.extend(found),
            Err(what) => unmet.push(UnmetPrecondition::new(
                format!("{} {} {what}", package.name, package.version),
                "lock the plan for this machine: firstlight plan --lock",
            )),
        }
    }
    chosen
}

/// The source of a package that is built here.
fn source(package: &PlannedPackage) -> Result<SelectedFile, String> {
    let file = package.files.first().ok_or(UNLOCKED)?;
    let (url, sha256) = addressed(file)?;
    Ok(SelectedFile {
        package: package.name.clone(),
        version: package.version.clone(),
        file: file.name.clone(),
        url,
        sha256,
        bytes: file.bytes,
    })
}

fn one(package: &PlannedPackage, plan: &InstallPlan) -> Result<SelectedFile, String> {
    let first = package.files.first().ok_or(UNLOCKED)?;
    let target = &plan.target;
    let tags = WheelTarget {
        python: knowledge::minor_of(&plan.python)
            .ok_or("does not support this release of Python")?,
        arch: Arch::parse(&target.arch),
        mac: target.os == "macos",
        glibc: target.glibc.as_deref().and_then(knowledge::minor_of),
    };
    let fitting = package.files.iter().filter_map(|file| {
        let name = WheelName::parse(&file.name).ok().filter(|name| name.fits(&tags))?;
        Some((name, file))
    });
    // A wheel for exactly this Python is preferred to one for many; among those, the choice is deterministic.
    let best = fitting
        .max_by_key(|(name, file)| (name.abis.iter().any(|abi| abi.starts_with("cp")), &file.name));
    let Some((name, file)) = best else {
        let others = match package.files.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} others"),
        };
        return Err(format!(
            "has no wheel for Python {} on {} {}, but {}{others}",
            plan.python, target.os, target.arch, first.name
        ));
    };
    if Dist::normalise(&name.distribution) != Dist::normalise(&package.name) {
        return Err(format!("has a file of another package: {}", file.name));
    }
    let (url, sha256) = addressed(file)?;
    Ok(SelectedFile {
        package: package.name.clone(),
        // The wheel's version includes the local label that the plan may omit.
        version: name.version,
        file: file.name.clone(),
        url,
        sha256,
        bytes: file.bytes,
    })
}

fn addressed(file: &PlannedFile) -> Result<(String, String), String> {
    let url = file.url.clone().ok_or_else(|| format!("has a file without a URL: {}", file.name))?;
    let sha256 = file.sha256.as_deref().unwrap_or_default().to_ascii_lowercase();
    match sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok((url, sha256)),
        false => Err(format!("has a file without a SHA-256: {}", file.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::{PlanRequest, machines};

    #[test]
    fn closest_wheel_is_chosen() {
        let target = machines().into_iter().find(|it| it.name == "cpu-x86_64").unwrap();
        let mut plan = plan(&PlanRequest::default(), &target).unwrap();
        plan.python = "3.12".to_owned();
        let template = plan.packages[0].clone();
        let check = |files: &[&str], expect: Result<&str, &str>| {
            let file = |tags: &&str| PlannedFile {
                name: format!("p-1.0-{tags}.whl"),
                url: Some("http://x".to_owned()),
                sha256: Some("0".repeat(64)),
                bytes: None,
            };
            let files = files.iter().map(file).collect();
            let package = PlannedPackage {
                name: "p".to_owned(),
                version: "1.0".to_owned(),
                files,
                ..template.clone()
            };
            let chosen = one(&package, &plan).map(|chosen| chosen.file);
            match expect {
                Ok(tags) => assert_eq!(chosen, Ok(format!("p-1.0-{tags}.whl"))),
                Err(words) => {
                    assert!(chosen.as_ref().is_err_and(|why| why.contains(words)), "{chosen:?}")
                }
            }
        };
        let own = "cp312-cp312-manylinux_2_17_x86_64";
        check(&["py3-none-any", own, "cp39-abi3-manylinux_2_17_x86_64"], Ok(own));
        check(&["cp312-cp312-manylinux_2_17_aarch64", "py3-none-any"], Ok("py3-none-any"));
        check(
            &["cp313-cp313-linux_x86_64", "cp313-cp313-win32"],
            Err("3.12 on linux x86_64, but p-1.0-cp313-cp313-linux_x86_64.whl and 1 others"),
        );
        check(&[], Err("not locked"));
    }
}
