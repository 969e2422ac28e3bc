//! Plans with a package index: queries releases that are not in the tables, and reads the wheels of a plan before
//! returning it.

use super::{catalogue, found, refused};
use crate::PlanRequest;
use crate::index::{IndexError, PublishedReleases, ReleaseSource};
use crate::wheel::WheelName;
use facts::{Fact, InstallPlan, PackageOrigin, PlanRefusal, PlanTarget, PlannedFile};
use knowledge::indexes::index;
use pep440_rs::VersionSpecifiers;

/// Number of releases of a package that are read at once, newest first.
const BATCH: usize = 8;
/// Maximum number of times that more releases, or the wheels of another choice, are read: a wheel can have hundreds of
/// megabytes.
const ROUNDS: usize = 16;
/// Packages whose CUDA builds are in the tables: PyPI's build is one of several of the same version.
const TORCH: [&str; 4] = ["torch", "torchvision", "torchaudio", "triton"];

/// As [`plan`], with the tables and an index. Only releases outside of the tables are queried. Failed reads become a
/// warning of the plan.
///
/// # Errors
/// [`IndexError::Absent`] for a package that the index does not have.
pub fn plan_with(
    request: &PlanRequest,
    target: &PlanTarget,
    source: &mut dyn ReleaseSource,
) -> Result<Result<InstallPlan, Box<PlanRefusal>>, IndexError> {
    let mut request = request.clone();
    let mut unread = None;
    let asked = asked(&request);
    let mut batches = 1;
    let mut more = ask(&mut request, &asked, 0, source, &mut unread)?;
    for round in 1..=ROUNDS {
        match found(&request, target) {
            Some(mut plan) => {
                let wheels = wheels(&plan, &request.published);
                if wheels.is_empty() || unread.is_some() || round == ROUNDS {
                    plan.warnings.extend(unchecked(&wheels, unread.as_ref()));
                    return Ok(Ok(plan));
                }
                match source.code(&wheels) {
                    Ok(code) => {
                        let read = wheels.iter().zip(code);
                        read.for_each(|(file, code)| request.published.add_code(file, code));
                    }
                    Err(error) => unread = Some(error),
                }
            }
            None if more => {
                more = ask(&mut request, &asked, batches * BATCH, source, &mut unread)?;
                batches += 1;
            }
            None => break,
        }
    }
    Ok(Err(refused(&request, target)))
}

/// The packages to query: those without a release in the tables, or without one in the requested versions.
fn asked(request: &PlanRequest) -> Vec<(String, VersionSpecifiers)> {
    let wants = request.wants.iter().map(|wanted| &wanted.want);
    let unknown = wants.filter_map(|want| {
        let specifiers: VersionSpecifiers = want.specifiers.parse().ok()?;
        let releases = catalogue::releases(&want.package, &PublishedReleases::default());
        let known = releases.iter().any(|release| specifiers.contains(&release.version));
        (!known).then(|| (want.package.clone(), specifiers))
    });
    unknown.collect()
}

/// Adds releases after the first `skip`; returns whether there were any.
fn ask(
    request: &mut PlanRequest,
    asked: &[(String, VersionSpecifiers)],
    skip: usize,
    source: &mut dyn ReleaseSource,
    unread: &mut Option<IndexError>,
) -> Result<bool, IndexError> {
    if asked.is_empty() || unread.is_some() {
        return Ok(false);
    }
    match source.releases(asked, skip, BATCH) {
        Ok(found) => {
            let added = found.into_iter().map(|(name, rows)| request.published.add(&name, rows));
            // Every package is added, not only the first.
            Ok(added.fold(false, |any, added| any | added))
        }
        Err(absent @ IndexError::Absent { .. }) => Err(absent),
        Err(error) => {
            *unread = Some(error);
            Ok(false)
        }
    }
}

/// The wheels of a plan that may contain CUDA libraries and were not read.
fn wheels(plan: &InstallPlan, published: &PublishedReleases) -> Vec<PlannedFile> {
    let pypi = &index("pypi").name;
    let packages = plan.packages.iter().filter(|package| {
        let wheel = package.origin == PackageOrigin::Wheel && package.index == *pypi;
        wheel && published.has(&package.name) && !TORCH.contains(&package.name.as_str())
    });
    let files = packages.filter_map(|package| package.files.first());
    let compiled = files.filter(|file| {
        let name = WheelName::parse(&file.name);
        let compiled = name.is_ok_and(|name| !name.platforms.iter().any(|tag| tag == "any"));
        compiled && file.url.is_some() && published.code(file).is_none()
    });
    compiled.cloned().collect()
}

/// A note about unread wheels, and the reason.
fn unchecked(wheels: &[PlannedFile], unread: Option<&IndexError>) -> Option<Fact<String>> {
    let error = unread?;
    let names: Vec<&str> = wheels.iter().map(|file| file.name.as_str()).collect();
    let text = match names[..] {
        [] => format!("releases outside of the tables were not queried: {error}"),
        _ => format!(
            "their CUDA and GPU requirements were not checked: {}: {error}",
            names.join(", ")
        ),
    };
    Some(Fact::new(text, index("pypi").url.clone()))
}
