//! Checks the imports of one environment: the modules and commands of each distribution.

use super::simulate::{Failure, Kind};
use super::{failures, python};
use crate::env::answers::Answers;
use crate::env::record::{lines, path_of};
use crate::{EnvOptions, Source};
use facts::{Dist, EnvKind, MissingKind, MissingName, PyEnv};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Top-level folders of site-packages that belong to no package: wheels that include their tests and scripts by
/// mistake.
const NO_PACKAGES: [&str; 16] = [
    "benchmark",
    "benchmarks",
    "build",
    "conftest",
    "doc",
    "docs",
    "example",
    "examples",
    "samples",
    "scripts",
    "setup",
    "test",
    "testing",
    "tests",
    "tools",
    "utils",
];

/// Names that packages and commands of an environment import and that certainly do not exist. The result is cached
/// until a RECORD or a package folder changes.
pub fn missing_names(options: &EnvOptions, env: &PyEnv) -> Vec<MissingName> {
    let named = env.found_by == "--venv";
    // A system's packages are patched and split by its distribution.
    if env.kind == EnvKind::System && !named {
        return Vec::new();
    }
    let Some((major, minor)) = env.interpreter.version.as_ref().and_then(|it| release(&it.value))
    else {
        return Vec::new();
    };
    let Some(site) = env.site_packages.first() else { return Vec::new() };
    let mut answers = Answers::open(options.cache.as_deref());
    let question = format!("names in {} of Python {major}.{minor}", env.site_packages.join(" "));
    let found = answers.answer(&options.source, Path::new(site), &question, |trace| {
        trace.extend(env.site_packages.iter().map(PathBuf::from));
        trace.extend(env.dists.iter().map(|dist| Path::new(&dist.path).join("RECORD")));
        look(&options.source, env, (major, minor))
    });
    answers.keep();
    found
}

fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The installed files of an environment by distribution.
struct Installed<'a> {
    env: &'a PyEnv,
    /// Top-level modules, and the distributions that have files in them.
    tops: BTreeMap<String, BTreeSet<usize>>,
    records: Vec<String>,
}

fn look(source: &Source, env: &PyEnv, (major, minor): (u32, u32)) -> Vec<MissingName> {
    let installed = Installed::read(source, env);
    let mut entries: BTreeSet<String> = BTreeSet::new();
    for (dist, record) in env.dists.iter().zip(&installed.records) {
        entries.extend(modules(record));
        let scripts = source.text(Path::new(&dist.path).join("entry_points.txt"));
        entries.extend(scripts.iter().flat_map(|text| commands(text)));
    }
    let entries: Vec<String> = entries.into_iter().collect();
    let sites = env.site_packages.iter().map(PathBuf::from).collect();
    let found = failures(source, sites, python(major, minor), &installed.versions(), &entries);
    found.into_iter().map(|(failure, imports)| installed.described(failure, imports)).collect()
}

/// Modules at the top of a distribution's RECORD.
fn modules(record: &str) -> impl Iterator<Item = String> {
    lines(record).filter_map(|line| {
        let (path, _) = path_of(line)?;
        let module = path.strip_suffix("/__init__.py").or(path.strip_suffix(".py"))?;
        let is_name = !module.is_empty()
            && module.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_name && !module.starts_with('_') && !NO_PACKAGES.contains(&module))
            .then(|| module.to_owned())
    })
}

/// Modules of a distribution's commands; those of an extra may lack its requirements.
fn commands(entry_points: &str) -> Vec<String> {
    let mut wanted = false;
    let mut found = Vec::new();
    for line in entry_points.lines().map(str::trim) {
        if line.starts_with('[') {
            wanted = line == "[console_scripts]";
        } else if wanted
            && !line.contains('[')
            && let Some((_, target)) = line.split_once('=')
            && let Some(module) = target.split(':').next()
        {
            found.push(module.trim().to_owned());
        }
    }
    found
}

impl<'a> Installed<'a> {
    fn read(source: &Source, env: &'a PyEnv) -> Self {
        let record = |dist: &Dist| source.text(Path::new(&dist.path).join("RECORD"));
        let records: Vec<String> =
            env.dists.iter().map(|dist| record(dist).unwrap_or_default()).collect();
        let mut tops: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            let mut last = String::new();
            for line in lines(record) {
                let Some((path, _)) = path_of(line) else { continue };
                let top = path.split('/').next().unwrap_or_default();
                if top != last {
                    last = top.to_owned();
                    let top = top.strip_suffix(".py").unwrap_or(top);
                    tops.entry(top.to_owned()).or_default().insert(index);
                }
            }
        }
        Self { env, tops, records }
    }

    /// The version of the single distribution of each top-level module.
    fn versions(&self) -> HashMap<String, String> {
        let one = self.tops.iter().filter(|(_, dists)| dists.len() == 1);
        one.filter_map(|(top, dists)| {
            let dist = &self.env.dists[*dists.first()?];
            Some((top.clone(), dist.version.clone()))
        })
        .collect()
    }

    /// The distribution whose RECORD lists a file.
    fn owner(&self, path: &Path) -> Option<&'a Dist> {
        let site = self.env.site_packages.iter().find(|site| path.starts_with(site))?;
        let relative = path.strip_prefix(site).ok()?.to_str()?;
        let top = relative.split('/').next()?;
        let dists = self.tops.get(top.strip_suffix(".py").unwrap_or(top))?;
        let lists = |index: &&usize| {
            lines(&self.records[**index])
                .any(|line| path_of(line).is_some_and(|(path, _)| path == relative))
        };
        dists.iter().find(lists).map(|index| &self.env.dists[*index])
    }

    /// The distribution of a module: of several, the one with its name.
    fn provider(&self, module: &str) -> Option<&'a Dist> {
        let top = module.split('.').next()?;
        let dists: Vec<&Dist> =
            self.tops.get(top)?.iter().map(|index| &self.env.dists[*index]).collect();
        let named = dists.iter().find(|dist| Dist::same_name(&dist.name, top));
        named.or(dists.first()).copied()
    }

    fn described(&self, failure: Failure, imports: Vec<String>) -> MissingName {
        let name = |dist: &Dist| dist.name.clone();
        MissingName {
            dist: self.owner(&failure.path).map(name),
            at: format!("{}:{}", failure.path.display(), failure.line),
            provider: self.provider(&failure.module).map(name),
            module: failure.module,
            name: failure.name,
            kind: match failure.kind {
                Kind::Name => MissingKind::Name,
                Kind::Submodule => MissingKind::Submodule,
                Kind::Attribute => MissingKind::Attribute,
                Kind::Version => MissingKind::Version,
                Kind::Keyword => MissingKind::Keyword,
            },
            imports,
            via: failure
                .via
                .iter()
                .map(|(path, line)| format!("{}:{line}", path.display()))
                .collect(),
        }
    }
}
