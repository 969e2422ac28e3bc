//! Completes a plan with dependencies, files and hashes, as uv resolves them.

mod cuda;
mod error;
mod interpreter;
mod sizes;

pub use error::LockError;

use crate::emit::pylock::{Document, File, Package};
use crate::emit::{has_hashes, is_cloned, pyproject, python_platform};
use crate::uv::Uv;
use facts::CompactSort;
use facts::{InstallPlan, PackageOrigin, PlanIndex, PlannedFile, PlannedPackage};
use std::fs;
use std::path::Path;
use std::thread;

/// The reason of a package that the planner did not select.
const NEEDED: &str = "a chosen package needs it";

/// Whether a package was added when the plan was locked.
pub fn added_by_lock(package: &PlannedPackage) -> bool {
    package.because == NEEDED
}

/// The plan with its complete closure: each package with the files that the plan's machine may install and their
/// hashes. uv queries the plan's indexes for that machine. Nothing is built, and only metadata is downloaded, except a
/// wheel whose page publishes no hash (a release page), which uv downloads once to its cache. A cloned source has no
/// file.
///
/// # Errors
/// If the packages exclude each other, one has no file for the machine, or an index does not answer.
pub fn lock(plan: &InstallPlan, uv: &Uv) -> Result<InstallPlan, LockError> {
    let mut plan = plan.clone();
    plan.packages.retain(|package| !added_by_lock(package));
    let (wheels, builds): (Vec<_>, Vec<_>) =
        plan.packages.iter().cloned().partition(|package| package.origin == PackageOrigin::Wheel);

    // A built package needs its dependencies as wheels. It is not resolved together with them, because then uv would
    // have to be allowed to build, and would build any package without a wheel.
    let mut resolved = InstallPlan { packages: wheels, ..plan.clone() };
    let mut built = InstallPlan { packages: builds.clone(), ..plan.clone() };
    let python = interpreter::find(uv, std::env::var_os("PATH").as_deref());
    let resolver = Resolver { uv, python: python.as_deref(), patient: true };
    // Both wait for indexes.
    let (needed, filled) = thread::scope(|scope| {
        let filled = scope.spawn(|| fill_sources(&mut built, resolver));
        let needed = fill(&mut resolved, resolver, &builds);
        (needed, filled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let needed = needed?;
    filled?;
    plan.packages = in_order(&plan.packages, resolved.packages, needed, built.packages);
    if let Some(python) = python {
        sizes::ask(&mut plan, &python);
    }
    plan.locked = plan.packages.iter().all(has_hashes);
    plan.warnings.extend(cuda::newer_than_driver(&plan));
    Ok(plan)
}

/// Checks that the plan's default index has these packages, without their dependencies.
///
/// # Errors
/// [`LockError::Absent`] for a missing one; others as for [`lock`].
pub fn exist(plan: &InstallPlan, packages: Vec<PlannedPackage>, uv: &Uv) -> Result<(), LockError> {
    let python = interpreter::find(uv, std::env::var_os("PATH").as_deref());
    let resolver = Resolver { uv, python: python.as_deref(), patient: false };
    let asked = InstallPlan { packages, ..plan.clone() };
    resolver.resolve(&asked, &[], &["--no-deps"]).map(drop)
}

/// The order of the plan, with dependencies before the first built package.
fn in_order(
    order: &[PlannedPackage],
    wheels: Vec<PlannedPackage>,
    needed: Vec<PlannedPackage>,
    built: Vec<PlannedPackage>,
) -> Vec<PlannedPackage> {
    let mut filled: Vec<_> = wheels.into_iter().chain(built).collect();
    let place = |package: &PlannedPackage| order.iter().position(|one| one.name == package.name);
    filled.compact_sort_by_key(place);
    let first_build = filled.iter().position(|package| package.origin != PackageOrigin::Wheel);
    let at = first_build.unwrap_or(filled.len());
    filled.splice(at..at, needed);
    filled
}

/// Adds the files of each wheel, and returns the additional packages.
fn fill(
    plan: &mut InstallPlan,
    resolver: Resolver,
    builds: &[PlannedPackage],
) -> Result<Vec<PlannedPackage>, LockError> {
    let requires: Vec<&str> = builds.iter().filter_map(requirements).flatten().collect();
    let document = resolver.resolve(plan, &requires, &["--no-build"])?;
    let default = plan.indexes.first().cloned();
    let mut needed = Vec::new();
    for package in document.packages {
        let files = files(package.wheels.iter());
        let version = package.version.clone().unwrap_or_default();
        if files.is_empty() {
            return Err(LockError::NoFile { package: package.name, version });
        }
        match plan.packages.iter_mut().find(|planned| planned.name == package.name) {
            Some(planned) => {
                planned.version = version;
                planned.files = files;
            }
            // A built package that another one needs is not a wheel of the plan.
            None if builds.iter().any(|build| build.name == package.name) => {}
            None => needed.push(dependency(&package, version, files, default.as_ref())),
        }
    }
    Ok(needed)
}

fn dependency(
    package: &Package,
    version: String,
    files: Vec<PlannedFile>,
    index: Option<&PlanIndex>,
) -> PlannedPackage {
    PlannedPackage {
        name: package.name.clone(),
        version,
        // Every other index is explicit: packages that do not name one come from the default.
        index: index.map(|index| index.name.clone()).unwrap_or_default(),
        because: NEEDED.to_owned(),
        origin: PackageOrigin::Wheel,
        marker: None,
        files,
        source: index.map(|index| index.url.clone()).unwrap_or_default(),
    }
}

/// Adds the archive of each package that is built from one.
fn fill_sources(plan: &mut InstallPlan, resolver: Resolver) -> Result<(), LockError> {
    let archived: Vec<_> = plan.packages.iter().filter(|one| !is_cloned(one)).cloned().collect();
    if archived.is_empty() {
        return Ok(());
    }
    let archived = InstallPlan { packages: archived, ..plan.clone() };
    // With `--no-deps` and known metadata uv has no reason to build.
    let document = resolver.resolve(&archived, &[], &["--no-deps"])?;
    for package in document.packages {
        let Some(planned) = plan.packages.iter_mut().find(|one| one.name == package.name) else {
            continue;
        };
        planned.files = files(package.sdist.iter());
        if planned.files.is_empty() {
            let version = package.version.unwrap_or_default();
            return Err(LockError::NoFile { package: package.name, version });
        }
    }
    Ok(())
}

fn requirements(package: &PlannedPackage) -> Option<impl Iterator<Item = &str>> {
    let PackageOrigin::Build(recipe) = &package.origin else { return None };
    Some(recipe.requires.iter().chain(&recipe.build_requires).map(String::as_str))
}

/// uv, and the interpreter for resolving, if known.
#[derive(Clone, Copy)]
struct Resolver<'a> {
    uv: &'a Uv,
    python: Option<&'a Path>,
    /// Whether uv retries when the network does not answer.
    patient: bool,
}

impl Resolver<'_> {
    /// uv's resolution of the plan's packages and additional requirements.
    fn resolve(
        &self,
        plan: &InstallPlan,
        beside: &[&str],
        options: &[&str],
    ) -> Result<Document, LockError> {
        let Self { uv, python, patient } = *self;
        let kept = tempfile::tempdir().map_err(LockError::Folder)?;
        let folder = kept.path();
        let project = folder.join("pyproject.toml");
        let others = folder.join("requires.in");
        fs::write(&project, pyproject::write(plan)).map_err(LockError::Folder)?;
        fs::write(&others, beside.join("\n")).map_err(LockError::Folder)?;
        let mut command = uv.command();
        command
            .current_dir(folder)
            .args(["pip", "compile", "pyproject.toml", "requires.in", "--quiet", "--no-header"])
            .args(["--format", "pylock.toml", "--python-version", &plan.python])
            .args(["--python-platform", &python_platform(&plan.target)])
            .args(default_index(plan))
            .args(options);
        if let Some(python) = python {
            command.arg("--python").arg(python);
        }
        if !patient {
            command.env("UV_HTTP_RETRIES", "0").env("UV_HTTP_TIMEOUT", "5");
        }
        let output = command
            .output()
            .map_err(|source| LockError::Start { program: uv.program.clone(), source })?;
        if !output.status.success() {
            return Err(error::translate(&String::from_utf8_lossy(&output.stderr), plan));
        }
        toml::from_str(&String::from_utf8_lossy(&output.stdout)).map_err(|error| {
            LockError::Answer { version: uv.version.to_string(), what: error.message().to_owned() }
        })
    }
}

/// uv reads the indexes that packages name from the project, but not the default one: that is configuration, which is
/// disabled.
fn default_index(plan: &InstallPlan) -> Vec<&str> {
    match plan.indexes.first() {
        Some(PlanIndex { url, flat: false, .. }) => vec!["--default-index", url],
        Some(PlanIndex { url, flat: true, .. }) => vec!["--no-index", "--find-links", url],
        None => vec!["--no-index"],
    }
}

fn files<'a>(files: impl Iterator<Item = &'a File>) -> Vec<PlannedFile> {
    let name = |file: &File| {
        let url = file.url.as_deref().unwrap_or_default();
        let last = url.rsplit('/').next().unwrap_or_default();
        // The plus of a local version is percent-encoded in an address.
        file.name.clone().unwrap_or_else(|| last.replace("%2B", "+").replace("%2b", "+"))
    };
    files
        .map(|file| PlannedFile {
            name: name(file),
            url: file.url.clone(),
            sha256: file.hashes.sha256.clone(),
            bytes: file.size,
        })
        .collect()
}
