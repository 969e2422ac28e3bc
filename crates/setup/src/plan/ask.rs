//! Planning with an index: releases that no table has are asked for, and the wheels of a plan are read before it is given.

use super::{catalogue, found, refused};
use crate::Request;
use crate::index::{IndexError, Published, Source};
use crate::wheel::WheelName;
use facts::{Fact, PackageOrigin, Plan, PlanTarget, PlannedFile, Refusal};
use knowledge::indexes::index;
use pep440_rs::VersionSpecifiers;

/// Releases of a package that are read at once, newest first.
const BATCH: usize = 8;
/// How often more releases, or the wheels of another choice, are read: a wheel can have hundreds of megabytes.
const ROUNDS: usize = 16;
/// Their CUDA builds are in the tables: PyPI's build is one of several of the same version.
const TORCH: [&str; 4] = ["torch", "torchvision", "torchaudio", "triton"];

/// A plan or a refusal, as [`plan`] has them, by the tables and an index. Only what the tables do not have is asked for. What
/// could not be read becomes a warning of the plan.
///
/// # Errors
/// [`IndexError::Absent`] for a package that the index does not have.
pub fn plan_with(
    request: &Request,
    target: &PlanTarget,
    source: &mut dyn Source,
) -> Result<Result<Plan, Box<Refusal>>, IndexError> {
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

/// The packages to ask the index for: those without a release in the tables, or without one in the versions asked for.
fn asked(request: &Request) -> Vec<(String, VersionSpecifiers)> {
    let wants = request.wants.iter().map(|wanted| &wanted.want);
    let unknown = wants.filter_map(|want| {
        let specifiers: VersionSpecifiers = want.specifiers.parse().ok()?;
        let releases = catalogue::releases(&want.package, &Published::default());
        let known = releases.iter().any(|release| specifiers.contains(&release.version));
        (!known).then(|| (want.package.clone(), specifiers))
    });
    unknown.collect()
}

/// Adds releases after the first `skip`; whether there were any.
fn ask(
    request: &mut Request,
    asked: &[(String, VersionSpecifiers)],
    skip: usize,
    source: &mut dyn Source,
    unread: &mut Option<IndexError>,
) -> Result<bool, IndexError> {
    if asked.is_empty() || unread.is_some() {
        return Ok(false);
    }
    match source.releases(asked, skip, BATCH) {
        Ok(found) => {
            let added = found.into_iter().map(|(name, rows)| request.published.add(&name, rows));
            // Each is added, not the first alone.
            Ok(added.fold(false, |any, added| any | added))
        }
        Err(absent @ IndexError::Absent { .. }) => Err(absent),
        Err(error) => {
            *unread = Some(error);
            Ok(false)
        }
    }
}

/// The wheels of a plan that may hold CUDA libraries and were not read.
fn wheels(plan: &Plan, published: &Published) -> Vec<PlannedFile> {
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

/// A note of what was not read, and why.
fn unchecked(wheels: &[PlannedFile], unread: Option<&IndexError>) -> Option<Fact<String>> {
    let error = unread?;
    let names: Vec<&str> = wheels.iter().map(|file| file.name.as_str()).collect();
    let text = match names[..] {
        [] => format!("releases that no table has were not asked for: {error}"),
        _ => format!(
            "not checked for the CUDA and the GPUs they need: {}: {error}",
            names.join(", ")
        ),
    };
    Some(Fact::new(text, index("pypi").url.clone()))
}
