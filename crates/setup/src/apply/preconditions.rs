//! Preconditions, each reported as a sentence with what to do. All of them are checked, so that they can be fixed
//! together.

mod disk;
mod files;
mod network;
mod tools;

use super::download::SelectedFile;
use super::places::ApplyPaths;
use super::program::Programs;
use super::{ApplyError, ApplyOptions, UnmetPrecondition, environment};
use crate::fetch::Fetch;
use crate::target_of;
use crate::uv::is_full_disk;
use facts::{InstallPlan, Machine, PackageOrigin, PlannedPackage};
use std::path::PathBuf;
use tools::BuildSettings;

/// Results of the preconditions, for the steps.
#[derive(Debug)]
pub(super) struct PreconditionResults {
    /// The interpreter from which the environment is made.
    pub(super) python: PathBuf,
    /// The selected file of each package that has one.
    pub(super) files: Vec<SelectedFile>,
    /// Bytes to download, as far as the plan has sizes.
    pub(super) to_fetch: u64,
    /// Temporary disk space on the file systems used.
    pub(super) disk: u64,
    /// How sources are built, if there are any.
    pub(super) building: BuildSettings,
}

/// Checks all of them, and creates an empty environment of the plan's Python in the work folder. If all hold and
/// something has to be downloaded, the download has started.
pub(super) fn check(
    plan: &InstallPlan,
    options: &ApplyOptions,
    places: &ApplyPaths,
    programs: &Programs,
    fetched: bool,
) -> Result<(PreconditionResults, Option<Fetch>), ApplyError> {
    let mut unmet: Vec<UnmetPrecondition> =
        this_machine(plan, options.machine).into_iter().collect();
    if places.old.exists() && !options.discard_old {
        unmet.push(UnmetPrecondition::new(
            format!(
                "{} already exists from an earlier apply; only one backup is kept",
                places.old.display()
            ),
            "check whether it is still needed, and add --discard-old",
        ));
    }
    let python = python(plan, places, programs).map_err(|it| unmet.push(it)).ok();
    let files = files::choose(plan, &mut unmet);
    let missing: Vec<&SelectedFile> =
        files.iter().filter(|file| !file.path(options.cache).is_file()).collect();
    let to_fetch = missing.iter().filter_map(|file| file.bytes).sum();
    let disk = disk::check(&files, to_fetch, options.cache, places, &mut unmet)?;
    let building = tools::check(plan, options.machine, python.as_deref(), &mut unmet);
    let asked = network::addresses(plan, &missing);
    let wanted = match fetched && unmet.is_empty() {
        true => files.iter().map(|file| file.wanted(options.cache)).collect(),
        false => Vec::new(),
    };
    let mut fetch = None;
    if let (Some(python), false) = (&python, asked.is_empty() && wanted.is_empty()) {
        let urls: Vec<String> = asked.values().cloned().collect();
        let told = places.work.join("fetch.json");
        let started = Fetch::start(programs.python(python)?, &told, &urls, &wanted);
        let mut started = started.map_err(ApplyError::io(python))?;
        unmet.extend(network::silent(&asked, started.answers().map_err(ApplyError::io(python))?));
        fetch = Some(started);
    }
    match (python, unmet.is_empty()) {
        (Some(python), true) => {
            Ok((PreconditionResults { python, files, to_fetch, disk, building }, fetch))
        }
        _ => Err(ApplyError::Unmet { unmet }),
    }
}

/// The packages of a plan that are built from source.
pub(super) fn builds(
    plan: &InstallPlan,
) -> impl Iterator<Item = (&PlannedPackage, &facts::BuildRecipe)> {
    plan.packages.iter().filter_map(|package| match &package.origin {
        PackageOrigin::Build(recipe) => Some((package, recipe)),
        PackageOrigin::Wheel => None,
    })
}

/// A plan is for one system and one processor architecture.
fn this_machine(plan: &InstallPlan, machine: &Machine) -> Option<UnmetPrecondition> {
    let here = target_of(machine);
    let here = here.as_ref().map_or(("an unknown system", "an unknown processor"), |it| {
        (it.os.as_str(), it.arch.as_str())
    });
    let target = (plan.target.os.as_str(), plan.target.arch.as_str());
    (here != target).then(|| {
        UnmetPrecondition::new(
            format!(
                "the plan is for {} on {}, and this is {} on {}",
                target.0, target.1, here.0, here.1
            ),
            "make a plan for this machine: firstlight plan --machine this",
        )
    })
}

/// The interpreter of the plan's release, outside of any environment, found by letting uv make an environment from it.
fn python(
    plan: &InstallPlan,
    places: &ApplyPaths,
    programs: &Programs,
) -> Result<PathBuf, UnmetPrecondition> {
    let prompt = places.venv.file_name().unwrap_or_default().to_string_lossy();
    environment::make(&places.staging(), &plan.python, &prompt, programs).map_err(|error| {
        let error = error.to_string();
        let first = error.lines().next().unwrap_or_default();
        if let Some(full) = error.lines().find(|line| is_full_disk(line)) {
            return UnmetPrecondition::new(
                format!("{} cannot be made: {}", places.staging().display(), full.trim()),
                "free some space there, or name a folder on another disk with --venv",
            );
        }
        UnmetPrecondition::new(
            format!("uv finds no Python {} on this machine: {first}", plan.python),
            format!(
                "install it: {}",
                crate::python::install(Some(programs.uv_path()), &plan.python)
            ),
        )
    })
}

impl PreconditionResults {
    /// A one-line summary.
    pub(super) fn words(&self) -> String {
        let builds = match self.building.count {
            0 => String::new(),
            count => format!(", {count} sources to build with {} jobs at once", self.building.jobs),
        };
        // An index may lack sizes; unknown ones are not counted.
        let told = self.files.iter().all(|file| file.bytes.is_some());
        let least = if told { "" } else { "at least " };
        let (fetch, disk) = (mib(self.to_fetch), mib(self.disk));
        let s = if self.files.len() == 1 { "" } else { "s" };
        format!(
            "{} file{s}, {least}{fetch} to download, {least}{disk} of disk space{builds}",
            self.files.len()
        )
    }
}

/// Bytes in a readable unit.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
