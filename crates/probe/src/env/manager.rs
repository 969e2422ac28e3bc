//! The package manager of an environment, which determines the commands of a remedy.

use crate::Source;
use facts::CompactCollect;
use facts::{Dist, EnvKind, EnvManager, Fact};
use std::collections::BTreeSet;
use std::path::Path;

pub(super) fn manager(
    kind: EnvKind,
    root: &Path,
    uv: Option<&str>,
    dists: &[Dist],
) -> Option<Fact<EnvManager>> {
    if kind == EnvKind::Conda {
        return Some(Fact::new(EnvManager::Conda, root.join("conda-meta").display().to_string()));
    }
    if let Some(version) = uv {
        let cfg = root.join("pyvenv.cfg");
        return Some(Fact::new(EnvManager::Uv, format!("{}: uv = {version}", cfg.display())));
    }
    // The installer of most packages; pip itself is installed by venv, so it does not count.
    let installed = |by: &str| {
        dists
            .iter()
            .filter(|dist| dist.installer.as_deref() == Some(by))
            .filter(|dist| !matches!(dist.name.as_str(), "pip" | "setuptools" | "wheel"))
            .count()
    };
    let (by_uv, by_pip) = (installed("uv"), installed("pip"));
    if by_uv > by_pip {
        return Some(Fact::new(EnvManager::Uv, format!("INSTALLER of {by_uv} distributions")));
    }
    if by_pip > 0 {
        return Some(Fact::new(EnvManager::Pip, format!("INSTALLER of {by_pip} distributions")));
    }
    let pip = dists.iter().find(|dist| dist.name == "pip")?;
    Some(Fact::new(EnvManager::Pip, pip.path.clone()))
}

/// Normalised names of the packages in conda-meta: `numpy-2.1.3-py312h58c1407_0.json`.
pub(super) fn conda_packages(source: &Source, root: &Path) -> BTreeSet<String> {
    let names = source.list(root.join("conda-meta")).into_iter();
    names.filter_map(|file| Some(Dist::normalise(conda_record(&file)?.0))).compact_set()
}

/// Version of a package in conda-meta, and the file.
pub(super) fn conda_version(source: &Source, root: &Path, package: &str) -> Option<Fact<String>> {
    let folder = root.join("conda-meta");
    let file = source
        .list(&folder)
        .into_iter()
        .find(|file| conda_record(file).is_some_and(|(name, _)| name == package))?;
    let version = conda_record(&file)?.1.to_string();
    Some(Fact::new(version, folder.join(file).display().to_string()))
}

/// Name and version in the name of a conda-meta file: name, version and build are joined by `-`; only the name may
/// contain more of them.
fn conda_record(file: &str) -> Option<(&str, &str)> {
    let (rest, _build) = file.strip_suffix(".json")?.rsplit_once('-')?;
    rest.rsplit_once('-')
}

#[cfg(test)]
mod tests {
    use super::conda_record;

    #[test]
    fn conda_file_names() {
        let check = |file, expect| assert_eq!(conda_record(file), expect, "{file}");
        check("numpy-2.1.3-py312h58c1407_0.json", Some(("numpy", "2.1.3")));
        check("ca-certificates-2025.1.31-hbcca054_0.json", Some(("ca-certificates", "2025.1.31")));
        check("history", None);
        check("x.json", None);
    }
}
