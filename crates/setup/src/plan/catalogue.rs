//! The known releases of a package, with their requirements.

use super::code::cuda_of;
use crate::index::{PublishedRelease, PublishedReleases};
use crate::wheel::WheelName;
use facts::CompactSort;
use facts::{Dist, PlannedFile};
use knowledge::marker::Marker;
use knowledge::pypi::{self, File};
use knowledge::recipes::recipe;
use knowledge::wheels::{self, Wheels};
use knowledge::{Requirement, WheelCode, packages, wheel_code};
use pep440_rs::{Version, VersionSpecifiers};

/// One release.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) version: Version,
    /// The version as published.
    pub(super) text: String,
    /// `Requires-Python`.
    pub(super) python: VersionSpecifiers,
    pub(super) requires: Vec<Requires>,
    /// Wheels on PyPI.
    pub(super) files: Vec<Wheel>,
    /// The source distribution on PyPI.
    pub(super) source: Option<PlannedFile>,
    /// Wheels elsewhere.
    pub(super) wheels: Vec<&'static Wheels>,
    /// The source of PyPI's data; `None` for a release that is not on PyPI.
    pub(super) cited: Option<String>,
    /// CUDA major version in its requirements, and the requirement.
    pub(super) cuda: Option<(u32, String)>,
}

/// One wheel on PyPI.
#[derive(Debug)]
pub(super) struct Wheel {
    pub(super) name: WheelName,
    pub(super) file: PlannedFile,
    /// Its CUDA libraries; `None` if they were not read.
    pub(super) code: Option<WheelCode>,
}

/// A requirement of a release.
#[derive(Debug, Clone)]
pub(super) struct Requires {
    /// Normalised name.
    pub(super) name: String,
    pub(super) specifiers: VersionSpecifiers,
    pub(super) marker: Option<Marker>,
    /// As written, without its marker.
    pub(super) line: String,
    pub(super) source: String,
}

impl Requires {
    /// `None` for a line that cannot be parsed: the resolver checks it when the plan is locked.
    pub(super) fn parse(line: &str, source: &str) -> Option<Self> {
        let read = Requirement::parse(line)?;
        let marker = match read.marker.as_str() {
            "" => None,
            text => Some(Marker::parse(text).ok()?),
        };
        let name = Dist::normalise(&read.name);
        let specifiers = read.constraint();
        Some(Self {
            line: format!("{name}{specifiers}"),
            specifiers: specifiers.parse().ok()?,
            name,
            marker,
            source: source.to_owned(),
        })
    }
}

/// The releases of a package, newest first, from the tables and an index; empty for an unknown package.
pub(super) fn releases(package: &str, published: &PublishedReleases) -> Vec<Release> {
    let mut all: Vec<Release> = pypi::releases(package).filter_map(on_pypi).collect();
    for row in wheels::wheels().iter().filter(|row| row.package == package) {
        let Ok(version) = row.version.parse::<Version>() else { continue };
        match all.iter_mut().find(|release| release.version == version) {
            Some(release) => release.wheels.push(row),
            None => all.push(Release { wheels: vec![row], ..Release::bare(version, &row.version) }),
        }
    }
    for text in recipe(package).map_or(&[][..], |recipe| recipe.only.as_slice()) {
        all.extend(text.parse().ok().map(|version| Release::bare(version, text)));
    }
    for row in published.releases(package) {
        let Ok(version) = row.version.parse::<Version>() else { continue };
        match all.iter_mut().find(|release| release.version == version) {
            // A table may have a release only through the wheels of another index.
            Some(release) if release.cited.is_some() => {}
            Some(release) => {
                let wheels = std::mem::take(&mut release.wheels);
                *release = Release { wheels, ..on_index(version, row, published) };
            }
            None => all.push(on_index(version, row, published)),
        }
    }
    all.compact_sort_by(|a, b| b.version.cmp(&a.version));
    all
}

impl Release {
    /// A release of which only the version is known.
    fn bare(version: Version, text: &str) -> Self {
        Self {
            version,
            text: text.to_owned(),
            python: VersionSpecifiers::default(),
            requires: Vec::new(),
            files: Vec::new(),
            source: None,
            wheels: Vec::new(),
            cited: None,
            cuda: None,
        }
    }
}

fn on_pypi(row: &'static pypi::Release) -> Option<Release> {
    let version: Version = row.version.parse().ok()?;
    let cited = row.source.to_string();
    let mut requires: Vec<Requires> =
        row.requires.iter().filter_map(|line| Requires::parse(line, &cited)).collect();
    for undeclared in packages::undeclared_requirements(&row.package) {
        let meant: VersionSpecifiers = undeclared.versions.parse().ok()?;
        if meant.contains(&version) {
            let source = undeclared.source.to_string();
            requires.extend(undeclared.requires.iter().filter_map(|l| Requires::parse(l, &source)));
        }
    }
    let wheel = |file: &File| {
        let code = wheel_code(&file.sha256).cloned();
        Some(Wheel { name: WheelName::parse(&file.name).ok()?, file: planned(file), code })
    };
    Some(Release {
        version,
        text: row.version.clone(),
        python: row.python.parse().unwrap_or_default(),
        requires,
        files: row.files.iter().filter_map(wheel).collect(),
        source: row.files.iter().find(|file| !file.name.ends_with(".whl")).map(planned),
        wheels: Vec::new(),
        cuda: cuda_of(&row.requires),
        cited: Some(cited),
    })
}

fn on_index(version: Version, row: &PublishedRelease, published: &PublishedReleases) -> Release {
    let wheel = |file: &PlannedFile| {
        let name = WheelName::parse(&file.name).ok()?;
        Some(Wheel { name, file: file.clone(), code: published.code(file) })
    };
    let source = row.files.iter().find(|file| !file.name.ends_with(".whl"));
    Release {
        version,
        text: row.version.clone(),
        python: row.python.parse().unwrap_or_default(),
        requires: row.requires.iter().filter_map(|l| Requires::parse(l, &row.source)).collect(),
        files: row.files.iter().filter_map(wheel).collect(),
        source: source.cloned(),
        wheels: Vec::new(),
        cited: Some(row.source.clone()),
        cuda: cuda_of(&row.requires),
    }
}

fn planned(file: &File) -> PlannedFile {
    PlannedFile {
        name: file.name.clone(),
        url: None,
        sha256: Some(file.sha256.clone()),
        bytes: Some(file.bytes),
    }
}
