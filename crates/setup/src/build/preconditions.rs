//! What a build needs, looked for before it starts: half an hour of compiling shall not end at a header that was never
//! there.

use super::{Build, Host};
use facts::{BuildRecipe, Dist};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something a build needs and does not find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What is missing, or what is there in its place.
    pub what: String,
    /// How to get it.
    pub hint: String,
}

/// What the machine lacks for a recipe, before there is an environment. `cuda` is the CUDA release of the torch that is
/// planned; what the plan's own packages bring (`build_requires`) is not looked for.
pub fn missing(recipe: &BuildRecipe, cuda: Option<&str>, host: &Host) -> Vec<Missing> {
    let mut missing = Vec::new();
    for wanted in &recipe.system_requires {
        if !is_header(wanted) {
            missing.extend(program(wanted, cuda, host, None));
        } else if !brought(wanted, recipe) {
            missing.extend(header(wanted, &places(host, None)));
        }
    }
    missing.extend(memory(recipe, host));
    missing
}

/// What is lacking for a build whose environment is there.
pub(super) fn missing_in_env(build: &Build<'_>) -> Vec<Missing> {
    let (recipe, host) = (build.recipe, build.host);
    let mut missing = packages(build);
    let places = places(host, Some(build));
    for wanted in &recipe.system_requires {
        match is_header(wanted) {
            true => missing.extend(header(wanted, &places)),
            false => missing.extend(program(wanted, build.cuda, host, Some(build.env))),
        }
    }
    missing.extend(memory(recipe, host));
    missing
}

fn is_header(wanted: &str) -> bool {
    [".h", ".hpp", ".cuh"].iter().any(|ending| wanted.ends_with(ending))
}

/// Whether a package that is installed before the build brings a header: `pybind11/pybind11.h` is pybind11's.
fn brought(header: &str, recipe: &BuildRecipe) -> bool {
    let folder = header.split('/').next().unwrap_or_default();
    recipe.build_requires.iter().any(|requirement| name(requirement) == Dist::normalise(folder))
}

/// The normalised name at the start of a requirement: `ninja` of `Ninja>=1.11; python_version < "3.13"`.
fn name(requirement: &str) -> String {
    let ends = |c: char| !(c.is_alphanumeric() || "-_.".contains(c));
    Dist::normalise(requirement.trim().split(ends).next().unwrap_or_default())
}

/// Build tools: without isolation nobody else installs them.
fn packages(build: &Build<'_>) -> Vec<Missing> {
    let site = site(build);
    let installed: Vec<String> = std::fs::read_dir(&site)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let folder = entry.file_name().to_string_lossy().into_owned();
            let stem = folder.strip_suffix(".dist-info")?;
            Some(Dist::normalise(stem.split('-').next()?))
        })
        .collect();
    let absent = |requirement: &&String| !installed.contains(&name(requirement));
    let missing = build.recipe.build_requires.iter().filter(absent);
    missing
        .map(|requirement| Missing {
            what: format!("{requirement} is not in {}", site.display()),
            hint: format!(
                "the build sees this environment (--no-build-isolation), so `uv pip install '{requirement}'` goes first"
            ),
        })
        .collect()
}

fn site(build: &Build<'_>) -> PathBuf {
    build.env.join(format!("lib/python{}/site-packages", build.python))
}

/// A program on PATH, or nvcc of the toolkit, of the CUDA major that torch was compiled with.
fn program(wanted: &str, cuda: Option<&str>, host: &Host, env: Option<&Path>) -> Option<Missing> {
    let own = env.map(|env| env.join("bin"));
    let toolkit = host.cuda_home.as_ref().map(|home| home.join("bin"));
    let folders = own.into_iter().chain(toolkit).chain(std::env::split_paths(&host.path));
    let found = folders.map(|folder| folder.join(wanted)).find(|file| file.is_file());
    match (found, wanted) {
        (Some(nvcc), "nvcc") => {
            if host.cuda_home.is_none() {
                return Some(Missing {
                    what: format!("CUDA_HOME is not set, and {} has no toolkit around it", nvcc.display()),
                    hint: "set CUDA_HOME to the folder with bin/nvcc and include/cuda.h".to_owned(),
                });
            }
            other_major(&nvcc, cuda?)
        }
        (Some(_), _) => None,
        (None, "nvcc") => {
            let release = cuda.unwrap_or("of torch");
            Some(Missing {
                what: "no nvcc in CUDA_HOME or on PATH".to_owned(),
                hint: format!("install the CUDA toolkit {release} and set CUDA_HOME to its folder"),
            })
        }
        (None, program) => Some(Missing {
            what: format!("no {program} on PATH"),
            hint: match program {
                "c++" | "g++" => "`apt-get install g++`".to_owned(),
                "git" => "`apt-get install git`".to_owned(),
                _ => format!("install the package of your system that brings {program}"),
            },
        }),
    }
}

/// torch refuses to build with another CUDA major than its own; it does so after everything else was set up.
fn other_major(nvcc: &Path, cuda: &str) -> Option<Missing> {
    let said = Command::new(nvcc).arg("--version").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let release = |text: &str| {
        let rest = text.split("release ").nth(1)?;
        rest.split([',', ' ', '\n']).next().map(str::to_owned)
    };
    let Some(found) = said.as_deref().ok().and_then(release) else {
        return Some(Missing {
            what: format!("{} does not tell its release", nvcc.display()),
            hint: format!("try `{} --version`", nvcc.display()),
        });
    };
    let major = |release: &str| release.split('.').next().map(str::to_owned);
    (major(&found) != major(cuda)).then(|| Missing {
        what: format!("{} is CUDA {found}, but torch is compiled with CUDA {cuda}", nvcc.display()),
        hint: format!("install the CUDA toolkit {cuda} and set CUDA_HOME to its folder"),
    })
}

/// Folders in which the compiler finds headers.
fn places(host: &Host, build: Option<&Build<'_>>) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        ["/usr/include", "/usr/local/include"].into_iter().map(PathBuf::from).collect();
    places.extend(host.cuda_home.as_ref().map(|home| home.join("include")));
    for variable in ["CPATH", "CPLUS_INCLUDE_PATH"] {
        places.extend(std::env::var_os(variable).iter().flat_map(std::env::split_paths));
    }
    let Some(build) = build else { return places };
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Packages with headers keep them so: pybind11/include, torch/include, numpy/_core/include.
    places.extend(below(site(build)).flat_map(|entry| {
        let path = entry.path();
        ["include", "_core/include"].map(|folder| path.join(folder))
    }));
    // Python's own headers belong to the installation that the environment was made from.
    let python = std::fs::canonicalize(build.env.join("bin/python")).unwrap_or_default();
    if let Some(base) = python.parent().and_then(Path::parent) {
        places.extend(below(base.join("include")).map(|entry| entry.path()));
    }
    places.extend(below(build.env.join("include")).map(|entry| entry.path()));
    places
}

fn header(wanted: &str, places: &[PathBuf]) -> Option<Missing> {
    if places.iter().any(|place| place.join(wanted).is_file()) {
        return None;
    }
    let hint = match wanted {
        "Python.h" => "`apt-get install python3-dev`, or take a Python that uv manages".to_owned(),
        _ => match wanted.split_once('/') {
            Some((folder, _)) => format!("{folder} brings it: `uv pip install {folder}`"),
            None => "install the package of your system that brings it".to_owned(),
        },
    };
    Some(Missing { what: format!("no {wanted} where a compiler looks"), hint })
}

/// A job that does not fit into memory is killed after minutes, with one word for an explanation.
fn memory(recipe: &BuildRecipe, host: &Host) -> Option<Missing> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    let bytes = host.memory_bytes.filter(|bytes| *bytes < recipe.job_bytes)?;
    Some(Missing {
        what: format!(
            "one compile job takes {:.1} GiB of memory, and there are {:.1} GiB",
            gib(recipe.job_bytes),
            gib(bytes)
        ),
        hint: "build it on a larger machine and install the wheel, or add swap".to_owned(),
    })
}

#[cfg(test)]
mod tests;
