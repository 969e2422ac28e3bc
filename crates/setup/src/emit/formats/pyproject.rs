//! `pyproject.toml` for uv, the same for all machines of a project: packages of one kind of machine have a marker.

use super::Format;
use crate::build::BuildSource;
use crate::emit::target::{environment, system};
use crate::emit::toml_text::{array, quote};
use crate::lock::added_by_lock;
use crate::uv::OLDEST;
use facts::{BuildRecipe, InstallPlan, PackageOrigin, PlanIndex, PlannedPackage};
use knowledge::pypi;
use std::fmt::Write as _;

pub(super) const FORMAT: Format = Format {
    name: "pyproject.toml",
    about: "the project of a uv environment; `uv sync` creates it.",
    write: |plan| Ok(write(plan)),
};

/// The name of the project, which is never a package.
pub(crate) const PROJECT: &str = "accelerator-stack";

/// The document, without its head.
pub(crate) fn write(plan: &InstallPlan) -> String {
    let mut text = format!(
        "[project]\nname = \"{PROJECT}\"\nversion = \"0\"\nrequires-python = {}\ndependencies = [\n",
        quote(&format!("=={}.*", plan.python))
    );
    for package in plan.packages.iter().filter(|package| !added_by_lock(package)) {
        let _ = writeln!(text, "    # {}", package.because);
        for requirement in requirements(plan, package) {
            let _ = writeln!(text, "    {},", quote(&requirement));
        }
    }
    text += "]\n\n[tool.uv]\npackage = false\n";
    let _ = writeln!(text, "required-version = {}", quote(&format!(">={OLDEST}")));
    text += "# A package comes from the first index that has it, and never from whichever has the highest version.\n";
    text += "index-strategy = \"first-index\"\n";
    text += "# A package that this machine cannot install is an error when the project is locked, not later.\n";
    let _ =
        writeln!(text, "required-environments = {}", array([environment(&plan.target).as_str()]));
    if plan.packages.iter().any(added_by_lock) {
        text += "# What the packages above need, as it was when the plan was locked.\nconstraint-dependencies = [\n";
        for package in plan.packages.iter().filter(|package| added_by_lock(package)) {
            let pin = format!("{}=={}", package.name, package.version);
            let _ = writeln!(text, "    {},", quote(&pin));
        }
        text += "]\n";
    }
    write_builds(&mut text, plan);
    write_sources(&mut text, plan);
    write_indexes(&mut text, plan);
    text
}

/// The requirements of a package: on the plan's kind of machine, and on others that have it too.
fn requirements(plan: &InstallPlan, package: &PlannedPackage) -> Vec<String> {
    let PlannedPackage { name, version, .. } = package;
    let wanted = || plan.wants.iter().find(|want| want.package == *name);
    let versions = match version.as_str() {
        // Versions that no table has are left to uv, within the request.
        "" => wanted().map(|want| want.specifiers.clone()).unwrap_or_default(),
        version => format!("=={version}"),
    };
    let Some(marker) = marker(plan, package) else {
        return vec![format!("{name}{versions}")];
    };
    let mut all = vec![format!("{name}{versions} ; {marker}")];
    if package.marker.is_none()
        && let Some(public) = pypi_version(plan, package)
    {
        all.push(format!("{name}=={public} ; {}", negated(system(&plan.target))));
    }
    all
}

/// The version that other systems install from PyPI, if this system's build comes from another index.
fn pypi_version<'a>(plan: &InstallPlan, package: &'a PlannedPackage) -> Option<&'a str> {
    index_of(plan, package).filter(|index| !index.flat)?;
    let unlabelled = || {
        let release = pypi::release(&package.name, &package.version)?;
        has_files(release, ELSEWHERE).then_some(package.version.as_str())
    };
    flavour_of(&package.version).or_else(unlabelled)
}

/// The public version of a torch build whose label is only its flavour: `2.10.0` of `2.10.0+cu128`. An extension's
/// label (`+cu12torch2.8cxx11abiTRUE`) does not count: it is built for one system only.
fn flavour_of(version: &str) -> Option<&str> {
    let (public, label) = version.split_once('+')?;
    let digits = label.strip_prefix("cu").unwrap_or_default();
    let cuda = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    (cuda || label == "cpu").then_some(public)
}

fn negated(system: &str) -> String {
    system.replace("==", "!=")
}

/// The marker of the machines that use this version of a package. `None` means all: the plan has no marker for it, and it
/// is not compiled, nor from an index of builds for one system, nor published for one system only.
fn marker(plan: &InstallPlan, package: &PlannedPackage) -> Option<String> {
    let of_system = index_of(plan, package).is_some()
        || recipe_of(package).is_some()
        || is_published_for_one(package);
    let system = system(&plan.target);
    match (&package.marker, of_system) {
        (Some(marker), true) if marker.contains("sys_platform") => Some(marker.clone()),
        (Some(marker), true) => Some(format!("{system} and ({marker})")),
        (Some(marker), false) => Some(marker.clone()),
        (None, true) => Some(system.to_owned()),
        (None, false) => None,
    }
}

/// Parts of file names that also run on other systems.
const ELSEWHERE: &[&str] = &["-any.whl", "macosx", ".tar.gz"];

/// Whether PyPI is known to have this release with files for Linux and none for macOS.
fn is_published_for_one(package: &PlannedPackage) -> bool {
    let release = pypi::release(&package.name, &package.version);
    release.is_some_and(|release| has_files(release, &["linux"]) && !has_files(release, ELSEWHERE))
}

/// Whether a file name of the release contains one of these parts.
fn has_files(release: &pypi::Release, parts: &[&str]) -> bool {
    release.files.iter().any(|file| parts.iter().any(|part| file.name.contains(part)))
}

/// The index named for this package; `None` for the default.
fn index_of<'a>(plan: &'a InstallPlan, package: &PlannedPackage) -> Option<&'a PlanIndex> {
    plan.indexes.iter().skip(1).find(|index| index.name == package.index)
}

fn recipe_of(package: &PlannedPackage) -> Option<&BuildRecipe> {
    match &package.origin {
        PackageOrigin::Build(recipe) => Some(recipe),
        PackageOrigin::Wheel => None,
    }
}

/// Each built package with its recipe.
fn builds(plan: &InstallPlan) -> impl Iterator<Item = (&PlannedPackage, &BuildRecipe)> {
    plan.packages.iter().filter_map(|package| Some((package, recipe_of(package)?)))
}

fn write_builds(text: &mut String, plan: &InstallPlan) {
    if builds(plan).next().is_none() {
        return;
    }
    text.push_str("# These are compiled against the torch of this environment, which an isolated build would not see.\n");
    let names = builds(plan).map(|(package, _)| package.name.as_str());
    let _ = writeln!(text, "no-build-isolation-package = {}", array(names));
    if builds(plan).any(|(_, recipe)| !recipe.env.is_empty()) {
        text.push_str("\n[tool.uv.extra-build-variables]\n");
    }
    for (package, recipe) in builds(plan).filter(|(_, recipe)| !recipe.env.is_empty()) {
        let variables: Vec<_> =
            recipe.env.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
        let _ = writeln!(text, "{} = {{ {} }}", package.name, variables.join(", "));
    }
    for (package, recipe) in builds(plan) {
        text.push_str("\n# Known beforehand, so that nothing has to be compiled to learn it.\n[[tool.uv.dependency-metadata]]\n");
        let _ = writeln!(text, "name = {}", quote(&package.name));
        let _ = writeln!(text, "version = {}", quote(&package.version));
        let _ =
            writeln!(text, "requires-dist = {}", array(recipe.requires.iter().map(String::as_str)));
    }
}

fn write_sources(text: &mut String, plan: &InstallPlan) {
    let sources: Vec<_> =
        plan.packages.iter().filter_map(|package| source(plan, package)).collect();
    if sources.is_empty() {
        return;
    }
    text.push_str("\n# Each of these comes from the index that it names, and nothing else comes from there.\n[tool.uv.sources]\n");
    text.push_str(&sources.concat());
}

/// The line that binds a package to its index or repository.
fn source(plan: &InstallPlan, package: &PlannedPackage) -> Option<String> {
    let marker = quote(&marker(plan, package)?);
    let name = &package.name;
    let repository = recipe_of(package).and_then(|recipe| BuildSource::git(&recipe.requirement));
    if let Some(BuildSource::Git { url, reference }) = repository {
        let rev = reference.map(|reference| format!(", rev = {}", quote(reference)));
        let (url, rev) = (quote(url), rev.unwrap_or_default());
        return Some(format!("{name} = [{{ git = {url}{rev}, marker = {marker} }}]\n"));
    }
    let index = quote(&index_of(plan, package)?.name);
    Some(format!("{name} = [{{ index = {index}, marker = {marker} }}]\n"))
}

fn write_indexes(text: &mut String, plan: &InstallPlan) {
    for (nth, index) in plan.indexes.iter().enumerate() {
        let PlanIndex { name, url, flat, .. } = index;
        let _ = write!(text, "\n[[tool.uv.index]]\nname = {}\nurl = {}\n", quote(name), quote(url));
        text.push_str(if nth == 0 { "default = true\n" } else { "explicit = true\n" });
        if *flat {
            text.push_str("format = \"flat\"\n");
        }
    }
}
