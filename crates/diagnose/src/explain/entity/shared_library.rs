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
        form("{library}: file too short", unreadable),
        form("{library}: invalid ELF header", unreadable),
        form("{library}: ELF load command past end of file", unreadable),
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
    // Separate rules cover CUDA's libraries by their sonames.
    match cuda_library::known(name) {
        Some(package) if name.ends_with(".so") => return Some(linked_name(seen, name, package)),
        Some(_) => return None,
        None if name.starts_with("libcuda.so") => return None,
        None => {}
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

/// A CUDA library that a program opens by the name without a version, which only a toolkit has.
fn linked_name(seen: &PastedError, name: &str, package: &str) -> Entity {
    let python = seen.installer().python();
    let folder = cuda_library::wheel_folder(&python, package, 12);
    Entity::new("shared-library", name)
        .meaning(format!(
            "A program opens {name} by the name without a version, and the loader does not find it. A CUDA toolkit has that name (cuDNN: its development package); \
             NVIDIA's packages for Python have only the one with a version."
        ))
        .causes([
            Cause::new("The toolkit is installed, and the loader does not search its folder.")
                .check([format!("ls /usr/local/cuda*/lib64/{name} /usr/lib/*/{name} 2>/dev/null; echo \"$LD_LIBRARY_PATH\"")])
                .fix(["export LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH"]),
            Cause::new("The CUDA release that the program was built for is not installed, or is another one than the toolkit here.")
                .check(["ls -d /usr/local/cuda-*; nvcc --version; nvidia-smi | grep 'CUDA Version'"])
                .fix(["# the program's build for the CUDA that is here, or the toolkit of the CUDA that its installation page names"]),
            Cause::new("NVIDIA's package for Python is installed, which has the name with a version.")
                .check([format!("ls {folder}")])
                .fix([
                    format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"),
                    format!("# and a link there: {name} to the file with the version"),
                ]),
        ])
        .rank(3)
}

/// A library outside of Python's packages that is cut off or empty.
fn unreadable(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let path = seen.word("library")?;
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let outside = path.starts_with('/') && !path.contains("-packages/") && name.contains(".so");
    outside.then_some(())?;
    let of_driver = ["/nvidia/", "/tegra/"].iter().any(|folder| path.contains(folder))
        || ["libcuda.so", "libnvidia", "libnvcuvid", "libcudadebugger"]
            .iter()
            .any(|begin| name.starts_with(begin));
    let entity = Entity::new("shared-library", name).excludes(&["damaged-files"]).rank(4);
    if !of_driver {
        return Some(
            entity
                .meaning(format!("{path} is a file of the system and not of a Python package, and it is cut off or overwritten."))
                .fix([
                    format!("ls -l {path}; dpkg -S {path} || rpm -qf {path}  # the system's package that has it"),
                    "sudo apt-get install --reinstall PACKAGE  # Red Hat: sudo dnf reinstall PACKAGE".to_owned(),
                ]),
        );
    }
    Some(
        entity
            .meaning(format!(
                "{path} belongs to the driver (on a Jetson: to JetPack). A container gets it from the host when it is started with NVIDIA's runtime; without it the \
                 container has an empty file of that name."
            ))
            .causes([
                Cause::new("The container was started without NVIDIA's runtime: the runtime was not named, or a compose file's `runtime` was ignored.")
                    .check(["docker inspect --format '{{.HostConfig.Runtime}}' CONTAINER; docker info | grep -i runtime"])
                    .fix([
                        "docker run --runtime nvidia ...  # other machines than a Jetson: --gpus all",
                        "sudo nvidia-ctk runtime configure --runtime=docker --set-as-default && sudo systemctl restart docker",
                    ]),
                Cause::new("The image was saved from a container that had the file mounted (docker commit, a build with the runtime as the default), which leaves an empty file.")
                    .check([format!("ls -l {path}; find {folder} -size 0 -name '*.so*'  # in the image")])
                    .fix([format!("find {folder} -size 0 -name '*.so*' -delete  # in the image, then save it again")]),
                Cause::new("It is the host itself: the driver's installation was interrupted.")
                    .check(["ls /.dockerenv /run/.containerenv 2>/dev/null; nvidia-smi"])
                    .fix(["# install the driver (a Jetson: JetPack) again"]),
            ]),
    )
}
