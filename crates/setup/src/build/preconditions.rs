//! Checks what a build needs from its environment before it starts: half an hour of compiling must not end at a missing
//! header. Its requirements on the machine are checked before the environment is created.

use super::WheelBuild;
use facts::Dist;
use std::path::{Path, PathBuf};

/// A missing requirement of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRequirement {
    /// The missing requirement.
    pub what: String,
    /// How to get it.
    pub hint: String,
}

/// Build tools first: a missing header usually belongs to one of them.
pub(super) fn missing(build: &WheelBuild<'_>) -> Vec<MissingRequirement> {
    let places = places(build);
    let headers = build.recipe.system_requires.iter().filter(|wanted| is_header(wanted));
    packages(build).chain(headers.filter_map(|wanted| header(wanted, &places))).collect()
}

fn is_header(wanted: &str) -> bool {
    [".h", ".hpp", ".cuh"].iter().any(|ending| wanted.ends_with(ending))
}

/// The normalized name of a requirement: `ninja` of `Ninja>=1.11; python_version < "3.13"`.
fn name(requirement: &str) -> String {
    let ends = |c: char| !(c.is_alphanumeric() || "-_.".contains(c));
    Dist::normalise(requirement.trim().split(ends).next().unwrap_or_default())
}

/// Missing build tools: without isolation they are not installed automatically.
fn packages(build: &WheelBuild<'_>) -> impl Iterator<Item = MissingRequirement> {
    let site = site(build);
    let installed: Vec<String> = below(&site)
        .filter_map(|path| {
            let folder = path.file_name()?.to_string_lossy().into_owned();
            Some(Dist::normalise(folder.strip_suffix(".dist-info")?.split('-').next()?))
        })
        .collect();
    let absent = move |requirement: &&String| !installed.contains(&name(requirement));
    build.recipe.build_requires.iter().filter(absent).map(move |requirement| MissingRequirement {
        what: format!("{requirement} is not in {}", site.display()),
        hint: format!(
            "the build sees this environment (--no-build-isolation), so `uv pip install '{requirement}'` goes first"
        ),
    })
}

fn site(build: &WheelBuild<'_>) -> PathBuf {
    build.env.join(format!("lib/python{}/site-packages", build.python))
}

/// The entries of a folder.
fn below(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Folders in which a compiler finds headers.
fn places(build: &WheelBuild<'_>) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        ["/usr/include", "/usr/local/include"].into_iter().map(PathBuf::from).collect();
    places.extend(build.cuda_home.map(|home| home.join("include")));
    for variable in ["CPATH", "CPLUS_INCLUDE_PATH"] {
        places.extend(std::env::var_os(variable).iter().flat_map(std::env::split_paths));
    }
    // Conventional folders of packages with headers: pybind11/include, torch/include, numpy/_core/include.
    let own = below(&site(build));
    places
        .extend(own.flat_map(|path| ["include", "_core/include"].map(|folder| path.join(folder))));
    places.extend(below(&build.env.join("include")));
    // Python's headers belong to the installation that the environment was made from.
    let python = std::fs::canonicalize(build.env.join("bin/python")).unwrap_or_default();
    if let Some(base) = python.parent().and_then(Path::parent) {
        places.extend(below(&base.join("include")));
    }
    places
}

fn header(wanted: &str, places: &[PathBuf]) -> Option<MissingRequirement> {
    if places.iter().any(|place| place.join(wanted).is_file()) {
        return None;
    }
    let hint = match (wanted, wanted.split_once('/')) {
        ("Python.h", _) => {
            "`apt-get install python3-dev`, or use a Python that uv manages".to_owned()
        }
        (_, Some((folder, _))) => format!("{folder} has it: `uv pip install {folder}`"),
        _ => "install the system package that has it".to_owned(),
    };
    Some(MissingRequirement { what: format!("no {wanted} in the compiler's search path"), hint })
}

#[cfg(test)]
mod tests {
    use super::super::BuildSource;
    use super::super::test_support::recipe;
    use super::*;
    use std::fs;

    /// The missing requirements of an environment with these packages, one line each, for a build as in row R3-03.
    fn found(dists: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("env");
        let site = env.join("lib/python3.10/site-packages");
        for dist in dists {
            let include = site.join(dist).join("include").join(dist);
            fs::create_dir_all(site.join(format!("{dist}-1.0.dist-info"))).unwrap();
            fs::create_dir_all(&include).unwrap();
            fs::write(include.join(format!("{dist}.h")), "").unwrap();
        }
        let recipe = recipe(
            &["pybind11", "packaging>=24", "Ninja", "numpy"],
            &["nvcc", "pybind11/pybind11.h"],
        );
        let build = WheelBuild {
            package: "ffpa-attn",
            recipe: &recipe,
            source: BuildSource::Archive(Path::new("x.tar.gz")),
            env: &env,
            python: "3.10",
            gpus: &[(9, 0)],
            cuda_home: None,
            jobs: 1,
            folder: folder.path(),
        };
        missing(&build).into_iter().map(|it| format!("{} | {}", it.what, it.hint)).collect()
    }

    #[test]
    fn r3_03_requirements_of_a_build_are_checked_before_it_starts() {
        let all = ["pybind11", "packaging", "ninja", "numpy"];
        assert_eq!(found(&all), [""; 0]);
        let without = found(&all[..3]);
        assert_eq!(without.len(), 1, "{without:?}");
        for words in ["numpy is not in", "--no-build-isolation", "uv pip install 'numpy'"] {
            assert!(without[0].contains(words), "no {words} in {without:?}");
        }
        // The reported error: without pybind11 there is no header.
        let without = found(&all[1..]);
        assert_eq!(without.len(), 2, "{without:?}");
        assert!(without[1].contains("no pybind11/pybind11.h"), "{without:?}");
        assert!(without[1].contains("uv pip install pybind11"), "{without:?}");
        assert_eq!(found(&[]).len(), 4 + 1);
    }
}
