//! Repairs an environment: compares the installed files with RECORD, and restores those that differ from the plan's
//! wheels.

use super::places::{self, ApplyPaths};
use super::program::Programs;
use super::steps::{Outcome, Steps, count};
use super::{ApplyError, ApplyOptions, Progress, download, preconditions};
use crate::wheel;
use facts::CompactCollect;
use facts::{AppliedPackage, Dist, InstallPlan, PackageOrigin, PlannedPackage};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// Damaged files by package. A package without a RECORD counts as damaged as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Damage {
    files: BTreeMap<String, Vec<String>>,
    whole: BTreeSet<String>,
}

impl Damage {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.whole.is_empty()
    }

    fn has(&self, package: &str) -> bool {
        self.files.contains_key(package) || self.whole.contains(package)
    }

    /// `3 files of numpy, all of torch`.
    pub(super) fn words(&self) -> String {
        let files = self.files.iter().map(|(name, files)| match files.as_slice() {
            [file] => format!("{file} of {name}"),
            files => format!("{} files of {name}", files.len()),
        });
        let whole = self.whole.iter().map(|name| format!("all of {name}"));
        files.chain(whole).collect::<Vec<_>>().join(", ")
    }
}

/// The RECORD of a package: its site-packages folder and the lines of its files.
struct PackageRecord {
    package: String,
    site: PathBuf,
    files: wheel::Lines,
}

/// Compares every file of these packages with RECORD: existence, size and hash. A file listed by several packages is
/// correct if it matches any of them.
pub(super) fn verify(environment: &Path, packages: &[AppliedPackage]) -> Damage {
    let mut harm = Damage::default();
    let mut recorded = Vec::new();
    let found = records(environment);
    for package in packages {
        match found.get(&Dist::normalise(&package.name)).and_then(|record| read(record)) {
            Some((site, files)) => {
                recorded.push(PackageRecord { package: package.name.clone(), site, files });
            }
            None => drop(harm.whole.insert(package.name.clone())),
        }
    }
    let all: Vec<(usize, &String)> = recorded
        .iter()
        .enumerate()
        .flat_map(|(index, it)| it.files.paths().map(move |path| (index, path)))
        .collect();
    let jobs = thread::available_parallelism().map_or(1, usize::from).min(8);
    let differs = |(index, path): &(usize, &String)| {
        let PackageRecord { site, files, .. } = &recorded[*index];
        !files.is_at(path, &site.join(path))
    };
    // Interleaved, so that each thread gets its share of the large files.
    let different: Vec<(usize, &String)> = thread::scope(|scope| {
        let part = |first: usize| {
            all.iter()
                .skip(first)
                .step_by(jobs)
                .filter(|it| differs(it))
                .copied()
                .collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..jobs).map(|first| scope.spawn(move || part(first))).collect();
        let joined = parts
            .into_iter()
            .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.flatten().collect()
    });
    for (index, path) in different {
        let it = &recorded[index];
        let another = |other: &PackageRecord| {
            other.package != it.package
                && other.files.has(path)
                && other.files.is_at(path, &other.site.join(path))
        };
        if !recorded.iter().any(another) {
            harm.files.entry(it.package.clone()).or_default().push(path.clone());
        }
    }
    harm
}

/// The RECORD of each package by normalized name.
fn records(environment: &Path) -> BTreeMap<String, PathBuf> {
    let sites = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    let entries = sites.filter_map(|site| fs::read_dir(site.path().join("site-packages")).ok());
    entries
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (name, _) = name.strip_suffix(".dist-info")?.split_once('-')?;
            Some((Dist::normalise(name), entry.path().join("RECORD")))
        })
        .compact_map()
}

fn read(record: &Path) -> Option<(PathBuf, wheel::Lines)> {
    let files = wheel::Lines::parse(&fs::read_to_string(record).ok()?);
    let site = record.parent()?.parent()?.to_owned();
    // Truncated or empty, because RECORD lists itself.
    let own = record.strip_prefix(&site).ok()?.to_string_lossy().into_owned();
    files.has(&own).then_some((site, files))
}

/// The inputs of a repair.
pub(super) struct Repair<'a> {
    pub(super) plan: &'a InstallPlan,
    pub(super) options: &'a ApplyOptions<'a>,
    pub(super) places: &'a ApplyPaths,
    pub(super) programs: &'a Programs<'a>,
}

impl Repair<'_> {
    /// Restores damaged files from the plan's wheels, verified by hash, from the cache or downloaded again.
    pub(super) fn run(
        &self,
        packages: &[AppliedPackage],
        harm: &Damage,
        steps: &mut Steps,
    ) -> Result<(), ApplyError> {
        let is_harmed = |package: &&PlannedPackage| harm.has(&package.name);
        let plan = InstallPlan {
            packages: self.plan.packages.iter().filter(is_harmed).cloned().collect(),
            ..self.plan.clone()
        };
        let built = |package: &&PlannedPackage| matches!(package.origin, PackageOrigin::Build(_));
        if let Some(package) = plan.packages.iter().find(built) {
            return Err(refused(
                format!("{} was built on this machine, and its wheel was not stored", package.name),
                "apply without --repair: it builds and replaces the whole environment",
            ));
        }
        // A repair is independent of an earlier apply's backup.
        let options = ApplyOptions { discard_old: true, ..*self.options };
        let (ready, fetch) = steps.run("preconditions", None, |_| {
            let (ready, fetch) =
                preconditions::check(&plan, &options, self.places, self.programs, true)?;
            let words = ready.words();
            Ok(((ready, fetch), 0, words))
        })?;
        let made = self.places.staging();
        let (_, mut layout) =
            steps.run("download", Some(ready.to_fetch), |progress: &mut dyn Progress| {
                download::run(&ready.files, options.cache, fetch, (&made, &plan.python), progress)
            })?;
        layout.install()?;
        steps.run("repair", None, |_| self.write(&made, packages, harm))?;
        places::remove(&made)
    }

    /// Replaces each file atomically: a concurrent reader sees the old one or the new one.
    fn write(&self, made: &Path, packages: &[AppliedPackage], harm: &Damage) -> Outcome<()> {
        let whole = records(made);
        let (mut files, mut bytes) = (0_usize, 0);
        for package in packages.iter().filter(|package| harm.has(&package.name)) {
            let Some((site, lines)) =
                whole.get(&Dist::normalise(&package.name)).and_then(|it| read(it))
            else {
                return Err(refused(
                    format!("{} has no RECORD", package.file),
                    "make the plan again",
                ));
            };
            let site_here = self.places.venv.join(site.strip_prefix(made).unwrap_or(&site));
            let wanted: Vec<String> = match harm.files.get(&package.name) {
                Some(files) => files.clone(),
                None => lines
                    .paths()
                    .filter(|path| !lines.is_at(path, &site_here.join(path)))
                    .cloned()
                    .collect(),
            };
            for path in wanted {
                let (from, to) = (site.join(&path), site_here.join(&path));
                let folder = to.parent().unwrap_or(&site_here);
                fs::create_dir_all(folder).map_err(ApplyError::io(folder))?;
                let beside =
                    tempfile::NamedTempFile::new_in(folder).map_err(ApplyError::io(folder))?;
                // The copy has the mode of its source, since scripts are executable.
                bytes += fs::copy(&from, beside.path()).map_err(ApplyError::io(&from))?;
                beside.as_file().sync_all().map_err(ApplyError::io(&to))?;
                if to.is_dir() {
                    places::remove(&to)?;
                }
                beside.persist(&to).map_err(|error| ApplyError::io(&to)(error.error))?;
                files += 1;
            }
        }
        let harmed: Vec<AppliedPackage> =
            packages.iter().filter(|it| harm.has(&it.name)).cloned().collect();
        let left = verify(&self.places.venv, &harmed);
        match left.is_empty() {
            true => {
                Ok(((), bytes, format!("{} reinstalled: {}", count(files, "file"), harm.words())))
            }
            false => Err(refused(
                format!("still not as recorded: {}", left.words()),
                "apply without --repair: it builds and replaces the whole environment",
            )),
        }
    }
}

fn refused(what: String, hint: &str) -> ApplyError {
    ApplyError::Unmet { unmet: vec![super::UnmetPrecondition::new(what, hint)] }
}

/// The environment was not created from this plan, so its wheels do not tell what belongs there.
pub(super) fn not_ours(venv: &Path) -> ApplyError {
    refused(
        format!(
            "{} differs from this plan: a package was added, removed or changed",
            venv.display()
        ),
        "--repair restores files that a plan installed; apply without it to replace the whole environment",
    )
}
