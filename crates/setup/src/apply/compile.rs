//! Builds the plan's source packages one after another: each is built, opened, judged and then installed.

use super::journal::{Journal, JournalEntry, hex};
use super::preconditions::PreconditionResults;
use super::steps::Outcome;
use super::{ApplyError, Work, judge, switch};
use crate::build::{self, BuildError, BuildSource, BuiltWheel, WheelBuild};
use crate::wheel::{self, Layout};
use facts::{AppliedBuild, AppliedPackage, BuildRecipe, PlannedPackage};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Builds and installs one package. The wheel of an interrupted apply is used if it is unchanged.
pub(super) fn run(
    work: &Work,
    (package, recipe): (&PlannedPackage, &BuildRecipe),
    ready: &PreconditionResults,
    journal: &mut Journal,
    layout: &mut Layout,
) -> Outcome<AppliedPackage> {
    let kept = journal.built(&package.name).and_then(|(file, sha256, build)| {
        let path = PathBuf::from(file);
        (self::sha256(&path).ok()? == sha256).then(|| (path, sha256.to_owned(), build.clone()))
    });
    let when = if kept.is_some() { "was built before" } else { "was built" };
    let (path, sha256, build) = match kept {
        Some(kept) => kept,
        None => build_wheel(work, (package, recipe), ready, journal)?,
    };
    let places = work.places;
    let environment = places.staging();
    let opened = wheel::unpack(&path, &environment, &work.plan.python)?;
    let version = opened.name.version.clone();
    layout.add(vec![opened])?;
    judge::run(&environment, work.inspect)?;
    layout.install()?;
    let (log, kept_log) =
        (places.built().join(&package.name).join("build.log"), environment.join(&build.log));
    let copied = fs::create_dir_all(kept_log.parent().unwrap_or(&environment))
        .and_then(|()| fs::copy(&log, &kept_log));
    copied.map_err(ApplyError::io(&kept_log))?;
    let applied = AppliedPackage {
        name: package.name.clone(),
        version,
        file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        sha256,
        bytes: path.metadata().map_err(ApplyError::io(&path))?.len(),
        fetched_bytes: 0,
        build: Some(build),
    };
    let words = format!("{} {when}", applied.file);
    Ok((applied, 0, words))
}

fn build_wheel(
    work: &Work,
    (package, recipe): (&PlannedPackage, &BuildRecipe),
    ready: &PreconditionResults,
    journal: &mut Journal,
) -> Result<(PathBuf, String, AppliedBuild), ApplyError> {
    let Work { plan, places, .. } = *work;
    let archive = ready.files.iter().find(|file| file.package == package.name);
    let archive = archive.map(|source| source.path(work.options.cache));
    let source = archive.as_deref().map(BuildSource::Archive);
    let source = source.or_else(|| BuildSource::git(&recipe.requirement)).ok_or_else(|| {
        BuildError::Source {
            package: package.name.clone(),
            what: "the plan has no file for it".to_owned(),
        }
    })?;
    let job = WheelBuild {
        package: &package.name,
        recipe,
        source,
        env: &places.staging(),
        python: &plan.python,
        gpus: &plan.target.gpus,
        cuda_home: ready.building.cuda_home.as_deref(),
        jobs: ready.building.jobs,
        folder: &places.built().join(&package.name),
    };
    let built = build::build(&job, work.programs.uv(&[])?)?;
    let sha256 = sha256(&built.wheel)?;
    let record = record(&built, &job);
    journal.add(JournalEntry::Built {
        package: package.name.clone(),
        file: built.wheel.display().to_string(),
        sha256: sha256.clone(),
        build: record.clone(),
    })?;
    Ok((built.wheel, sha256, record))
}

/// The record of a build, with its log in the environment.
fn record(built: &BuiltWheel, job: &WheelBuild) -> AppliedBuild {
    AppliedBuild {
        seconds: built.seconds,
        jobs: job.jobs,
        peak_memory_bytes: built.peak_memory_bytes,
        log: format!("{}/{}.log", switch::KEPT, job.package),
        evidence: built.linked.iter().map(ToString::to_string).collect(),
    }
}

fn sha256(path: &Path) -> Result<String, ApplyError> {
    let mut digest = Sha256::new();
    let mut file = File::open(path).map_err(ApplyError::io(path))?;
    // Files named in the journal have to be on disk.
    file.sync_all()
        .and_then(|()| std::io::copy(&mut file, &mut digest))
        .map_err(ApplyError::io(path))?;
    Ok(hex(&digest.finalize()))
}
