use super::{Context, Need, PastedError, Rule, Text};
use crate::cuda_library::{
    common_cuda, cuda_of_library, distribution, is_for_torch, is_preloaded, known, library,
    looks_into_packages, major, own_extras, soname, sonames, wheel_folder,
};
use crate::host;
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, quote, text};
use crate::torch_build::installed;
use facts::{Confidence, Finding, Needed, PyEnv, RemedyStep, Severity};

/// The loader's error for a missing library, and a sample with a release number.
macro_rules! not_there {
    ($library:literal, $release:literal) => {
        Text::new(
            concat!($library, ".so.{major}: cannot open shared object file"),
            concat!(
                "ImportError: ",
                $library,
                ".so.",
                $release,
                ": cannot open shared object file: No such file or directory"
            ),
        )
    };
}

pub(super) const RULE: Rule = Rule {
    id: "missing-cuda-library",
    title: "a CUDA library that a package loads is missing",
    about: "\
A compiled file needs a CUDA library by its soname, and none of the dynamic loader's search paths has it. torch's wheels
require these libraries as packages named nvidia-...; one of them was removed, not installed (--no-deps), or is of
another major version than the file needs.

It shows as
  ImportError: libcublas.so.12: cannot open shared object file: No such file or directory
with the major version that is needed. (libcuda.so.1 is part of the driver: see `no-driver`.)

Detected by resolving each needed soname (DT_NEEDED) as the loader does: RPATH, LD_LIBRARY_PATH, RUNPATH, the system.

Install the package with the library, or reinstall torch with its dependencies.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/36099",
        "https://github.com/vllm-project/vllm/issues/52300",
    ],
    texts: &[
        Text::new("libcudart.so.{major}: cannot open shared object file", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
        // cuDNN loads its sublibraries by soname, and finds none or those of another release.
        Text::new("Unable to load any of *libcudnn_", "Unable to load any of {libcudnn_graph.so.9.1.0, libcudnn_graph.so.9.1, libcudnn_graph.so.9, libcudnn_graph.so} Invalid handle. Cannot load symbol cudnnCreate"),
        not_there!("libcublas", "12"),
        Text::new("failed to open libnvrtc-builtins.so", "nvrtc: error: failed to open libnvrtc-builtins.so.13.0"),
        Text::new("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", "Failed to call nvrtcCompileProgram: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"),
        // https://github.com/tensorflow/tensorflow/issues/60646
        Text::new("Cannot dlopen some GPU libraries.", "W tensorflow/core/common_runtime/gpu/gpu_device.cc:1956] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to use GPU."),
        not_there!("libcublasLt", "12"),
        not_there!("libcudnn", "9"),
        not_there!("libcufft", "11"),
        not_there!("libcurand", "10"),
        not_there!("libcusparse", "12"),
        not_there!("libcusolver", "12"),
        not_there!("libnccl", "2"),
        not_there!("libnvrtc", "12"),
        not_there!("libnvJitLink", "12"),
        not_there!("libcupti", "12"),
        not_there!("libcusparseLt", "0"),
        not_there!("libcufile", "12"),
        not_there!("libnvToolsExt", "1"),
        Text::new("Could not load library libcudnn_*Error:", "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such file or directory"),
    ],
    remedy: |seen| {
        if let Some(lines) = for_several(seen) {
            return text(lines);
        }
        let nvrtc = seen.text.contains("NVRTC").then_some("cuda-nvrtc");
        let name = nvrtc.unwrap_or_else(|| library(seen.text));
        let mut lines = for_text(seen, name);
        lines.extend(on_loader_path(seen, name));
        text(lines)
    },
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn cuda_of_torch(env: &PyEnv) -> Option<u32> {
    installed(env).and_then(|torch| torch.cuda).map(|cuda| cuda.0)
}

/// The packages of several missing libraries, for the CUDA release that has all of them. `None` for one library.
fn for_several(seen: &PastedError) -> Option<Vec<RemedyStep>> {
    let missing: Vec<&str> = sonames(seen.text)
        .into_iter()
        .filter(|name| seen.text.contains(&format!("{name}: cannot open shared object file")))
        .collect();
    let mut packages: Vec<&str> = missing.iter().filter_map(|name| known(name)).collect();
    packages.sort_unstable();
    packages.dedup();
    let cuda = common_cuda(&missing, seen.env().and_then(cuda_of_torch))?;
    if packages.len() < 2 || cuda < 11 {
        return None;
    }
    let installer = seen.installer();
    let release = missing.iter().find(|name| known(name) == Some("cudnn")).and_then(|it| major(it));
    let specs: Vec<String> = packages
        .iter()
        .map(|package| match release.filter(|_| *package == "cudnn") {
            Some(release) => format!("{}=={release}.*", distribution(package, cuda)),
            None => distribution(package, cuda),
        })
        .collect();
    let mut lines = vec![
        format!("# the packages that have {} for CUDA {cuda}:", missing.join(" and ")).into(),
        installer.install(&specs, None),
    ];
    if host::runtime_in(seen.text).is_some() {
        let cudnn = release.map_or(String::new(), |release| format!("-cudnn{release}"));
        lines.push(
            format!("# or an image of CUDA {cuda} that has them (nvidia/cuda with{cudnn}-runtime in its tag, not base)")
                .into(),
        );
    }
    if !seen.text.contains("torch") {
        let python = installer.python();
        let folders: Vec<String> =
            packages.iter().map(|package| wheel_folder(&python, package, cuda)).collect();
        lines.push(
            "# if the packages are installed already, their folders have to be on the path of the loader:"
                .into(),
        );
        lines.push(format!("export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH", folders.join(":")).into());
    }
    Some(lines)
}

/// The CUDA major version in the soname decides the package; torch's decides if the soname has none.
fn for_text(seen: &PastedError, name: &str) -> Vec<RemedyStep> {
    let installer = seen.installer();
    let of_torch = seen.env().and_then(cuda_of_torch);
    let soname = soname(seen.text).filter(|soname| known(soname) == Some(name));
    let Some(wanted) = soname.and_then(cuda_of_library) else {
        let cuda = of_torch.unwrap_or(12);
        let torch = if of_torch.is_some() { ", which torch uses" } else { "" };
        let head = format!("# the package that has it for CUDA {cuda}{torch}:");
        let mut lines = vec![RemedyStep::from(head)];
        let release = soname.filter(|_| name == "cudnn").and_then(major);
        lines.push(match release {
            // cuDNN has its own major versions: a program built with cuDNN 8 does not load cuDNN 9.
            Some(release) => {
                installer.install(&[format!("{}=={release}.*", distribution(name, cuda))], None)
            }
            None => installer.install(&[distribution(name, cuda)], None),
        });
        return lines;
    };
    let library = soname.unwrap_or(name);
    let head = match of_torch.filter(|of_torch| *of_torch != wanted) {
        Some(of_torch) => format!(
            "# {library} is of CUDA {wanted}, and torch here uses CUDA {of_torch}: install the build of the package that loads it for \
             CUDA {of_torch}, or install that library too:"
        ),
        None => format!("# the package that has {library} of CUDA {wanted}:"),
    };
    // PyPI has NVIDIA's libraries from CUDA 11 on.
    if wanted < 11 {
        return vec![
            format!("# {library} is of CUDA {wanted}: install the build of the package that loads it for the CUDA of this system (Jetson: for its JetPack), or install the toolkit of CUDA {wanted}")
                .into(),
        ];
    }
    vec![head.into(), installer.install(&[distribution(name, wanted)], None)]
}

/// For a program that opens the library itself: torch loads the libraries of NVIDIA's packages by path, and other
/// programs find them only on the loader's path.
fn on_loader_path(seen: &PastedError, name: &str) -> Vec<RemedyStep> {
    if seen.text.contains("torch") {
        return Vec::new();
    }
    let cuda = soname(seen.text).and_then(cuda_of_library);
    let cuda = cuda.or_else(|| seen.env().and_then(cuda_of_torch)).unwrap_or(12);
    if cuda < 11 {
        return Vec::new();
    }
    let folder = wheel_folder(&seen.installer().python(), name, cuda);
    vec![
        "# if the package is installed already, its folder has to be on the path of the loader:"
            .into(),
        format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH").into(),
    ]
}

fn commands(installer: &Installer<'_>, name: &str, cuda: u32) -> Vec<RemedyStep> {
    let mut lines = install(installer, name, cuda);
    lines.insert(
        0,
        format!("# the package that has it for the CUDA {cuda} of the torch here:").into(),
    );
    lines
}

fn install(installer: &Installer<'_>, name: &str, cuda: u32) -> Vec<RemedyStep> {
    vec![installer.install(&[distribution(name, cuda)], None)]
}

/// Whether the package needs the file at import: the import opens it, or it is an extension of torch. A module deep in a
/// package that loads CUDA in its own way (CuPy), or one that users import by name (`cupyx.cusolver`), is opened at first
/// use; a private module directly in the package's folder is opened by the import.
fn is_loaded(native: &Native<'_>) -> bool {
    let direct = native.env.site_packages.iter().any(|site| {
        let inside = native.file.path.strip_prefix(site.as_str());
        let parts = inside.map_or(0, |inside| inside.trim_start_matches('/').split('/').count());
        parts == 1 || parts == 2 && native.file.name().starts_with('_')
    });
    native.is_opened() && (direct || native.elf.opened_by.is_some() || is_for_torch(native))
}

fn check(context: &Context) -> Vec<Finding> {
    let wants = |native: &Native<'_>| {
        let unused = native.is_nvidia() && native.elf.opened_by.is_none();
        missing(native).is_some()
            && !unused
            && native.is_for(context.machine)
            && !native.is_plugin_without_torch()
            && !native.is_one_of_several()
            && !native.is_left_to_choice()
    };
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    let hidden =
        context.envs.iter().flat_map(|env| by_owner(env, |native| out_of_reach(native).is_some()));
    groups
        .filter_map(|group| judge(&group))
        .chain(hidden.filter_map(|group| tell(&group)))
        .collect()
}

/// A CUDA library that an extension needs and that is in the environment, but not on the loader's search path. The package
/// may load it by path before (JAX and ONNX Runtime do), which no file shows; torch does this for its own libraries.
fn out_of_reach<'a>(native: &Native<'a>) -> Option<(&'a Needed, &'a str)> {
    if native.is_nvidia() || native.is_torch() || !native.is_opened() || native.is_one_of_several()
    {
        return None;
    }
    let mut needed = native.elf.needed.iter().filter(|needed| needed.path.is_none());
    needed.find_map(|needed| known(&needed.name).and(Some((needed, needed.other.as_deref()?))))
}

fn tell(group: &[Native<'_>]) -> Option<Finding> {
    let first = group.first()?;
    let (needed, other) = out_of_reach(first)?;
    // The loader searches for a file with the needed name. A copy that a wheel renamed has to be preloaded.
    let reach = match other.rsplit_once('/') {
        Some((folder, file)) if file == needed.name => {
            format!("export LD_LIBRARY_PATH={}", quote(folder))
        }
        _ => format!("export LD_PRELOAD={}", quote(other)),
    };
    let title = format!(
        "{} in {} finds {} only if its package loads it by path",
        first.label(),
        first.env.root,
        needed.name
    );
    let search = match first.elf.search.is_empty() {
        true => "it has no RPATH or RUNPATH".to_owned(),
        false => format!("its own search path is {}", first.elf.search.join(":")),
    };
    let finding = RULE
        .finding(Severity::Info, Confidence::Possible, title)
        .evidence(format!("needs {} (DT_NEEDED); {search}", needed.name), first.file.path.clone())
        .evidence("a copy outside the loader's search path", other)
        .cause(
            "The loader searches the file's own search path and the system's folders. Some packages open the library by \
             its path before they import the file; if this one does not, its import fails.",
        )
        .fix(["# only if the import fails:".to_owned(), reach])
        .finish();
    Some(finding)
}

/// The first CUDA library a file needs that is neither on the loader's search path nor where its package loads it from.
fn missing<'a>(native: &Native<'a>) -> Option<&'a Needed> {
    let mut needed = native.elf.needed.iter().filter(|needed| needed.path.is_none());
    needed.find(|needed| {
        let elsewhere = match needed.other.as_deref() {
            None => false,
            // torch preloads libraries from the folders of NVIDIA's packages, and no other copy.
            Some(other) if native.is_torch() || native.is_nvidia() => is_preloaded(other),
            // Other packages may open the copy by path, which no file shows.
            Some(_) => true,
        };
        !elsewhere && known(&needed.name).is_some()
    })
}

fn judge(group: &[Native<'_>]) -> Option<Finding> {
    let required = group.iter().find(|native| !native.is_optional());
    let first = required.or(group.first())?;
    let env = first.env;
    let needed = missing(first)?;
    let package = known(&needed.name)?;
    let loaded = group.iter().find(|native| is_loaded(native));
    let severity = match (loaded, required) {
        (Some(_), _) => Severity::Error,
        (None, Some(_)) => Severity::Warning,
        (None, None) => Severity::Info,
    };
    let shown = loaded.unwrap_or(first);
    let gone = match needed.other {
        Some(_) => "which is not where the loader looks",
        None => "which is nowhere here",
    };
    let mut draft = RULE
        .finding(
            severity,
            Confidence::Certain,
            format!("{} in {} needs {}, {gone}", first.label(), env.root, needed.name),
        )
        .evidence(format!("needs {} (DT_NEEDED)", needed.name), shown.file.path.clone());
    if !first.elf.search.is_empty() {
        draft = draft.evidence(
            format!("its own search path is {}", first.elf.search.join(":")),
            first.file.path.clone(),
        );
    }
    if let Some(other) = &needed.other {
        draft = draft.evidence("a copy outside every search path", other.clone());
    }
    if let (Severity::Info, Some(by)) = (severity, &first.elf.optional_in) {
        let cause = "The package tries to load this file, handles the failure and works without it; the file's features are \
                     not available until the library is installed.";
        let draft = draft.evidence("loads it and handles the failure", by.clone());
        return Some(draft.cause(cause).finish());
    }
    let wanted = major(&needed.name);
    let cuda = cuda_of_torch(env);
    if let Some(torch) = env.torch.as_ref() {
        let built =
            torch.cuda.as_deref().map_or("without CUDA".into(), |cuda| format!("with CUDA {cuda}"));
        draft = draft
            .evidence(format!("torch {} was built {built}", torch.version), torch.source.clone());
    }
    // Only these libraries have the CUDA major version after `.so`; others have their own versions.
    let follows_cuda =
        ["cublas", "cuda-runtime", "cuda-nvrtc", "nvjitlink", "cuda-cupti"].contains(&package);
    let other_major = match (follows_cuda, wanted, cuda) {
        (true, Some(wanted), Some(cuda)) if wanted != cuda && !first.is_torch() => {
            Some((wanted, cuda))
        }
        _ => None,
    };
    let installer = Installer::of(env);
    let (cause, fix) = match other_major {
        Some((wanted, cuda)) => (
            format!(
                "The file was built for CUDA {wanted}, and the torch here brings the libraries of CUDA {cuda}: two \
                 major versions do not serve each other."
            ),
            replace(first, cuda),
        ),
        None => {
            let release = cuda.or_else(|| cuda_of_library(&needed.name)).unwrap_or(12);
            let cause = "The library is on none of the loader's search paths: RPATH, LD_LIBRARY_PATH, RUNPATH, the system's \
                         cache and folders. The package that has it was removed, or never installed.";
            let fix = match (cuda, is_for_torch(first) || looks_into_packages(first)) {
                (Some(cuda), true) => commands(&installer, package, cuda),
                (None, true) => install(&installer, package, release),
                (_, false) if own_extras(first).is_some() => own_extras(first)
                    .map(|spec| installer.install(&[spec], None))
                    .into_iter()
                    .collect(),
                // This file's search path does not include the folders of NVIDIA's packages from PyPI.
                (_, false) => vec![
                    format!(
                        "# it uses the libraries of a CUDA {release} toolkit; if one is installed:"
                    )
                    .into(),
                    format!("export LD_LIBRARY_PATH=/usr/local/cuda-{release}/lib64").into(),
                ],
            };
            (cause.to_owned(), fix)
        }
    };
    Some(draft.cause(cause).fix(fix).finish())
}

/// Installs the package's build for torch's CUDA.
fn replace(native: &Native<'_>, cuda: u32) -> Vec<RemedyStep> {
    let name = native.owner_name().unwrap_or_default();
    let what = format!(
        "# install {name}'s build for CUDA {cuda}, or build it here against the torch here:"
    );
    let mut lines = vec![what.into()];
    lines.extend(crate::abi::build_here(native));
    lines
}

#[cfg(test)]
mod tests;
