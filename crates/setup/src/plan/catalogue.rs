//! The releases of a package that the tables know, with what each asks for.

use crate::wheel::WheelName;
use facts::Dist;
use knowledge::marker::Marker;
use knowledge::pypi::{self, File};
use knowledge::recipes::recipe;
use knowledge::wheels::{self, Wheels};
use knowledge::{Requirement, packages};
use pep440_rs::{Version, VersionSpecifiers};

/// One release.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) version: Version,
    /// As it is published.
    pub(super) text: String,
    /// `Requires-Python`.
    pub(super) python: VersionSpecifiers,
    pub(super) requires: Vec<Requires>,
    /// Wheels on PyPI.
    pub(super) files: Vec<(WheelName, &'static File)>,
    /// The source distribution on PyPI.
    pub(super) source: Option<&'static File>,
    /// Wheels elsewhere.
    pub(super) wheels: Vec<&'static Wheels>,
    /// Where PyPI's part was read; `None` for a release that is not there.
    pub(super) cited: Option<String>,
}

/// What one release asks of another package.
#[derive(Debug, Clone)]
pub(super) struct Requires {
    /// Normalised name.
    pub(super) name: String,
    pub(super) specifiers: VersionSpecifiers,
    pub(super) marker: Option<Marker>,
    /// As it is written, without its marker.
    pub(super) line: String,
    pub(super) source: String,
}

impl Requires {
    /// `None` for a line that cannot be read: what it asks is then the resolver's matter, when the plan is locked.
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

/// The releases of a package, newest first; empty for a package that no table knows.
pub(super) fn releases(package: &str) -> Vec<Release> {
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
    all.sort_by(|a, b| b.version.cmp(&a.version));
    all
}

impl Release {
    /// A release of which no index knows more than the version.
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
        }
    }
}

fn on_pypi(row: &'static pypi::Release) -> Option<Release> {
    let version: Version = row.version.parse().ok()?;
    let cited = row.source.to_string();
    let mut requires: Vec<Requires> =
        row.requires.iter().filter_map(|line| Requires::parse(line, &cited)).collect();
    for unstated in packages::unstated(&row.package) {
        let meant: VersionSpecifiers = unstated.versions.parse().ok()?;
        if meant.contains(&version) {
            let source = unstated.source.to_string();
            requires.extend(unstated.requires.iter().filter_map(|l| Requires::parse(l, &source)));
        }
    }
    let wheel = |file: &'static File| Some((WheelName::parse(&file.name).ok()?, file));
    Some(Release {
        version,
        text: row.version.clone(),
        python: row.python.parse().unwrap_or_default(),
        requires,
        files: row.files.iter().filter_map(wheel).collect(),
        source: row.files.iter().find(|file| !file.name.ends_with(".whl")),
        wheels: Vec::new(),
        cited: Some(cited),
    })
}
