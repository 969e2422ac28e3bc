//! Reads a package index over HTTP: releases with files and METADATA, and the CUDA libraries and names inside wheels.
//!
//! Pages are cached for some minutes, data read from a wheel permanently, under the wheel's SHA-256.

mod code;
mod metadata;
mod names;
mod offer;
mod page;
mod published;
mod read;
#[cfg(test)]
mod tests;

pub use code::code_of;
pub use offer::{IndexAnswer, PackageQuery, TargetHost};
pub use published::{PublishedRelease, PublishedReleases};

use crate::uv::{is_script, programs};
use facts::PlannedFile;
use facts::{CompactCollect, CompactSort};
use knowledge::WheelCode;
use page::Page;
use pep440_rs::VersionSpecifiers;
use read::{Job, PageJob, WheelJob};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a cached index page is used.
const FRESH: Duration = Duration::from_secs(600);

/// The file of a wheel's library data; its number is the version of the rules that summarize it.
const CODE: &str = "code-2.json";

/// The default [`IndexClient::timeout`].
pub const TIMEOUT: u32 = 10;

/// The address of PyPI's simple API.
pub const PYPI: &str = "https://pypi.org/simple";

/// An interpreter on `path` (the variable PATH) that can run the scripts; a binary is preferred to a launcher script,
/// which is slow to start.
pub fn interpreter(path: Option<&OsStr>) -> Option<PathBuf> {
    let mut named: Vec<PathBuf> =
        ["python3", "python"].iter().flat_map(|name| programs(path, name)).collect();
    named.compact_sort_by_key(|file| is_script(file));
    named.into_iter().next()
}

/// Why an index gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It does not have the package.
    #[error("there is no package `{package}` on {url}")]
    Absent {
        /// The package.
        package: String,
        /// The index.
        url: String,
    },
    /// It did not answer, or its answer is invalid.
    #[error("{what}: {reason}")]
    Unreadable {
        /// The requested page or file.
        what: String,
        /// The network error.
        reason: String,
    },
}

impl IndexError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "check the spelling of its name there",
            Self::Unreadable { .. } => {
                "check that this machine can reach that URL (proxies are read from HTTPS_PROXY)"
            }
        }
    }
}

/// The index that a planner queries for releases that its tables do not have.
pub trait ReleaseSource {
    /// Releases of each package within its specifiers, newest first: `count` of them after the first `skip`.
    /// Pre-releases are excluded unless there is nothing else or the specifiers name one.
    ///
    /// # Errors
    /// The first package that cannot be read.
    fn releases(
        &mut self,
        packages: &[(String, VersionSpecifiers)],
        skip: usize,
        count: usize,
    ) -> Result<BTreeMap<String, Vec<PublishedRelease>>, IndexError>;

    /// The CUDA libraries of wheels, in order.
    ///
    /// # Errors
    /// The first wheel that cannot be read.
    fn code(&mut self, wheels: &[PlannedFile]) -> Result<Vec<WheelCode>, IndexError>;
}

/// Reads the libraries below a folder: the CUDA release they need and the GPUs they have code for.
pub type ReadLibraries<'a> = dyn Fn(&Path) -> Result<WheelCode, String> + 'a;

/// An index accessed over HTTP.
pub struct IndexClient<'a> {
    /// Address of its simple API: `https://pypi.org/simple`.
    pub url: String,
    /// Cache folder.
    pub cache: PathBuf,
    /// An interpreter; only its standard library is used.
    pub python: PathBuf,
    /// Reads the libraries of a wheel.
    pub libraries: &'a ReadLibraries<'a>,
    /// Seconds without data after which a connection counts as dropped.
    pub timeout: u32,
    /// The time after which all its questions end unanswered.
    pub deadline: Option<Instant>,
}

impl ReleaseSource for IndexClient<'_> {
    fn releases(
        &mut self,
        packages: &[(String, VersionSpecifiers)],
        skip: usize,
        count: usize,
    ) -> Result<BTreeMap<String, Vec<PublishedRelease>>, IndexError> {
        let names: Vec<&str> = packages.iter().map(|(name, _)| name.as_str()).collect();
        let pages = self.pages(&names)?;
        let mut chosen = Vec::new();
        for ((name, specifiers), page) in packages.iter().zip(pages) {
            let releases = page.releases(specifiers).into_iter().skip(skip).take(count);
            chosen.extend(releases.map(|release| (name.clone(), release)));
        }
        let wheels = chosen.iter().filter_map(|(_, release)| release.wheel().cloned());
        let wheels: Vec<PlannedFile> = wheels.collect();
        let folders = self.wheels(&wheels, false)?;
        let metadata: BTreeMap<&str, &PathBuf> = wheels
            .iter()
            .zip(&folders)
            .map(|(file, folder)| (file.name.as_str(), folder))
            .compact_map();
        let mut all: BTreeMap<String, Vec<PublishedRelease>> = BTreeMap::new();
        for (name, release) in chosen {
            let folder = release.wheel().and_then(|file| metadata.get(file.name.as_str()));
            let text = folder.and_then(|folder| fs::read_to_string(folder.join("METADATA")).ok());
            let requires = text.map(|text| metadata::requires(&text)).unwrap_or_default();
            let source = format!("{}/{name}/", self.url);
            all.entry(name).or_default().push(release.published(requires, source));
        }
        Ok(all)
    }

    fn code(&mut self, wheels: &[PlannedFile]) -> Result<Vec<WheelCode>, IndexError> {
        let folders = self.wheels(wheels, true)?;
        let read = wheels.iter().zip(&folders).map(|(file, folder)| self.code_of(file, folder));
        read.collect()
    }
}

impl IndexClient<'_> {
    /// The page of each package.
    fn pages(&self, names: &[&str]) -> Result<Vec<Page>, IndexError> {
        let path = |name: &str| self.cache.join("pages").join(format!("{name}.json"));
        let stale: Vec<&str> =
            names.iter().copied().filter(|name| !is_fresh(&path(name))).collect();
        let jobs = stale
            .iter()
            .map(|name| PageJob { url: format!("{}/{name}/", self.url), path: path(name) });
        let answers = self.run(&mut Job::pages(jobs.collect(), self.timeout))?;
        for (name, answer) in stale.iter().zip(answers) {
            let Err(reason) = answer else { continue };
            return Err(match reason.contains("HTTP 404") {
                true => IndexError::Absent { package: (*name).to_owned(), url: self.url.clone() },
                false => self.unreadable(&reason),
            });
        }
        let page = |name: &&str| {
            let text = fs::read_to_string(path(name)).map_err(|error| error.to_string());
            text.and_then(|text| Page::parse(&text)).map_err(|reason| IndexError::Unreadable {
                what: format!("{}/{name}/", self.url),
                reason,
            })
        };
        names.iter().map(page).collect()
    }

    /// The folder with the METADATA of each wheel, and with its libraries or cached data about them.
    fn wheels(&self, wheels: &[PlannedFile], libraries: bool) -> Result<Vec<PathBuf>, IndexError> {
        let folder = |file: &PlannedFile| {
            self.cache.join("wheels").join(file.sha256.as_deref().unwrap_or(&file.name))
        };
        let wanted = if libraries { CODE } else { "METADATA" };
        let unread: Vec<&PlannedFile> =
            wheels.iter().filter(|file| !folder(file).join(wanted).exists()).collect();
        let job = |file: &&PlannedFile| {
            let (url, bytes) = file.url.clone().zip(file.bytes)?;
            Some(WheelJob { url, bytes, folder: folder(file), libraries })
        };
        let jobs: Option<Vec<WheelJob>> = unread.iter().map(job).collect();
        let jobs = jobs.ok_or_else(|| self.unreadable("it does not report the sizes of files"))?;
        let mut job = Job::wheels(jobs, self.timeout);
        let answers = self.run(&mut job)?;
        for (job, answer) in job.wheels.iter().zip(answers) {
            let what = job.url.clone();
            answer.map_err(|reason| IndexError::Unreadable { what, reason })?;
        }
        Ok(wheels.iter().map(folder).collect())
    }

    /// Data about a wheel's libraries; if it is not cached, the libraries are read and removed.
    fn code_of(&self, file: &PlannedFile, folder: &Path) -> Result<WheelCode, IndexError> {
        let wrong = |reason: String| IndexError::Unreadable { what: file.name.clone(), reason };
        let kept = folder.join(CODE);
        if let Ok(text) = fs::read_to_string(&kept)
            && let Some(code) = parse_code(&text)
        {
            return Ok(code);
        }
        let libraries = folder.join("libraries");
        let code = match libraries.is_dir() {
            true => (self.libraries)(&libraries).map_err(wrong)?,
            false => WheelCode::default(),
        };
        let text = serde_json::json!({ "cuda": code.cuda, "code": code.words() }).to_string();
        fs::write(&kept, text).map_err(|error| wrong(error.to_string()))?;
        // Only their data is kept; a failed removal only costs disk space.
        let _ = fs::remove_dir_all(libraries);
        Ok(code)
    }

    fn run(&self, job: &mut Job) -> Result<Vec<Result<(), String>>, IndexError> {
        read::run(&self.python, job, self.deadline).map_err(|reason| self.unreadable(&reason))
    }

    fn unreadable(&self, reason: &str) -> IndexError {
        IndexError::Unreadable { what: self.url.clone(), reason: reason.to_owned() }
    }
}

fn parse_code(text: &str) -> Option<WheelCode> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let cuda = value["cuda"].as_u64().and_then(|cuda| u32::try_from(cuda).ok());
    WheelCode::parse(cuda, value["code"].as_str()?)
}

fn is_fresh(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|data| data.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < FRESH))
}
