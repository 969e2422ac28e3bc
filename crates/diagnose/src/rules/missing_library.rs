use super::{Context, Need, Rule, Text};
use crate::cuda_library::known;
use crate::native::{Native, by_owner, files};
use facts::CompactSort;
use facts::{Confidence, Finding, Machine, Needed, Severity};

pub(super) const RULE: Rule = Rule {
    id: "missing-library",
    title: "a system library that a package loads is missing",
    about: "\
A compiled file needs a library that its wheel does not contain and this system does not have. Small container images
lack many: OpenCV needs libGL.so.1, torchcodec needs FFmpeg's libavutil, tensorrt_llm and others built with MPI need
libmpi.so.40, audio packages need libsndfile.

It shows as
  ImportError: libGL.so.1: cannot open shared object file: No such file or directory
or, from torchcodec, as
  RuntimeError: Could not load libtorchcodec.

Detected by resolving each needed soname (DT_NEEDED) as the loader does. A file counts only if the import of its package
loads it; one of several builds counts only if none of them loads. If the package chooses among modules at run time
(mpi4py has one for each MPI) and none of them loads, the finding is a warning: the package can be imported, but the
module cannot.

Install the library with the system's packages.",
    links: &["https://github.com/pytorch/torchcodec/issues/570"],
    texts: &[
        Text::new("libGL.so.1: cannot open shared object file", "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"),
        Text::new("libmpi.so.{major}: cannot open shared object file", "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory"),
        Text::new("RuntimeError: cannot load MPI library", "RuntimeError: cannot load MPI library"),
        Text::new("RuntimeError: Could not load libtorchcodec", "RuntimeError: Could not load libtorchcodec. Likely causes: 1. FFmpeg is not properly installed in your environment."),
    ],
    remedy: |seen| {
        let named = PACKAGES.iter().find(|(library, _, _)| seen.text.contains(library));
        let mpi = seen.text.contains("MPI library");
        let library = named.map_or(if mpi { "libmpi.so.40" } else { "libavutil" }, |(library, _, _)| library);
        commands(seen.machine(), library)
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Library prefixes, with their packages on Debian and Ubuntu, and on Fedora and RHEL.
const PACKAGES: [(&str, &str, &str); 19] = [
    ("libGL.", "libgl1", "mesa-libGL"),
    ("libEGL.", "libegl1", "mesa-libEGL"),
    ("libgthread-2.0", "libglib2.0-0", "glib2"),
    ("libglib-2.0", "libglib2.0-0", "glib2"),
    ("libgomp.", "libgomp1", "libgomp"),
    ("libmpi.so.12", "libmpich12", "mpich"),
    // The package name of Open MPI's library changes with each release; openmpi-bin depends on it and keeps its name.
    ("libmpi.", "openmpi-bin", "openmpi"),
    ("libavutil", "ffmpeg", "ffmpeg-free"),
    ("libavcodec", "ffmpeg", "ffmpeg-free"),
    ("libavformat", "ffmpeg", "ffmpeg-free"),
    ("libsndfile", "libsndfile1", "libsndfile"),
    ("libsox", "libsox3", "sox"),
    ("libnuma", "libnuma1", "numactl-libs"),
    ("libibverbs", "libibverbs1", "libibverbs"),
    ("librdmacm", "librdmacm1", "librdmacm"),
    ("libxcb", "libxcb1", "libxcb"),
    ("libX11", "libx11-6", "libX11"),
    ("libSM", "libsm6", "libSM"),
    ("libXext", "libxext6", "libXext"),
];

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let wants = |native: &Native<'_>| {
        missing(native).is_some() && native.is_for(machine) && is_taken(native) && !has_twin(native)
    };
    let choice = |native: &Native<'_>| {
        missing(native).is_some()
            && native.is_for(machine)
            && !is_taken(native)
            && !finds_any(native)
    };
    let taken = context.envs.iter().flat_map(|env| by_owner(env, wants));
    let chosen = context.envs.iter().flat_map(|env| by_owner(env, choice));
    let chosen = chosen.filter_map(|group| judge_choice(machine, &group));
    taken.filter_map(|group| judge(machine, &group)).chain(chosen).collect()
}

/// Whether the file is the only build of its module, or one of several builds (MPI.mpich.*.so, MPI.openmpi.*.so) finds all
/// its libraries.
fn finds_any(native: &Native<'_>) -> bool {
    let Some((module, _)) = native.file.stem().split_once('.') else { return true };
    let folder = |native: &Native<'_>| native.file.path.len() - native.file.name().len();
    let folder_of = |native: &Native<'_>| native.file.path[..folder(native)].to_owned();
    let own = folder_of(native);
    let builds: Vec<Native<'_>> = files(native.env)
        .filter(|other| {
            let name = other.file.stem().split_once('.');
            name.is_some_and(|(name, _)| name == module) && folder_of(other) == own
        })
        .collect();
    let whole = |build: &Native<'_>| build.elf.needed.iter().all(|needed| needed.path.is_some());
    module.starts_with("lib") || builds.len() < 2 || builds.iter().any(whole)
}

/// A finding about a module with several builds, none of which finds its library.
fn judge_choice(machine: &Machine, group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let (module, _) = first.file.stem().split_once('.')?;
    let mut names: Vec<&str> =
        group.iter().filter_map(|native| Some(missing(native)?.name.as_str())).collect();
    names.compact_sort();
    names.dedup();
    let title = format!(
        "{} in {} needs {} for its module {module}, which this system does not have",
        first.label(),
        first.env.root,
        names.join(" or ")
    );
    let mut draft = RULE.finding(Severity::Warning, Confidence::Likely, title);
    for native in group {
        if let Some(needed) = missing(native) {
            let what = format!("needs {} (DT_NEEDED)", needed.name);
            draft = draft.evidence(what, native.file.path.clone());
        }
    }
    let cause = format!(
        "The package has a build of {module} for each of several libraries and loads the one whose library is installed. None is: \
         the package is imported, and {module} is not."
    );
    let mut fix = commands(machine, names.first()?);
    for other in &names[1..] {
        fix.extend(commands(machine, other).iter().map(|line| format!("# or: {line}")));
    }
    Some(draft.cause(cause).fix(fix).finish())
}

/// The first missing library that is not one of CUDA, the driver or torch.
fn missing<'a>(native: &Native<'a>) -> Option<&'a Needed> {
    let of_others = |name: &str| {
        known(name).is_some()
            || ["libcuda.so", "libnvidia-", "libnvcuvid", "libtorch", "libc10", "libpython"]
                .iter()
                .any(|begin| name.starts_with(begin))
    };
    native
        .elf
        .needed
        .iter()
        .find(|needed| needed.path.is_none() && needed.other.is_none() && !of_others(&needed.name))
}

/// Whether an import certainly opens the file: Python code that runs then names it, or it is a top-level module.
fn is_taken(native: &Native<'_>) -> bool {
    let site = |site: &String| {
        let rest = native.file.path.strip_prefix(site.as_str());
        rest.is_some_and(|rest| !rest.trim_start_matches('/').contains('/'))
    };
    let alone = native.elf.module == Some(true) && native.env.site_packages.iter().any(site);
    native.elf.opened_by.is_some() || alone
}

/// Whether another of several builds (libtorchcodec_core4.so, libtorchcodec_core7.so) finds all its libraries.
fn has_twin(native: &Native<'_>) -> bool {
    native.is_one_of_several() && {
        let whole = |other: &Native<'_>| other.elf.needed.iter().all(|it| it.path.is_some());
        native.has_alternative_build(whole)
    }
}

fn judge(machine: &Machine, group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let needed = missing(first)?;
    let mut names: Vec<&str> =
        group.iter().filter_map(|native| Some(missing(native)?.name.as_str())).collect();
    names.compact_sort();
    names.dedup();
    let or_others = if names.len() > 1 { ", nor any other release of it" } else { "" };
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "{} in {} needs {}, which this system does not have{or_others}",
                first.label(),
                first.env.root,
                needed.name
            ),
        )
        .evidence(format!("needs {} (DT_NEEDED)", needed.name), first.file.path.clone());
    if let Some(opened_by) = &first.elf.opened_by {
        draft = draft.evidence("loads it when the package is imported", opened_by.clone());
    }
    if names.len() > 1 {
        draft = draft.evidence(
            format!("one of these would do: {}", names.join(", ")),
            first.file.path.clone(),
        );
    }
    let cause = "The wheel does not contain the library, and neither the file's own search path nor the system's folders \
                 have it.";
    Some(draft.cause(cause).fix(commands(machine, &needed.name)).finish())
}

fn commands(machine: &Machine, library: &str) -> Vec<String> {
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    let known =
        PACKAGES.iter().find(|(begin, _, _)| library.starts_with(begin.trim_end_matches('.')));
    let fedora = ["fedora", "rhel", "rocky", "almalinux", "centos", "amzn"].contains(&id);
    match (known, fedora) {
        (Some((_, _, package)), true) => vec![format!("sudo dnf install --assumeyes {package}")],
        (Some((_, package, _)), false) => vec![format!("sudo apt-get install --yes {package}")],
        (None, true) => vec![format!("dnf provides '*/{library}'")],
        (None, false) => {
            vec!["# the package that has it:".to_owned(), format!("apt-file search {library}")]
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, elf_missing_library, env, found, machines};
    use facts::{Confidence::*, Elf, FoundBy, PyEnv, Severity::*};

    const SITE: &str = "/v/lib/python3.12/site-packages";

    pub(super) fn cases() -> Vec<Case> {
        let taken = |library: &str| Elf {
            module: Some(false),
            opened_by: Some(format!("{SITE}/own/__init__.py")),
            ..elf_missing_library(library)
        };
        let one = |file: &str, elf: Elf| -> Vec<PyEnv> {
            vec![env("/v").dist("own", "1.0").compiled("own", file, elf).build()]
        };
        let codec = |last: Elf| {
            let env = env("/v")
                .dist("own", "0.8")
                .compiled("own", "own/libtorchcodec_core6.so", taken("libavutil.so.58"))
                .compiled("own", "own/libtorchcodec_core7.so", last);
            vec![env.build()]
        };
        let mpi = |second: Elf| {
            let ending = "cpython-312-x86_64-linux-gnu.so";
            let first = Elf { module: Some(false), ..elf_missing_library("libmpi.so.12") };
            let second = Elf { module: Some(false), ..second };
            let env = env("/v")
                .dist("own", "4.1.2")
                .compiled("own", &format!("own/MPI.mpich.{ending}"), first)
                .compiled("own", &format!("own/MPI.openmpi.{ending}"), second);
            vec![env.build()]
        };
        let whole = Elf {
            module: Some(false),
            needed: vec![found("libavutil.so.59", "/usr/lib/libavutil.so.59", FoundBy::LdSoCache)],
            ..elf()
        };
        vec![
            Case::new("OpenCV in a small image", machines::a10(), one("own/cv2.abi3.so", taken("libGL.so.1")))
                .finds(
                    Error,
                    Certain,
                    &[
                        "own 1.0 in /v needs libGL.so.1, which this system does not have",
                        "loads it when the package is imported [/v/lib/python3.12/site-packages/own/__init__.py]",
                        "sudo apt-get install --yes libgl1",
                    ],
                ),
            Case::new("a top-level module", machines::a10(), {
                one("own_ops.cpython-312-x86_64-linux-gnu.so", Elf { module: Some(true), ..elf_missing_library("libmpi.so.40") })
            })
            .finds(Error, Certain, &["libmpi.so.40", "openmpi-bin"]),
            Case::new("a module for each MPI, none installed (mpi4py 4.1.2)", machines::a10(), mpi(elf_missing_library("libmpi.so.40")))
                .finds(
                    Warning,
                    Likely,
                    &[
                        "own 4.1.2 in /v needs libmpi.so.12 or libmpi.so.40 for its module MPI, which this system does not have",
                        "needs libmpi.so.12 (DT_NEEDED) [/v/lib/python3.12/site-packages/own/MPI.mpich.",
                        "sudo apt-get install --yes libmpich12",
                        "# or: sudo apt-get install --yes openmpi-bin",
                    ],
                ),
            Case::new("a module for each MPI, and Open MPI is here", machines::a10(), {
                let needed = vec![found("libmpi.so.40", "/usr/lib/libmpi.so.40", FoundBy::LdSoCache)];
                mpi(Elf { needed, ..elf() })
            }),
            Case::new("no release of FFmpeg is here", machines::a10(), codec(taken("libavutil.so.59")))
                .finds(
                    Error,
                    Certain,
                    &[
                        "own 0.8 in /v needs libavutil.so.58, which this system does not have, nor any other release of it",
                        "one of these would do: libavutil.so.58, libavutil.so.59",
                        "ffmpeg",
                    ],
                ),
            Case::new("one release of FFmpeg is here", machines::a10(), codec(whole)),
            Case::new("a part that no import opens", machines::a10(), {
                one("own/sox.so", Elf { module: Some(true), ..elf_missing_library("libsox.so") })
            }),
            Case::new("open3d's plugin without torch", machines::a10(), one("own/open3d_torch_ops.so", taken("libtorch.so"))),
            Case::new("CUDA libraries are left to missing-cuda-library", machines::a10(), one("own/x.so", taken("libcublas.so.12"))),
            Case::new("for another processor", machines::gb10(), one("own/x.so", taken("libGL.so.1"))),
        ]
    }
}
