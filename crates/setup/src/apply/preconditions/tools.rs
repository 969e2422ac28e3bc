//! Requirements of source builds on the machine: compilers, the CUDA toolkit of torch's release, headers and memory.

use super::super::UnmetPrecondition;
use super::builds;
use crate::target_of;
use facts::CompactSort;
use facts::{BuildRecipe, Dist, InstallPlan, Machine};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How sources are built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::apply) struct BuildSettings {
    /// Number of sources to build.
    pub(in crate::apply) count: usize,
    /// Parallel compile jobs.
    pub(in crate::apply) jobs: u32,
    /// The toolkit whose nvcc is used.
    pub(in crate::apply) cuda_home: Option<PathBuf>,
}

/// Folders from which the system's compilers read headers.
const INCLUDES: [&str; 2] = ["/usr/include", "/usr/local/include"];

/// Checks everything that the plan's builds need, each item once.
pub(super) fn check(
    plan: &InstallPlan,
    machine: &Machine,
    python: Option<&Path>,
    unmet: &mut Vec<UnmetPrecondition>,
) -> BuildSettings {
    let mut building = BuildSettings { count: builds(plan).count(), ..BuildSettings::default() };
    let mut said = BTreeSet::new();
    for (package, recipe) in builds(plan) {
        for needed in recipe.system_requires.iter().filter(|it| said.insert(it.as_str())) {
            let missing = match needed.as_str() {
                "nvcc" => match nvcc(plan, machine) {
                    Ok(home) => {
                        building.cuda_home = Some(home);
                        None
                    }
                    Err(missing) => Some(missing),
                },
                header if header.ends_with(".h") => {
                    header_missing(header, plan, recipe, python, building.cuda_home.as_deref())
                }
                program => program_missing(program),
            };
            unmet.extend(missing.map(|it| UnmetPrecondition {
                what: format!("{} is built from source: {}", package.name, it.what),
                ..it
            }));
        }
    }
    match jobs(plan, machine) {
        Ok(jobs) => building.jobs = jobs,
        Err(missing) => unmet.push(missing),
    }
    building
}

/// The toolkit with the major release of the plan's CUDA: torch refuses to build with another one.
fn nvcc(plan: &InstallPlan, machine: &Machine) -> Result<PathBuf, UnmetPrecondition> {
    let major = |version: &str| version.split('.').next().map(str::to_owned);
    let wanted = plan.cuda.as_deref();
    let with_nvcc = machine.toolkits.iter().filter(|toolkit| toolkit.has_nvcc);
    let mut fitting: Vec<_> = with_nvcc
        .clone()
        .filter_map(|toolkit| Some((toolkit, toolkit.version.as_ref()?.value.as_str())))
        .filter(|(_, version)| major(version) == wanted.and_then(major))
        .collect();
    // The same minor release first, because nvcc's output is linked with torch's libraries.
    fitting.compact_sort_by_key(|(_, version)| {
        !wanted.is_some_and(|wanted| version.starts_with(wanted))
    });
    if let Some((toolkit, _)) = fitting.first() {
        return Ok(PathBuf::from(&toolkit.root));
    }
    let found: Vec<String> = with_nvcc
        .map(|toolkit| {
            let version = toolkit.version.as_ref().map_or("of an unknown release", |it| &it.value);
            format!("{version} at {}", toolkit.root)
        })
        .collect();
    let there = if found.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there is {}", found.join(", "))
    };
    let wanted = wanted.unwrap_or("any release");
    Err(UnmetPrecondition::new(
        format!("it needs nvcc of CUDA {wanted} or its major release, and {there}"),
        format!("install the CUDA {wanted} toolkit and set CUDA_HOME to it"),
    ))
}

fn program_missing(program: &str) -> Option<UnmetPrecondition> {
    // Any C++ compiler will do; a build tries the system's default name first.
    let names: &[&str] = match program {
        "c++" | "g++" => &["c++", "g++", "clang++"],
        "cc" | "gcc" => &["cc", "gcc", "clang"],
        other => &[other],
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let hint = match program {
        "c++" | "g++" | "cc" | "gcc" => "install it: apt-get install g++".to_owned(),
        other => format!("install {other} and add it to PATH"),
    };
    (!names.iter().any(here))
        .then(|| UnmetPrecondition::new(format!("it needs {program}, which is not on PATH"), hint))
}

/// A header is provided by a package of the plan with the name of its first folder (`pybind11/pybind11.h`), the CUDA
/// toolkit, the plan's Python, or the system.
fn header_missing(
    header: &str,
    plan: &InstallPlan,
    recipe: &BuildRecipe,
    python: Option<&Path>,
    cuda_home: Option<&Path>,
) -> Option<UnmetPrecondition> {
    let folder = Dist::normalise(header.split('/').next().unwrap_or(header));
    let by_package = plan.packages.iter().any(|package| Dist::normalise(&package.name) == folder);
    let by_recipe =
        recipe.build_requires.iter().any(|name| Dist::normalise(name).starts_with(&folder));
    let prefix = python.and_then(Path::parent).and_then(Path::parent);
    let mut places: Vec<PathBuf> = INCLUDES.iter().map(PathBuf::from).collect();
    places.extend(prefix.into_iter().chain(cuda_home).map(|prefix| prefix.join("include")));
    // Python's headers are in a folder named after its release.
    let release = format!("python{}", plan.python);
    let of_release: Vec<PathBuf> = places.iter().map(|place| place.join(&release)).collect();
    let there = places.iter().chain(&of_release).any(|place| place.join(header).is_file());
    (!(by_package || by_recipe || there)).then(|| {
        let hint = match header.contains('/') {
            true => format!("add {folder} to the plan, or install the system's package of it"),
            false => format!(
                "install the system's package with {header}; for Python.h it is {release}-dev"
            ),
        };
        let looked = INCLUDES.join(", ");
        UnmetPrecondition::new(
            format!("it needs the header {header}, which is neither in the plan nor in {looked}"),
            hint,
        )
    })
}

/// Number of parallel compile jobs that fit in memory: nvcc's take gigabytes each, and builds usually fail because one
/// is killed for memory.
fn jobs(plan: &InstallPlan, machine: &Machine) -> Result<u32, UnmetPrecondition> {
    let Some(job) = builds(plan).map(|(_, recipe)| recipe.job_bytes.max(1)).max() else {
        return Ok(0);
    };
    let memory = target_of(machine).and_then(|target| target.memory_bytes);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(memory) = memory else { return Ok(1) };
    match memory / job {
        0 => Err(UnmetPrecondition::new(
            format!(
                "a compile job of this plan takes {}, and the machine has {}",
                super::mib(job),
                super::mib(memory)
            ),
            "build on a machine with more memory, or make a plan without source builds",
        )),
        jobs => Ok(u32::try_from(jobs.min(cores as u64)).unwrap_or(1)),
    }
}
