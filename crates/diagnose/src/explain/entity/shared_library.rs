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
        form("Could not locate {library}.dll", windows),
        form("Could not load dynamic library '{library}.dll'", windows),
        form("Could not load library {library}.dll", windows),
        form("Could not find module '{library}.dll'", windows),
        form("Library {library}.dll is not found or cannot be loaded", windows),
        form("dlerror: {library}.dll not found", windows),
        form("dynamic library {library}.dll", windows),
        form("{module}.dll' (or one of its dependencies)", windows_module),
        form("ld: cannot find -l{library}", linked),
        form("ld: cannot find {library}.so", linked),
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
        None if name == "libcuda.so" => return Some(driver_link(name)),
        None if name.starts_with("libcuda.so") => return None,
        None => {}
    }
    if let Some(package) = cuda_library::family(name) {
        return Some(part(seen, name, package));
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

/// The driver's library by the name without a number, which its packages often lack.
fn driver_link(name: &str) -> Entity {
    Entity::new("shared-library", name)
        .meaning(
            "libcuda is the driver's own library. The driver installs libcuda.so.1; the name without a number is a link that not every package makes, and the loader does \
             not find it.",
        )
        .causes([
            Cause::new("WSL: Windows puts the library into /usr/lib/wsl/lib, and the loader's cache has only its numbered name.")
                .check(["ls -l /usr/lib/wsl/lib/libcuda.so*; ldconfig -p | grep libcuda.so"])
                .fix(["export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH"]),
            Cause::new("The driver is installed, and the link is absent or in a folder that the loader does not search.")
                .check(["ldconfig -p | grep libcuda.so; find / -name 'libcuda.so*' -not -path '*/stubs/*' 2>/dev/null | head"])
                .fix(["sudo ln -s libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so && sudo ldconfig  # in the folder that has libcuda.so.1"]),
            Cause::new("No driver is visible: it is not installed, or the container was started without GPUs.")
                .check(["nvidia-smi"])
                .fix(["docker run --gpus all ..."]),
        ])
        .rank(3)
}

/// A library that the linker of a build does not find.
fn linked(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("library")?.trim_end_matches([':', ',', '.', '\'']);
    let stem = word.rsplit('/').next()?.trim_start_matches("lib");
    (!stem.is_empty() && stem != "cuda").then_some(())?;
    let name = format!("lib{stem}.so");
    let entity = Entity::new("shared-library", name.clone()).rank(3);
    if let Some(package) = cuda_library::family(&name) {
        let python = seen.installer().python();
        let folder = cuda_library::wheel_folder(&python, package, 12);
        let toolkit = match package {
            "cudnn" => vec![host::install_package(
                seen.machine(),
                "libcudnn9-dev-cuda-12",
                "libcudnn9-devel-cuda-12",
            )],
            "nccl" => vec![host::install_package(seen.machine(), "libnccl-dev", "libnccl-devel")],
            _ => host::use_toolkit(seen.machine(), (12, 8)),
        };
        return Some(
            entity
                .meaning(format!(
                    "The linker of a build looks for {name}, a file that a build needs (the CUDA toolkit has it, for cuDNN and NCCL their development packages), and finds it in no \
                     folder that it searches. NVIDIA's packages for Python have only the name with a number, for programs that run."
                ))
                .causes([
                    Cause::new("It is installed, and the linker does not search its folder.")
                        .check([format!("find / -name '{name}*' -not -path '/proc/*' 2>/dev/null | head; echo \"$LIBRARY_PATH $CUDA_HOME\"")])
                        .fix(["export CUDA_HOME=/usr/local/cuda LIBRARY_PATH=/usr/local/cuda/lib64:$LIBRARY_PATH  # the folder that has it; conda: $CONDA_PREFIX/lib"]),
                    Cause::new("No toolkit is installed, or only a part of one (conda's cuda-nvcc without cuda-libraries-dev).")
                        .check(["ls -d /usr/local/cuda*; nvcc --version".to_owned()])
                        .fix(toolkit),
                    Cause::new("Only NVIDIA's package for Python is there: a link without the number is absent.")
                        .check([format!("ls {folder}")])
                        .fix([format!("# in that folder: ln -s {name}.NUMBER {name}; then: export LIBRARY_PATH={folder}:$LIBRARY_PATH")]),
                ]),
        );
    }
    if matches!(stem, "c10" | "c10_cuda" | "torch" | "torch_cpu" | "torch_cuda" | "torch_python") {
        return Some(
            entity
                .meaning(format!("The linker of a build looks for {name}, a library of torch, which is in torch/lib of the Python that has torch."))
                .fix([
                    format!("{} -c 'import torch, os; print(os.path.join(os.path.dirname(torch.__file__), \"lib\"))'", seen.installer().python()),
                    "export LIBRARY_PATH=FOLDER:$LIBRARY_PATH  # that folder; builds by torch.utils.cpp_extension set it themselves".to_owned(),
                ])
                .package("torch"),
        );
    }
    if stem.starts_with("python3") {
        return Some(
            entity
                .meaning(format!("The linker of a build looks for {name}, which Python's development package has."))
                .fix([host::install_package(seen.machine(), "python3-dev", "python3-devel")]),
        );
    }
    let (_, debian, red_hat) = SYSTEM.iter().find(|(begin, ..)| name.starts_with(begin))?;
    let debian = debian.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
    let dev = |package: &str, end: &str| format!("{package}-{end}");
    Some(
        entity
            .meaning(format!("The linker of a build looks for {name}, which the development package of that system library has."))
            .fix([host::install_package(seen.machine(), &dev(debian, "dev"), &dev(red_hat, "devel"))]),
    )
}

/// One file of a CUDA library that consists of several, such as cuDNN's.
fn part(seen: &PastedError, name: &str, package: &str) -> Entity {
    let python = seen.installer().python();
    let major = cuda_library::major(name);
    let cuda = seen.env().and_then(|env| knowledge::minor_of(env.torch.as_ref()?.cuda.as_deref()?));
    let cuda = cuda.map_or(12, |(major, _)| major);
    let dist = cuda_library::distribution(package, cuda);
    let folder = cuda_library::wheel_folder(&python, package, cuda);
    let spec = match (package, major) {
        ("cudnn", Some(major)) => format!("{dist}=={major}.*"),
        _ => dist.clone(),
    };
    Entity::new("shared-library", name)
        .meaning(format!(
            "{name} is one of the files of the library that the package {dist} has, and the loader does not find it. PyTorch finds NVIDIA's packages alone; other programs \
             search only LD_LIBRARY_PATH and the system's folders."
        ))
        .causes([
            Cause::new(format!("The package {dist} is installed, and its folder is not on the loader's path."))
                .check([format!("ls {folder} | grep {name}")])
                .fix([format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH")]),
            Cause::new("It is not installed, or another release is, which does not have this file or has it under another number.")
                .check([format!("{python} -m pip list | grep -i nvidia; ldconfig -p | grep {}", name.split(".so").next().unwrap_or(name))])
                .fix([String::from(seen.installer().install(&[spec], None))]),
        ])
        .package(dist)
        .rank(3)
}

/// A library of CUDA on Windows, by its file: `cudnn64_8.dll`, `cublas64_12.dll`.
fn windows(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("library")?.rsplit(['/', '\\']).next()?.trim_end_matches(".dll");
    let (stem, number) = word.split_once("64_")?;
    let (package, what) = match cuda_library::family(&format!("lib{stem}.so")) {
        Some(package) => (package, format!("the library that NVIDIA's package {package} has")),
        None => return None,
    };
    let of = match package {
        "cudnn" => format!("cuDNN {number}"),
        _ => format!("{what}, of the CUDA release with the number {number}"),
    };
    Some(
        Entity::new("shared-library", format!("{word}.dll"))
            .meaning(format!(
                "{word}.dll is {of}, on Windows. Windows looks for it in the program's folder and in the folders of PATH, and does not find it. TensorFlow after 2.10 uses no \
                 GPU on Windows itself, only in WSL."
            ))
            .causes([
                Cause::new("It is not installed, or another release is, whose file has another number.")
                    .check([format!("where {word}.dll")])
                    .fix(["# the CUDA toolkit and cuDNN of the release that the program's installation page names"]),
                Cause::new("It is installed, and its bin folder is not on PATH.")
                    .check(["echo %PATH%"])
                    .fix(["# add the bin folders of CUDA and of cuDNN to PATH, then open a new terminal"]),
            ])
            .rank(3),
    )
}

/// A DLL that Python's ctypes does not load, or a DLL that it needs.
fn windows_module(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let name = format!("{}.dll", seen.word("module")?);
    let cuda = seen.text.to_ascii_lowercase().contains("cuda");
    let mut causes = vec![
        Cause::new("The file is there, and a DLL that it needs is not found: CUDA's (cudart, cublas) of the release that it was built for, or Visual C++'s runtime.")
            .check([format!("dumpbin /dependents {name}  # or the program Dependencies"), "where cudart64_12.dll cublas64_12.dll".to_owned()])
            .fix(["# the CUDA toolkit of that release, with its bin folder on PATH (a new terminal), and the Visual C++ redistributable"]),
        Cause::new("The file is absent: a build for another platform or device, or an interrupted installation.")
            .check([format!("dir {name} /s")])
            .fix(["# install the package again, in the build for Windows and this CUDA"]),
    ];
    if !cuda {
        causes.rotate_left(1);
    }
    Some(
        Entity::new("shared-library", &name)
            .meaning(format!("Windows does not load {name}: it or a DLL that it needs is not found. The message does not say which."))
            .causes(causes)
            .rank(3),
    )
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
