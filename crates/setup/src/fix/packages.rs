//! Installed packages with the files in their RECORD, to find files listed by several packages.

use crate::wheel::{Lines, hash_of};
use facts::{CompactCollect, CompactSort};
use facts::{Dist, PyEnv};
use knowledge::marker::MarkerEnvironment;
use knowledge::{Minor, Requirement, Version, minor_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// The packages of an environment by normalized name.
#[derive(Debug, Clone, Default)]
pub struct Packages {
    all: BTreeMap<String, Package>,
    arch: String,
    python: Minor,
}

#[derive(Debug, Clone)]
struct Package {
    version: String,
    requires: Vec<Requirement>,
    files: BTreeSet<PathBuf>,
    /// The hash of RECORD, which contains those of all files.
    hash: Option<String>,
}

impl Packages {
    /// Reads the RECORD of each distribution. One that cannot be read has no files.
    pub fn read(env: &PyEnv) -> Self {
        let package = |dist: &Dist| {
            let info = Path::new(&dist.path);
            let site = info.parent().unwrap_or(info);
            let record = std::fs::read_to_string(info.join("RECORD")).ok();
            let hash = record.as_ref().map(|text| hash_of(text.as_bytes()));
            let record = record.unwrap_or_default();
            let requires = dist.requires.iter().filter_map(|line| Requirement::parse(line));
            Package {
                version: dist.version.clone(),
                requires: requires.collect(),
                files: Lines::parse(&record).paths().map(|path| site.join(path)).collect(),
                hash,
            }
        };
        let live = env.dists.iter().filter(|dist| !dist.name.starts_with(['~', '-']));
        let python = env.interpreter.version.as_ref().and_then(|fact| minor_of(&fact.value));
        Self {
            all: live.map(|dist| (Dist::normalise(&dist.name), package(dist))).collect(),
            arch: std::env::consts::ARCH.to_owned(),
            python: python.unwrap_or((3, 12)),
        }
    }

    /// The installed version of a package.
    pub fn version(&self, name: &str) -> Option<&str> {
        self.all.get(name).map(|package| package.version.as_str())
    }

    /// Packages that stay and list a file of one that is removed, whose uninstall deletes it.
    pub fn sharing_files(&self, going: &BTreeSet<String>) -> BTreeSet<String> {
        let mut owners: HashMap<&Path, Vec<&str>> = HashMap::new();
        for (name, package) in &self.all {
            for file in &package.files {
                owners.entry(file).or_default().push(name);
            }
        }
        let shared = owners.into_values().filter(|owners| owners.len() > 1);
        let of_going = shared.filter(|owners| owners.iter().any(|name| going.contains(*name)));
        let staying = of_going.flatten().filter(|name| !going.contains(*name));
        staying.map(str::to_owned).compact_set()
    }

    /// Whether a package that is not among `going` requires this one.
    pub fn is_required(&self, name: &str, going: &BTreeSet<String>) -> bool {
        self.all.iter().filter(|(other, _)| !going.contains(*other)).any(|(_, package)| {
            package.requires.iter().any(|it| Dist::normalise(&it.name) == name && self.applies(it))
        })
    }

    /// These packages and all that require them, directly or indirectly.
    pub fn with_dependents(&self, names: &BTreeSet<String>) -> BTreeSet<String> {
        let mut reached = names.clone();
        loop {
            let more: Vec<String> = self
                .all
                .iter()
                .filter(|(name, package)| {
                    !reached.contains(*name)
                        && package.requires.iter().any(|it| {
                            reached.contains(&Dist::normalise(&it.name)) && self.applies(it)
                        })
                })
                .map(|(name, _)| name.clone())
                .collect();
            if more.is_empty() {
                return reached;
            }
            reached.extend(more);
        }
    }

    /// Requirements of unchanged packages that hold now and would not hold with these versions: `torch<2.9`.
    pub fn broken_by(&self, new: &BTreeMap<String, String>) -> Vec<String> {
        let mut broken = Vec::new();
        for (name, package) in self.all.iter().filter(|(name, _)| !new.contains_key(*name)) {
            for wanted in package.requires.iter().filter(|wanted| self.applies(wanted)) {
                let target = Dist::normalise(&wanted.name);
                let (Some(now), Some(then)) = (self.version(&target), new.get(&target)) else {
                    continue;
                };
                let allows = |version: &str| {
                    Version::parse(version).and_then(|version| wanted.allows(&version))
                };
                if name != &target && allows(now) == Some(true) && allows(then) == Some(false) {
                    broken.push(format!("{target}{}", wanted.constraint()));
                }
            }
        }
        broken.compact_sort();
        broken.dedup();
        broken
    }

    /// Whether a requirement applies to this platform without an extra. An unknown marker counts as true.
    fn applies(&self, wanted: &Requirement) -> bool {
        let python = Some(self.python);
        wanted.holds(MarkerEnvironment { os: std::env::consts::OS, arch: &self.arch, python })
    }

    /// Every package with its version and the hash of its RECORD: `numpy==2.2.6  # RECORD sha256=...`.
    pub fn frozen(&self) -> Vec<String> {
        let line = |(name, package): (&String, &Package)| match &package.hash {
            Some(hash) => format!("{name}=={}  # RECORD {hash}", package.version),
            None => format!("{name}=={}", package.version),
        };
        self.all.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Packages;
    use serde_json::json;

    #[test]
    fn frozen_package_has_the_hash_of_its_file_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let info = folder.path().join("own-1.0.dist-info");
        std::fs::create_dir(&info).unwrap();
        std::fs::write(info.join("RECORD"), "abc").unwrap();
        let dist = |name: &str, path: &std::path::Path| facts::Dist {
            name: name.to_owned(),
            version: "1.0".to_owned(),
            path: path.display().to_string(),
            ..facts::Dist::default()
        };
        let dists = [dist("own", &info), dist("bare", &folder.path().join("gone"))];
        let env = json!({
            "root": "/v", "kind": "venv", "found_by": "--venv", "manager": null, "site_packages": [], "dists": dists,
            "torch": null, "native_files": [], "problems": [],
            "interpreter": { "executable": null, "resolved": null, "version": null, "abi_tag": null, "base": null }
        });
        let frozen = Packages::read(&serde_json::from_value(env).unwrap()).frozen();
        // SHA-256 of `abc`, as in FIPS 180.
        let hash = "sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
        assert_eq!(frozen, ["bare==1.0".to_owned(), format!("own==1.0  # RECORD {hash}")]);
    }
}
