//! Running a build to its end, with its switches, into a log.

use super::compilers::Compilers;
use super::{Build, BuildError, memory};
use crate::uv::Uv;
use facts::PlanTarget;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// How often the memory of a build is looked at.
const SAMPLE: Duration = Duration::from_millis(100);

/// Dates in a wheel come from here, so that two builds of one source give one wheel: the first date a zip archive has.
const EPOCH: &str = "315532800";

/// Runs the build; its exit status and the most memory that it had, in bytes.
pub(super) fn run(
    build: &Build<'_>,
    uv: &Uv,
    compilers: &Compilers,
    source: &Path,
    out: &Path,
    log: &Path,
) -> Result<(ExitStatus, Option<u64>), BuildError> {
    let at = |source| BuildError::Folder { folder: log.to_owned(), source };
    let switches = switches(build);
    let mut command = command(build, uv, compilers, source, out);
    command.envs(switches.iter().map(|(name, value)| (name, value)));
    let mut text = File::create(log).map_err(at)?;
    for (name, value) in &switches {
        writeln!(text, "{name}={value}").map_err(at)?;
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    writeln!(text, "{} {}", uv.program.display(), words.join(" ")).map_err(at)?;
    command.stdout(text.try_clone().map_err(at)?).stderr(text);

    let failed = |source| BuildError::Start { program: uv.program.display().to_string(), source };
    let mut child = command.spawn().map_err(failed)?;
    let mut peak = None;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok((status, peak));
        }
        peak = peak.max(memory::of_tree(child.id()));
        std::thread::sleep(SAMPLE);
    }
}

fn command(
    build: &Build<'_>,
    uv: &Uv,
    compilers: &Compilers,
    source: &Path,
    out: &Path,
) -> Command {
    let mut command = uv.command();
    command
        .args(["build", "--wheel", "--no-build-isolation", "--no-create-gitignore"])
        .arg("--python")
        .arg(build.env.join("bin/python"))
        .arg("--out-dir")
        .args([out, source]);
    // Build tools of the environment, ninja first of all, are started by name.
    let own = [compilers.folder.clone(), build.env.join("bin")];
    let folders = own.into_iter().chain(std::env::split_paths(&build.host.path));
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command.env("VIRTUAL_ENV", build.env).env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command.envs(compilers.variables.iter().map(|(name, program)| (name, program)));
    command
}

/// The variables a build is told its task with; what the recipe sets comes last, so that it holds.
fn switches(build: &Build<'_>) -> Vec<(String, String)> {
    let mut switches = vec![
        ("SOURCE_DATE_EPOCH".to_owned(), EPOCH.to_owned()),
        ("MAX_JOBS".to_owned(), jobs(build).to_string()),
    ];
    if let Some(home) = &build.host.cuda_home {
        switches.push(("CUDA_HOME".to_owned(), home.display().to_string()));
    }
    let architectures = architectures(build.target);
    if !architectures.is_empty() {
        switches.push(("TORCH_CUDA_ARCH_LIST".to_owned(), architectures));
    }
    switches.retain(|(name, _)| build.recipe.env.iter().all(|(own, _)| own != name));
    switches.extend(build.recipe.env.iter().cloned());
    switches
}

/// As many jobs as the memory holds, and no more than there are cores; at least one.
fn jobs(build: &Build<'_>) -> u64 {
    let cores = u64::from(build.host.cores.max(1));
    let held = build.host.memory_bytes.map(|bytes| bytes / build.recipe.job_bytes.max(1));
    held.map_or(cores, |held| held.clamp(1, cores))
}

/// The machine's compute capabilities as torch's extension builder takes them, each once: `8.6;9.0`.
fn architectures(target: &PlanTarget) -> String {
    let mut gpus = target.gpus.clone();
    gpus.sort_unstable();
    gpus.dedup();
    let words: Vec<String> = gpus.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    words.join(";")
}

#[cfg(test)]
mod tests {
    use super::super::{Host, Source};
    use super::*;
    use facts::BuildRecipe;

    const GIB: u64 = 1 << 30;

    fn told(gpus: &[(u32, u32)], memory: Option<u64>, cores: u32, own: &[(&str, &str)]) -> String {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let recipe = BuildRecipe {
            requirement: "flash-attn==2.8.3".into(),
            env: own.iter().map(pair).collect(),
            build_requires: Vec::new(),
            system_requires: Vec::new(),
            minutes: (5, 10),
            job_bytes: 5 * GIB,
            source: "test".into(),
        };
        let target = PlanTarget {
            name: "this".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            glibc: None,
            gpus: gpus.to_vec(),
            driver: None,
            cuda_limit: None,
            tegra: false,
            memory_bytes: memory,
            source: "test".into(),
        };
        let cuda_home = (!gpus.is_empty()).then(|| "/usr/local/cuda".into());
        let host = Host { path: "".into(), cuda_home, memory_bytes: memory, cores };
        let build = Build {
            package: "flash-attn",
            recipe: &recipe,
            source: Source::Archive(Path::new("x.tar.gz")),
            env: Path::new("/env"),
            python: "3.12",
            target: &target,
            cuda: None,
            host: &host,
            folder: Path::new("/build"),
        };
        let switches = switches(&build).into_iter();
        switches.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_build_is_told_its_gpus_and_how_many_jobs_the_memory_holds() {
        let forced = [("FLASH_ATTENTION_FORCE_BUILD", "TRUE")];
        assert_eq!(
            told(&[(9, 0), (8, 6), (9, 0)], Some(32 * GIB), 16, &forced),
            "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=6 CUDA_HOME=/usr/local/cuda \
             TORCH_CUDA_ARCH_LIST=8.6;9.0 FLASH_ATTENTION_FORCE_BUILD=TRUE"
        );
        assert_eq!(told(&[], Some(512 * GIB), 8, &[]), "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=8");
        assert_eq!(told(&[], Some(GIB), 8, &[]), "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=1");
        assert_eq!(told(&[], None, 2, &[]), "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=2");
        // What a recipe sets is not set twice.
        assert_eq!(
            told(&[(9, 0)], None, 2, &[("TORCH_CUDA_ARCH_LIST", "9.0a"), ("MAX_JOBS", "1")]),
            "SOURCE_DATE_EPOCH=315532800 CUDA_HOME=/usr/local/cuda TORCH_CUDA_ARCH_LIST=9.0a MAX_JOBS=1"
        );
    }
}
