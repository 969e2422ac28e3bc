//! What has to hold before anything is made, each as a sentence with what to do. All of them are looked at, so that
//! nobody mends one only to hear of the next.

mod disk;
mod files;
mod network;
mod tools;

use super::download::Chosen;
use super::places::Places;
use super::program::Programs;
use super::{ApplyError, ApplyOptions, Unmet, environment};
use crate::fetch::Fetch;
use crate::target_of;
use facts::{Machine, PackageOrigin, Plan, PlannedPackage};
use std::path::PathBuf;
use tools::Building;

/// What the preconditions found, which the steps work with.
#[derive(Debug)]
pub(super) struct Ready {
    /// The interpreter that the environment is made from.
    pub(super) python: PathBuf,
    /// One file for each package that has one.
    pub(super) files: Vec<Chosen>,
    /// Bytes that have to be fetched, as far as the plan tells sizes.
    pub(super) to_fetch: u64,
    /// Bytes that the work needs for a while on the file systems it uses.
    pub(super) disk: u64,
    /// How sources are built, where any are.
    pub(super) building: Building,
}

/// Looks at all of them, and makes an empty environment of the plan's Python in the folder of the work. Where all hold and something is to be
/// `fetched`, that has begun.
pub(super) fn check(
    plan: &Plan,
    options: &ApplyOptions,
    places: &Places,
    programs: &Programs,
    fetched: bool,
) -> Result<(Ready, Option<Fetch>), ApplyError> {
    let mut unmet: Vec<Unmet> = this_machine(plan, options.machine).into_iter().collect();
    if places.old.exists() && !options.discard_old {
        unmet.push(Unmet::new(
            format!("{} is kept from an earlier apply, and only one is", places.old.display()),
            "look whether anything in it is needed, and add --discard-old",
        ));
    }
    let python = python(plan, places, programs).map_err(|it| unmet.push(it)).ok();
    let files = files::choose(plan, &mut unmet);
    let missing: Vec<&Chosen> =
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
        (Some(python), true) => Ok((Ready { python, files, to_fetch, disk, building }, fetch)),
        _ => Err(ApplyError::Unmet { unmet }),
    }
}

/// The packages of a plan that are built from source.
pub(super) fn builds(plan: &Plan) -> impl Iterator<Item = (&PlannedPackage, &facts::BuildRecipe)> {
    plan.packages.iter().filter_map(|package| match &package.origin {
        PackageOrigin::Build(recipe) => Some((package, recipe)),
        PackageOrigin::Wheel => None,
    })
}

/// A plan is for one system and one processor.
fn this_machine(plan: &Plan, machine: &Machine) -> Option<Unmet> {
    let here = target_of(machine);
    let here = here.as_ref().map_or(("an unknown system", "an unknown processor"), |it| {
        (it.os.as_str(), it.arch.as_str())
    });
    let target = (plan.target.os.as_str(), plan.target.arch.as_str());
    (here != target).then(|| {
        Unmet::new(
            format!(
                "the plan is for {} on {}, and this is {} on {}",
                target.0, target.1, here.0, here.1
            ),
            "make a plan for this machine: firstlight plan --machine this",
        )
    })
}

/// The interpreter of the plan's release, outside of any environment, by an environment that uv makes of it.
fn python(plan: &Plan, places: &Places, programs: &Programs) -> Result<PathBuf, Unmet> {
    let prompt = places.venv.file_name().unwrap_or_default().to_string_lossy();
    environment::make(&places.made(), &plan.python, &prompt, programs).map_err(|error| {
        let error = error.to_string();
        let first = error.lines().next().unwrap_or_default();
        Unmet::new(
            format!("uv finds no Python {} on this machine: {first}", plan.python),
            format!("install it: uv python install {}", plan.python),
        )
    })
}

impl Ready {
    /// One line.
    pub(super) fn words(&self) -> String {
        let builds = match self.building.count {
            0 => String::new(),
            count => format!(", {count} sources to build with {} jobs at once", self.building.jobs),
        };
        // An index need not tell sizes, and what is not known is not counted.
        let told = self.files.iter().all(|file| file.bytes.is_some());
        let least = if told { "" } else { "at least " };
        let (fetch, disk) = (mib(self.to_fetch), mib(self.disk));
        let s = if self.files.len() == 1 { "" } else { "s" };
        format!(
            "{} file{s}, {least}{fetch} to fetch, {least}{disk} of disk{builds}",
            self.files.len()
        )
    }
}

/// Bytes as a person reads them.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
