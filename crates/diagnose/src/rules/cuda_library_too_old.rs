use super::{Also, Context, Need, Rule, Text};
use crate::abi::build_here;
use crate::cuda_library::known;
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, text};
use crate::requirement;
use crate::torch_build::{installed, live_dist};
use facts::{Confidence, Dist, Finding, FoundBy, MissingSymbol, Needed, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "cuda-library-too-old",
    title: "a CUDA library that lacks a function a package calls",
    about: "\
A compiled file calls a function of a CUDA library that the copy in the process does not have: the file was built with a
newer minor release of CUDA than the library is of. Within one major version a newer library serves older programs, not
the other way round. The name libcudart.so.12 is the same for all of CUDA 12, so the loader finds nothing wrong until it
looks the function up; and a library that torch has loaded is taken for every later file, whatever its own path says.

It shows, when the package is imported, as
  undefined symbol: cudaLibraryGetKernel, version libcudart.so.12
and from torch itself, where an older NCCL was installed over its own (packages for CUDA 11 and 12 share one folder), as
  libtorch_cuda.so: undefined symbol: ncclAlltoAll

Seen by looking each such function up in the library that the file gets.

Build the package here with the toolkit of torch's CUDA, or take its build for that release; or a torch for the newer
release, which brings the newer library.",
    links: &[
        "https://github.com/deepseek-ai/DeepGEMM/issues/137",
        "https://github.com/pytorch/pytorch/issues/119072",
        "https://github.com/pytorch/pytorch/issues/176829",
        "https://github.com/rwth-i6/returnn/issues/1802",
    ],
    texts: &[
        Text::new("undefined symbol: {symbol}, version libcudart.so", "ImportError: /v/lib/python3.12/site-packages/deep_gemm_cpp.cpython-312-x86_64-linux-gnu.so: undefined symbol: cudaLibraryGetKernel, version libcudart.so.12"),
        Text::new("undefined symbol: nccl*", "ImportError: /usr/local/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclAlltoAll"),
    ],
    also: &[
        Also {
            cause: "Another copy of the library is loaded first: LD_LIBRARY_PATH, conda or the system before the environment's.",
            check: &["echo \"$LD_LIBRARY_PATH\"; env -u LD_LIBRARY_PATH python -c 'import torch'  # works so: this is the cause"],
        },
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Libraries whose symbols have no version, by how the symbols begin.
const UNVERSIONED: [(&str, &str); 5] = [
    ("nccl", "libnccl"),
    ("cudnn", "libcudnn"),
    ("cusparseLt", "libcusparseLt"),
    ("nvshmem", "libnvshmem_host"),
    ("cuFile", "libcufile"),
];

/// The library a symbol belongs to, without the number behind `.so`.
fn library_of(symbol: &MissingSymbol) -> Option<&str> {
    match symbol.library.as_deref() {
        Some(library) => library.split(".so").next().filter(|stem| known(stem).is_some()),
        None => UNVERSIONED
            .iter()
            .find(|(begin, _)| symbol.symbol.starts_with(begin))
            .map(|(_, library)| *library),
    }
}

fn check(context: &Context) -> Vec<Finding> {
    let wants = |native: &Native<'_>| {
        let unused = native.is_nvidia() && native.elf.opened_by.is_none();
        let fits = |other: &Native<'_>| other.elf.missing_symbols_total == 0;
        missing_function(native).is_some()
            && !unused
            && !native.is_one_of_several()
            && !native.is_left_to_choice()
            && !native.has_sibling(fits)
    };
    let groups = context.envs.iter().flat_map(|env| by_owner(env, wants));
    groups.filter_map(|group| judge(context, &group)).collect()
}

/// The first function a file wants of a CUDA library that it gets and that has no such function.
fn missing_function<'a>(native: &Native<'a>) -> Option<(&'a MissingSymbol, &'a Needed)> {
    native.elf.missing_symbols.iter().find_map(|symbol| {
        let library = library_of(symbol)?;
        let is_it = |needed: &&Needed| needed.name.split(".so").next() == Some(library);
        let needed = native.elf.needed.iter().find(is_it)?;
        // Where LD_LIBRARY_PATH hides the right copy, `library-path-shadows` says so.
        let shadowed = needed.found_by == Some(FoundBy::LdLibraryPath) && needed.other.is_some();
        (needed.path.is_some() && !shadowed).then_some((symbol, needed))
    })
}

fn judge(context: &Context, group: &[Native<'_>]) -> Option<Finding> {
    let opened = |native: &&Native<'_>| native.is_opened();
    let shown = group.iter().find(opened).or(group.first())?;
    let severity = if group.iter().any(|native| opened(&native)) {
        Severity::Error
    } else {
        Severity::Warning
    };
    let (symbol, needed) = missing_function(shown)?;
    let path = needed.path.as_deref().unwrap_or_default();
    let title = format!(
        "{} in {} calls {}, which the {} here does not have",
        shown.label(),
        shown.env.root,
        symbol.symbol,
        needed.name
    );
    let mut draft = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(format!("needs {} of {}", symbol.symbol, needed.name), shown.file.path.clone())
        .evidence(
            format!(
                "has no such function; found by {}",
                needed.found_by.map_or("the loader", FoundBy::as_str)
            ),
            path,
        );
    if let Some(other) = &needed.other {
        draft = draft.evidence("another copy, which the file would find by itself", other.clone());
    }
    let torch = installed(shown.env);
    if let Some(torch) = &torch {
        let cuda = torch
            .torch
            .cuda
            .as_deref()
            .map_or("without CUDA".into(), |cuda| format!("with CUDA {cuda}"));
        draft = draft.evidence(
            format!("torch {} was built {cuda}", torch.torch.version),
            torch.torch.source.clone(),
        );
    }
    // NVIDIA's packages are released together: it is not the caller that is wrong.
    let fix: Vec<RemedyStep> = match shown.is_torch() || shown.is_nvidia() {
        true => install_required(shown, needed),
        false => crate::abi::match_torch(context.machine, shown),
    };
    let fix = if fix.is_empty() { build_here(shown).into_iter().collect() } else { fix };
    let cause = "The file was built with a newer CUDA of the same major version than the library is of; a newer library \
                 serves older programs, but an older one has not what newer programs call.";
    Some(draft.cause(cause).fix(fix).finish())
}

/// Installs the package that the caller or torch requires for a library, over what lies there, and takes away others that
/// bring a file of the same name.
fn install_required(native: &Native<'_>, needed: &Needed) -> Vec<RemedyStep> {
    let installer = Installer::of(native.env);
    let Some(package) = known(&needed.name).map(|package| format!("nvidia-{package}")) else {
        return Vec::new();
    };
    let is_it = |name: &str| {
        let rest = name.strip_prefix(&package);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-cu"))
    };
    let owners = native.owner().into_iter().chain(live_dist(native.env, "torch"));
    let pins = owners.flat_map(|dist| &dist.requires);
    let pins: Vec<_> = pins
        .filter_map(|line| requirement::parse(line))
        .filter(|wanted| is_it(&wanted.name))
        .collect();
    let exact = pins.iter().find(|pin| pin.constraint().starts_with("=="));
    let pin = exact.or(pins.first());
    let others = native.env.dists.iter().map(|dist| Dist::normalise(&dist.name));
    let others: Vec<String> =
        others.filter(|name| is_it(name) && pin.is_none_or(|pin| pin.name != *name)).collect();
    let Some(pin) = pin else {
        let torch = installed(native.env);
        let torch =
            torch.map_or("torch".into(), |torch| format!("torch=={}", torch.version.public()));
        return vec![
            "# its own requirements name the packages it was built with:".into(),
            installer.install(&[torch], None).reinstalled(),
        ];
    };
    let spec = format!("{}{}", pin.name, pin.constraint());
    let mut lines = Vec::new();
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(String::as_str).collect();
        lines.push("# brings a file of the same name for another CUDA:".into());
        lines.push(installer.uninstall(&names));
    }
    lines.push(installer.install(&[spec], None).reinstalled().without_deps());
    lines
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines};
    use facts::Confidence::Certain;
    use facts::Severity::{Error, Warning};
    use facts::{Elf, FoundBy, MissingSymbol, PyEnv};

    const CUDART: &str = "/v/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12";

    fn lacks(library: &str, path: &str, by: FoundBy) -> Elf {
        Elf {
            needed: vec![found(library, path, by)],
            missing_symbols: vec![MissingSymbol {
                symbol: "cudaLibraryGetKernel".into(),
                demangled: None,
                version: Some(library.into()),
                library: Some(library.into()),
                instead: Vec::new(),
            }],
            missing_symbols_total: 1,
            ..elf()
        }
    }

    pub(super) fn cases() -> Vec<Case> {
        let env = |owner: &str, file: &str, elf: Elf| -> Vec<PyEnv> {
            let env = env("/v").torch("2.7.1+cu126", Some("12.6")).dist("deep_gemm", "2.0.0");
            vec![env.compiled(owner, file, elf).build()]
        };
        let mut shadowed = lacks(
            "libcudart.so.12",
            "/usr/local/cuda/lib64/libcudart.so.12",
            FoundBy::LdLibraryPath,
        );
        shadowed.needed[0].other = Some(CUDART.into());
        let mut older = lacks("libnccl.so.2", "/x/nvidia/nccl/lib/libnccl.so.2", FoundBy::Runpath);
        older.missing_symbols[0].symbol = "ncclAlltoAll".into();
        older.missing_symbols[0].version = None;
        older.missing_symbols[0].library = None;
        let nccl = crate::test_support::env("/v")
            .torch("2.7.1+cu126", Some("12.6"))
            .requires("torch", "nvidia-nccl-cu12==2.27.3; platform_system == \"Linux\"")
            .dist("nvidia-nccl-cu11", "2.14.3")
            .dist("nvidia-nccl-cu12", "2.27.3")
            .compiled("torch", "torch/lib/libtorch_cuda.so", older)
            .build();
        let mut jit = lacks(
            "libnvJitLink.so.12",
            "/x/nvidia/nvjitlink/lib/libnvJitLink.so.12",
            FoundBy::Runpath,
        );
        jit.missing_symbols[0].symbol = "__nvJitLinkCreate_12_8".into();
        jit.opened_by = Some("/x/libtorch_cuda.so".into());
        let jit = crate::test_support::env("/v")
            .torch("2.8.0", Some("12.8"))
            .requires("torch", "nvidia-nvjitlink-cu12==12.8.93; platform_system == \"Linux\"")
            .dist("nvidia-nvjitlink-cu12", "12.1.105")
            .dist("nvidia-cusparse-cu12", "12.5.8.93")
            .requires("nvidia-cusparse-cu12", "nvidia-nvjitlink-cu12")
            .compiled("nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", jit)
            .build();
        let mut fits = lacks("libcudart.so.12", CUDART, FoundBy::Loaded);
        fits.missing_symbols.clear();
        vec![
            Case::new(
                "an extension built with a newer CUDA than torch brings",
                machines::h200(),
                env("deep_gemm", "deep_gemm_cpp.so", lacks("libcudart.so.12", CUDART, FoundBy::Loaded)),
            )
            .finds(
                Error,
                Certain,
                &[
                    "deep_gemm 2.0.0 in /v calls cudaLibraryGetKernel, which the libcudart.so.12 here does not have",
                    "deep_gemm_cpp.so]",
                    "nvidia/cuda_runtime/lib/libcudart.so.12]",
                    "torch 2.7.1+cu126 was built with CUDA 12.6",
                ],
            ),
            Case::new(
                "torch beside an older package than it was built with",
                machines::h200(),
                env(
                    "torch",
                    "torch/lib/libtorch_cpu.so",
                    lacks("libcupti.so.12", "/x/libcupti.so.12", FoundBy::Runpath),
                ),
            )
            .finds(Error, Certain, &["pip install --force-reinstall torch==2.7.1"]),
            Case::new("an older NCCL over torch's own", machines::h200(), vec![nccl]).finds(
                Error,
                Certain,
                &[
                    "calls ncclAlltoAll, which the libnccl.so.2 here does not have",
                    "pip uninstall --yes nvidia-nccl-cu11",
                    "pip install --force-reinstall --no-deps nvidia-nccl-cu12==2.27.3",
                ],
            ),
            Case::new("one of NVIDIA's packages older than another", machines::h200(), vec![jit])
                .finds(
                    Error,
                    Certain,
                    &[
                        "nvidia-cusparse-cu12 12.5.8.93 in /v calls __nvJitLinkCreate_12_8",
                        "pip install --force-reinstall --no-deps nvidia-nvjitlink-cu12==12.8.93",
                    ],
                )
                .without(&["uninstall"]),
            Case::new(
                "a library that may never be opened",
                machines::h200(),
                env("deep_gemm", "libodd.so", lacks("libcudart.so.12", CUDART, FoundBy::Loaded)),
            )
            .finds(Warning, Certain, &["libodd.so"]),
            Case::new("an older NCCL under torch 2.8, whose libtorch_cpu.so is clean", machines::h200(), {
                let mut older = lacks("libnccl.so.2", "/x/nvidia/nccl/lib/libnccl.so.2", FoundBy::Runpath);
                older.missing_symbols[0].symbol = "ncclCommWindowRegister".into();
                older.missing_symbols[0].version = None;
                older.missing_symbols[0].library = None;
                let mut envs = env("torch", "torch/lib/libtorch_cuda.so", older);
                let mut clean = envs[0].native_files[0].clone();
                clean.path = clean.path.replace("libtorch_cuda", "libtorch_cpu");
                clean.elf = Some(elf());
                envs[0].native_files.push(clean);
                envs
            })
            .finds(Error, Certain, &["calls ncclCommWindowRegister, which the libnccl.so.2 here does not have"]),
            Case::new("NVSHMEM's symbols have a version", machines::h200(), {
                let mut older = lacks("libnvshmem_host.so.3", "/x/libnvshmem_host.so.3", FoundBy::Runpath);
                older.missing_symbols[0].symbol = "nvshmemx_hostlib_init_attr".into();
                older.missing_symbols[0].version = Some("NVSHMEM".into());
                env("torch", "torch/lib/libtorch_nvshmem.so", older)
            })
            .finds(Error, Certain, &["calls nvshmemx_hostlib_init_attr, which the libnvshmem_host.so.3 here"]),
            Case::new("LD_LIBRARY_PATH hides the right copy", machines::h200(), env("deep_gemm", "x.so", shadowed)),
            Case::new("everything is there", machines::h200(), env("deep_gemm", "x.so", fits)),
            Case::new(
                "a library of nobody's concern here",
                machines::h200(),
                env("deep_gemm", "x.so", lacks("libmpi.so.40", "/usr/lib/libmpi.so.40", FoundBy::LdSoCache)),
            ),
        ]
    }
}
