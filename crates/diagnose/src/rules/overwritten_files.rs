use super::damaged_files::reinstall_commands;
use super::{Context, Need, Rule, Text};
use crate::cuda_library::known;
use crate::data::moved_files::{self, FileMove, MOVED};
use crate::dist_requirements::applicable_requirements;
use crate::native::{Native, files};
use crate::remedy::{Installer, text};
use crate::torch_build::{is_leftover, live_dist};
use facts::{AlteredFile, Confidence, Dist, Finding, Machine, PyEnv, RemedyStep, Severity};
use knowledge::Version;
use std::collections::BTreeMap;

pub(super) const RULE: Rule = Rule {
    id: "overwritten-files",
    title: "two installed packages own the same compiled files",
    about: "\
Some packages are variants of one another and install into the same folder: onnxruntime and onnxruntime-gpu,
opencv-python and opencv-python-headless, faiss-cpu and faiss-gpu, nvidia-nccl-cu12 and nvidia-nccl-cu13. Before 12.8,
cuda-python contained the files of cuda-bindings. No installer refuses to install both. Python imports the files that
were written last, and uninstalling either package removes files of the other.

It shows as a GPU that is not used although the GPU package is installed, as
  AttributeError: module 'cv2' has no attribute 'imshow'
  AttributeError: module 'cuda.bindings.runtime' has no attribute 'cudaLibrary_t'
or, after one of the two was uninstalled, as missing files.

Detected in the RECORD files: both list a file with different hashes, and the file matches one of them.

Uninstall both, and install the one you need.",
    links: &["https://github.com/microsoft/onnxruntime/issues/7930"],
    texts: &[Text::new("module 'cuda.bindings.* has no attribute", "AttributeError: module 'cuda.bindings.runtime' has no attribute 'cudaLibrary_t'")],
    remedy: |seen| {
        let installer = seen.installer();
        if seen.text.contains("cuda.bindings") {
            return text(separate_packages(&installer, &MOVED[0]));
        }
        vec![
            installer.uninstall(&["onnxruntime", "onnxruntime-gpu"]).into(),
            installer.install(&["onnxruntime-gpu".into()], None).into(),
        ]
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(|env| judge(context.machine, env)).collect()
}

/// Compiled files of one distribution that another one overwrote, by the names of the two.
type OverwrittenFiles<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a AlteredFile>>;

fn judge(machine: &Machine, env: &PyEnv) -> Vec<Finding> {
    let mut lost: OverwrittenFiles<'_> = BTreeMap::new();
    for dist in env.dists.iter().filter(|dist| !is_leftover(dist)) {
        for file in dist.altered.iter().filter(|file| file.path.contains(".so")) {
            let Some(winner) = file.belongs_to.as_deref().filter(|name| *name != dist.name) else {
                continue;
            };
            lost.entry((dist.name.as_str(), winner)).or_default().push(file);
        }
    }
    let pairs: Vec<(&str, &str)> = lost.keys().copied().collect();
    pairs
        .iter()
        // If each overwrote files of the other, one finding covers both.
        .filter(|(loser, winner)| loser < winner || !pairs.contains(&(winner, loser)))
        .filter_map(|(loser, winner)| finding(machine, env, &lost, loser, winner))
        .collect()
}

fn finding(
    machine: &Machine,
    env: &PyEnv,
    lost: &OverwrittenFiles<'_>,
    loser: &str,
    winner: &str,
) -> Option<Finding> {
    let files = lost.get(&(loser, winner))?;
    let back = lost.get(&(winner, loser));
    let (lost_dist, won_dist) = (live_dist(env, loser)?, live_dist(env, winner)?);
    let gpu = has_gpu_code(env, lost_dist, files) && !uses_cuda(env, files);
    let all = applicable_requirements(machine, env);
    let is_wanted =
        |dist: &Dist| all.iter().any(|want| Dist::same_name(&want.wanted.name, &dist.name));
    // A distribution that no package requires is a leftover, such as CUDA 12's libraries after torch moved to CUDA 13.
    let leftover =
        !gpu && back.is_none() && lost_dist.name.starts_with("nvidia-") && !is_wanted(lost_dist);
    // An old release that contains the files of a package it was later split from.
    let moved = MOVED.iter().find(|row| is_old(row, won_dist, lost_dist));
    let severity = match (gpu || back.is_some() || moved.is_some(), leftover) {
        (true, _) => Severity::Error,
        (false, true) => Severity::Info,
        (false, false) => Severity::Warning,
    };
    let words = |dist: &Dist| format!("{} {}", dist.name, dist.version);
    let title = match back {
        Some(_) => format!(
            "files of {} and {} in {} are mixed",
            words(lost_dist),
            words(won_dist),
            env.root
        ),
        None => format!("{} wrote over {} in {}", words(won_dist), words(lost_dist), env.root),
    };
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    for (file, owner) in files.iter().map(|file| (file, winner)).take(3) {
        draft = draft.evidence(format!("listed by both, and it is {owner}'s"), file.path.clone());
    }
    for file in back.into_iter().flatten().take(2) {
        draft = draft.evidence(format!("listed by both, and it is {loser}'s"), file.path.clone());
    }
    if gpu {
        let what = format!(
            "{loser} has GPU code, and the files of {winner} that replaced it do not load it"
        );
        draft = draft.evidence(what, format!("{}/RECORD", lost_dist.path));
    }
    if let Some(row) = moved {
        let asking = all.iter().filter(|want| want.wanted.name == row.package);
        for want in asking.take(3) {
            let what = format!("{} takes any release of it: {}", want.dist.name, want.wanted.line);
            draft = draft.evidence(what, format!("{}/METADATA", want.dist.path));
        }
        let what = format!("{} has no files of {} from {} on", row.package, row.to, row.release);
        return Some(
            draft
                .evidence(what, moved_files::SOURCE.to_string())
                .cause(format!(
                    "{} is so old that it contains {}'s files, and packages that need the newer files find the old ones.",
                    words(won_dist),
                    row.to
                ))
                .fix(separate_packages(&Installer::of(env), row))
                .finish(),
        );
    }
    let keep = match (gpu || (is_wanted(lost_dist) && !is_wanted(won_dist)), leftover) {
        (true, false) => lost_dist,
        _ => won_dist,
    };
    let installer = Installer::of(env);
    let what = format!("# this keeps {}; to keep the other one, install that instead:", keep.name);
    let mut fix = vec![what.into()];
    fix.push(installer.uninstall(&[loser, winner]));
    fix.extend(reinstall_commands(env, &[keep]));
    let cause = "Both packages install files of the same names into the same folder. Programs load the files that were \
                 written last, and uninstalling one of the two removes files of the other.";
    Some(draft.cause(cause).fix(fix).finish())
}

/// Whether the last installed package is of a release that contained the other package's files.
fn is_old(row: &FileMove, winner: &Dist, loser: &Dist) -> bool {
    let older = |version: &str| {
        let release = Version::parse(row.release);
        Version::parse(version)
            .zip(release)
            .is_some_and(|(it, release)| it.compare(&release).is_lt())
    };
    Dist::same_name(&winner.name, row.package)
        && Dist::same_name(&loser.name, row.to)
        && older(&winner.version)
}

/// Uninstalls both packages and installs a release that requires the other package instead of containing its files.
fn separate_packages(installer: &Installer<'_>, row: &FileMove) -> Vec<RemedyStep> {
    vec![
        installer.uninstall(&[row.package, row.to]),
        installer.install(&[format!("{}>={}", row.package, row.release)], None),
    ]
}

/// Whether a distribution has other compiled files that need CUDA or contain GPU code.
fn has_gpu_code(env: &PyEnv, dist: &Dist, lost: &[&AlteredFile]) -> bool {
    let name = Dist::normalise(&dist.name);
    let own = files(env).filter(|native| native.owner_name().as_ref() == Some(&name));
    let mut left = own.filter(|native| !lost.iter().any(|file| file.path == native.file.path));
    left.any(|native| of_cuda(&native))
}

/// Whether one of the files in its current state needs CUDA or contains GPU code.
fn uses_cuda(env: &PyEnv, lost: &[&AlteredFile]) -> bool {
    let mut here = files(env).filter(|native| lost.iter().any(|it| it.path == native.file.path));
    here.any(|native| of_cuda(&native))
}

fn of_cuda(native: &Native<'_>) -> bool {
    !native.elf.gpu_code.is_empty()
        || native.elf.needed.iter().any(|needed| known(&needed.name).is_some())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{
        Case, EnvBuilder, elf, elf_missing_library, env, machines, with_code,
    };
    use facts::{Alteration, AlteredFile, Confidence::*, PyEnv, Severity::*};

    const SITE: &str = "/v/lib/python3.12/site-packages";
    const STATE: &str = "onnxruntime/capi/onnxruntime_pybind11_state.so";

    fn over(env: EnvBuilder, pairs: &[(&str, &str, &str)]) -> Vec<PyEnv> {
        let mut env = env.build();
        for (loser, winner, file) in pairs {
            let dist = env.dists.iter_mut().find(|it| it.name == *loser).expect("a distribution");
            dist.altered.push(AlteredFile {
                path: format!("{SITE}/{file}"),
                how: Alteration::Size { recorded: 9, found: 5 },
                belongs_to: Some((*winner).into()),
            });
            dist.altered_total += 1;
        }
        vec![env]
    }

    pub(super) fn cases() -> Vec<Case> {
        let onnx = || {
            env("/v")
                .uv()
                .dist("onnxruntime", "1.23.0")
                .dist("onnxruntime-gpu", "1.23.0")
                .compiled("onnxruntime", STATE, elf())
                .compiled(
                    "onnxruntime-gpu",
                    "onnxruntime/capi/libonnxruntime_providers_cuda.so",
                    with_code(1, &["sm_80"]),
                )
        };
        let opencv =
            || env("/v").dist("opencv-python", "4.12.0").dist("opencv-python-headless", "4.11.0");
        let (plain, headless) = ("opencv-python", "opencv-python-headless");
        vec![
            Case::new(
                "onnxruntime over onnxruntime-gpu",
                machines::a10(),
                over(onnx(), &[("onnxruntime-gpu", "onnxruntime", STATE)]),
            )
            .finds(
                Error,
                Certain,
                &[
                    "onnxruntime 1.23.0 wrote over onnxruntime-gpu 1.23.0 in /v",
                    "listed by both, and it is onnxruntime's",
                    "onnxruntime-gpu has GPU code",
                    "uv pip uninstall --python /v/bin/python onnxruntime-gpu onnxruntime",
                    "--reinstall --no-deps onnxruntime-gpu==1.23.0",
                ],
            ),
            Case::new(
                "the reverse order works by chance",
                machines::a10(),
                over(onnx(), &[("onnxruntime", "onnxruntime-gpu", STATE)]),
            )
            .finds(Warning, Certain, &["onnxruntime-gpu 1.23.0 wrote over onnxruntime 1.23.0"]),
            Case::new("opencv twice", machines::a10(), over(opencv(), &[(plain, headless, "cv2/cv2.abi3.so")]))
                .finds(Warning, Certain, &["opencv-python-headless 4.11.0 wrote over opencv-python 4.12.0"]),
            Case::new(
                "opencv twice, and files of each",
                machines::a10(),
                over(opencv(), &[(plain, headless, "cv2/cv2.abi3.so"), (headless, plain, "cv2/gapi.so")]),
            )
            .finds(Error, Certain, &["files of opencv-python 4.12.0 and opencv-python-headless 4.11.0 in /v are mixed"]),
            Case::new(
                "a package that others require is kept",
                machines::a10(),
                over(
                    opencv().dist("vllm", "0.33").requires("vllm", "opencv-python>=4.11"),
                    &[(plain, headless, "cv2/cv2.abi3.so")],
                ),
            )
            .finds(Warning, Certain, &["--force-reinstall --no-deps opencv-python==4.12.0"]),
            Case::new(
                "a leftover of CUDA 12 with a torch for 13",
                machines::h200(),
                over(
                    env("/v")
                        .torch("2.15.0+cu132", Some("13.2"))
                        .requires("torch", "nvidia-nccl-cu13==2.30.7; platform_system == 'Linux'")
                        .dist("nvidia-nccl-cu12", "2.27.3")
                        .dist("nvidia-nccl-cu13", "2.30.7")
                        .compiled("nvidia-nccl-cu12", "nvidia/nccl/lib/libnccl.so.2", elf_missing_library("libx.so")),
                    &[("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia/nccl/lib/libnccl.so.2")],
                ),
            )
            .finds(Info, Certain, &["nvidia-nccl-cu13 2.30.7 wrote over nvidia-nccl-cu12 2.27.3"]),
            Case::new(
                "Python files that two packages share by accident (build_backend.py)",
                machines::a10(),
                over(opencv(), &[(plain, headless, "build_backend.py")]),
            ),
            Case::new(
                "an old cuda-python over the bindings that others need",
                machines::h200(),
                over(
                    env("/v")
                        .uv()
                        .dist("flashinfer-python", "0.7.2")
                        .requires("flashinfer-python", "cuda-python")
                        .dist("cuda-python", "12.6.2.post1")
                        .dist("cuda-bindings", "13.5.0"),
                    &[("cuda-bindings", "cuda-python", "cuda/bindings/runtime.so")],
                ),
            )
            .finds(
                Error,
                Certain,
                &[
                    "cuda-python 12.6.2.post1 wrote over cuda-bindings 13.5.0 in /v",
                    "flashinfer-python takes any release of it: cuda-python",
                    "uv pip uninstall --python /v/bin/python cuda-python cuda-bindings",
                    "uv pip install --python /v/bin/python 'cuda-python>=12.8'",
                ],
            ),
            Case::new("only one of the two", machines::a10(), vec![onnx().build()]),
        ]
    }
}
