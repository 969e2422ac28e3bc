//! Shared libraries that the loader does not find: the files that need them here, and the packages that have them.

use super::super::cause::Cause;
use super::{Entity, Form, form};
use crate::cuda_library;
use crate::host;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{library}: cannot open shared object file", read),
        form("Could not load library {library}", read),
        form("Could not load dynamic library '{library}'", read),
        form("Library not loaded: {library}", read),
        form("{library} => not found", read),
    ]
}

/// System libraries by the prefix of their soname, with the packages of Debian and Red Hat that have them. Read on
/// 2026-11-28: Debian 12's package contents (apt-file) and the dependencies of its ffmpeg. In Debian 13 libaio1 is
/// libaio1t64, whose file is libaio.so.1t64. Red Hat's names: dnf and yum commands in public files have mesa-libGL,
/// glib2, numactl-libs, libibverbs, librdmacm, libaio, libSM and libXext; the others were not read.
const SYSTEM: [(&str, &str, &str); 20] = [
    ("libGL.so", "libgl1", "mesa-libGL"),
    ("libglib-2.0", "libglib2.0-0", "glib2"),
    ("libgomp", "libgomp1", "libgomp"),
    ("libnuma", "libnuma1", "numactl-libs"),
    ("libibverbs", "libibverbs1", "libibverbs"),
    ("librdmacm", "librdmacm1", "librdmacm"),
    ("libmlx5", "ibverbs-providers", "libibverbs"),
    ("libsndfile", "libsndfile1", "libsndfile"),
    ("libsox", "libsox3", "sox"),
    ("libavutil", "ffmpeg", "ffmpeg"),
    ("libavcodec", "ffmpeg", "ffmpeg"),
    ("libavformat", "ffmpeg", "ffmpeg"),
    ("libopenblas", "libopenblas0", "openblas"),
    ("libmpi", "libopenmpi3", "openmpi"),
    ("libaio", "libaio1", "libaio"),
    ("libtbb", "libtbb12", "tbb"),
    ("libxcb", "libxcb1", "libxcb"),
    ("libSM", "libsm6", "libSM"),
    ("libXext", "libxext6", "libXext"),
    ("libpython3", "libpython3-dev", "python3-libs"),
];

fn read(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("library")?;
    let name = word.rsplit(['/', ':']).next().unwrap_or(word).trim_end_matches(['.', ',']);
    name.contains(".so").then_some(())?;
    // Separate rules cover CUDA's libraries.
    if cuda_library::known(name).is_some() || name.starts_with("libcuda.so") {
        return None;
    }
    let mut entity = Entity::new("shared-library", name).rank(2);
    let mut wanted = false;
    for env in seen.context.envs {
        for file in &env.native_files {
            let Some(elf) = &file.elf else { continue };
            for needed in elf.needed.iter().filter(|needed| needed.name == name) {
                wanted = true;
                let owner = file.dist.clone().unwrap_or_default();
                let found = needed
                    .path
                    .as_ref()
                    .map_or("the loader finds none".to_owned(), |path| format!("found as {path}"));
                if entity.evidence.len() < 4 {
                    entity = entity
                        .evidence(format!("{} needs it; {found}", file.name()), file.path.clone())
                        .package(owner);
                }
                entity.confirmed_here = Some(needed.path.is_none());
            }
        }
    }
    let system = SYSTEM.iter().find(|(begin, ..)| name.starts_with(begin));
    if let Some((_, debian, red_hat)) = system {
        return Some(
            entity
                .meaning(format!("{name} is a library of the system, which no Python package brings: install {debian} (its name on Debian and Ubuntu)."))
                .fix([host::install_package(seen.machine(), debian, red_hat)]),
        );
    }
    if !wanted {
        let absent = word.starts_with('/');
        let owner = word.split_once("-packages/").and_then(|(_, rest)| rest.split('/').next());
        let of = owner.map_or(String::new(), |owner| format!(" of the package {owner}"));
        return Some(
            entity
                .meaning(match absent {
                    true => format!("The loader does not find the file {word}{of}, or a library that it needs."),
                    false => format!("A program or module needs {name}, and the loader does not find it."),
                })
                .causes([
                    Cause::new("The package or program that has it is not installed here, or was not built: an interrupted build or download, another release or platform.")
                        .check([format!("find / -name '{name}*' 2>/dev/null | head")])
                        .fix([match owner {
                            Some(owner) => format!("{} --no-cache-dir", String::from(seen.installer().reinstall(&[owner]))),
                            None => format!("# the package that has {name}"),
                        }]),
                    Cause::new("It is there, in a folder that the loader does not search.")
                        .check([format!("ldconfig -p | grep {name}; echo \"$LD_LIBRARY_PATH\"")])
                        .fix(["export LD_LIBRARY_PATH=FOLDER:$LD_LIBRARY_PATH"]),
                ]),
        );
    }
    wanted.then(|| {
        entity.meaning(format!(
            "The loader finds no {name} in the folders that the file searches, in LD_LIBRARY_PATH or in the system's."
        )).fix([format!("find / -name '{name}*' 2>/dev/null"), "firstlight doctor".to_owned()])
    })
}
