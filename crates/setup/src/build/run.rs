//! Runs a build to completion, with its switches, into a log.

use super::compilers::Compilers;
use super::{BuildError, WheelBuild, memory};
use facts::CompactCollect;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Interval of sampling a build's memory.
const SAMPLE: Duration = Duration::from_millis(100);

/// The date of a wheel's entries, fixed so that builds are reproducible: the earliest date of a zip archive.
const EPOCH: &str = "315532800";

/// Builds a wheel of a source into a folder; returns the exit status and the peak memory in bytes.
pub(super) fn run(
    build: &WheelBuild<'_>,
    uv: Command,
    compilers: &Compilers,
    (source, out, log): (&Path, &Path, &Path),
) -> Result<(ExitStatus, Option<u64>), BuildError> {
    let at = |source| BuildError::Folder { folder: log.to_owned(), source };
    let switches = switches(build);
    let mut command = uv;
    command
        .args(["build", "--wheel", "--no-build-isolation", "--no-create-gitignore"])
        .arg("--python")
        .arg(build.env.join("bin/python"))
        .arg("--out-dir")
        .args([out, source]);
    compilers.attend(&mut command, &build.env.join("bin"));
    command.env("VIRTUAL_ENV", build.env).env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command.envs(switches.iter().map(|(name, value)| (name, value)));

    let program = command.get_program().to_string_lossy().into_owned();
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let mut text = File::create(log).map_err(at)?;
    for (name, value) in &switches {
        writeln!(text, "{name}={value}").map_err(at)?;
    }
    writeln!(text, "{program} {}", words.join(" ")).map_err(at)?;
    command.stdout(text.try_clone().map_err(at)?).stderr(text);

    let failed = |source| BuildError::Start { program: program.clone(), source };
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

/// The environment variables of a build; the recipe's are last, so that they take precedence.
fn switches(build: &WheelBuild<'_>) -> Vec<(String, String)> {
    let mut switches = vec![
        ("SOURCE_DATE_EPOCH".to_owned(), EPOCH.to_owned()),
        ("MAX_JOBS".to_owned(), build.jobs.max(1).to_string()),
    ];
    if let Some(home) = build.cuda_home {
        switches.push(("CUDA_HOME".to_owned(), home.display().to_string()));
    }
    let architectures = architectures(build.gpus);
    if !architectures.is_empty() {
        switches.push(("TORCH_CUDA_ARCH_LIST".to_owned(), architectures));
    }
    switches.retain(|(name, _)| build.recipe.env.iter().all(|(own, _)| own != name));
    switches.extend(build.recipe.env.iter().cloned());
    switches
}

/// Compute capabilities in the format of torch's extension builder, each once: `8.6;9.0`.
fn architectures(gpus: &[(u32, u32)]) -> String {
    let gpus: BTreeSet<&(u32, u32)> = gpus.iter().compact_set();
    let words: Vec<String> = gpus.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    words.join(";")
}

#[cfg(test)]
mod tests {
    use super::super::BuildSource;
    use super::super::test_support::recipe;
    use super::*;

    fn variables(gpus: &[(u32, u32)], own: &[(&str, &str)]) -> String {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut recipe = recipe(&[], &[]);
        recipe.env = own.iter().map(pair).collect();
        let build = WheelBuild {
            package: "flash-attn",
            recipe: &recipe,
            source: BuildSource::Archive(Path::new("x.tar.gz")),
            env: Path::new("/env"),
            python: "3.12",
            gpus,
            cuda_home: (!gpus.is_empty()).then_some(Path::new("/usr/local/cuda")),
            jobs: 6,
            folder: Path::new("/build"),
        };
        let switches = switches(&build).into_iter();
        switches.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_build_gets_its_gpus_and_jobs() {
        assert_eq!(
            variables(&[(9, 0), (8, 6), (9, 0)], &[("FLASH_ATTENTION_FORCE_BUILD", "TRUE")]),
            "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=6 CUDA_HOME=/usr/local/cuda \
             TORCH_CUDA_ARCH_LIST=8.6;9.0 FLASH_ATTENTION_FORCE_BUILD=TRUE"
        );
        assert_eq!(variables(&[], &[]), "SOURCE_DATE_EPOCH=315532800 MAX_JOBS=6");
        // A variable of the recipe is not set twice.
        assert_eq!(
            variables(&[(9, 0)], &[("TORCH_CUDA_ARCH_LIST", "9.0a"), ("MAX_JOBS", "1")]),
            "SOURCE_DATE_EPOCH=315532800 CUDA_HOME=/usr/local/cuda TORCH_CUDA_ARCH_LIST=9.0a MAX_JOBS=1"
        );
    }
}
