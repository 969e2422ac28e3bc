use super::{Context, Need, Rule, Text};
use crate::cuda_library::{
    cuda_of_library, distribution, is_for_torch, is_preloaded, known, library, looks_into_packages,
    major, own_extras,
};
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, quote, text};
use crate::torch_build::installed;
use facts::{Confidence, Finding, Needed, PyEnv, RemedyStep, Severity};

/// The loader's words for a library, and a sample of them with a release.
macro_rules! not_there {
    ($library:literal, $release:literal) => {
        Text {
            pattern: concat!($library, ".so.{major}: cannot open shared object file"),
            sample: concat!(
                "ImportError: ",
                $library,
                ".so.",
                $release,
                ": cannot open shared object file: No such file or directory"
            ),
        }
    };
}

pub(super) const RULE: Rule = Rule {
    id: "missing-cuda-library",
    title: "a CUDA library that a package loads is not there",
    about: "\
A compiled file asks the dynamic loader for a CUDA library by name, and none of the places it looks in has it. torch's
wheels bring these libraries as packages named nvidia-...; one of them was removed, not installed (--no-deps), or is
of another major version than the file asks for.

It shows as
  ImportError: libcublas.so.12: cannot open shared object file: No such file or directory
with the number of the major version that is asked for. (libcuda.so.1 is the driver's own, and another matter.)

Seen by looking each needed name (DT_NEEDED) up where the loader would: RPATH, LD_LIBRARY_PATH, RUNPATH, the system.

Install the package that brings the library, or torch again with its dependencies.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/36099",
        "https://github.com/vllm-project/vllm/issues/52300",
    ],
    texts: &[
        Text { pattern: "libcudart.so.{major}: cannot open shared object file", sample: "" },
        // cuDNN opens its own parts by name, and finds none of them or those of another release.
        Text {
            pattern: "Unable to load any of *libcudnn_",
            sample: "Unable to load any of {libcudnn_graph.so.9.1.0, libcudnn_graph.so.9.1, libcudnn_graph.so.9, libcudnn_graph.so} Invalid handle. Cannot load symbol cudnnCreate",
        },
        not_there!("libcublas", "12"),
        Text {
            pattern: "failed to open libnvrtc-builtins.so",
            sample: "nvrtc: error: failed to open libnvrtc-builtins.so.13.0",
        },
        Text {
            pattern: "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
            sample: "Failed to call nvrtcCompileProgram: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        },
        // https://github.com/tensorflow/tensorflow/issues/60646
        Text {
            pattern: "Cannot dlopen some GPU libraries.",
            sample: "W tensorflow/core/common_runtime/gpu/gpu_device.cc:1956] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to use GPU.",
        },
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
        Text {
            pattern: "Could not load library libcudnn_*Error:",
            sample: "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such file or directory",
        },
    ],
    remedy: |seen| {
        let cuda = seen.env().and_then(cuda_of_torch).unwrap_or(12);
        let nvrtc = seen.text.contains("NVRTC").then_some("cuda-nvrtc");
        text(commands(&seen.installer(), nvrtc.unwrap_or_else(|| library(seen.text)), cuda))
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

fn commands(installer: &Installer<'_>, name: &str, cuda: u32) -> Vec<RemedyStep> {
    let mut lines = install(installer, name, cuda);
    lines.insert(
        0,
        format!("# the package that brings it for the CUDA {cuda} of the torch here:").into(),
    );
    lines
}

fn install(installer: &Installer<'_>, name: &str, cuda: u32) -> Vec<RemedyStep> {
    vec![installer.install(&[distribution(name, cuda)], None)]
}

/// Whether its package cannot do without it: the import opens it, or it was made for torch, whose libraries it shares. A module
/// deep in a package that brings its own way to CUDA (CuPy), or one that users import by its name (`cupyx.cusolver`), is opened
/// when it is first used; a private one right in the package's folder is what its import opens.
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

/// A CUDA library that an extension needs and that lies in the environment, but not where the loader looks. Its package
/// may load it by itself before (JAX's and ONNX Runtime's do), which no file shows; torch does so with its own.
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
    // The loader looks for a file of the needed name. A copy that a wheel renamed only answers once it is loaded.
    let reach = match other.rsplit_once('/') {
        Some((folder, file)) if file == needed.name => {
            format!("export LD_LIBRARY_PATH={}", quote(folder))
        }
        _ => format!("export LD_PRELOAD={}", quote(other)),
    };
    let title = format!(
        "{} in {} finds {} only if its package loads it by itself",
        first.what(),
        first.env.root,
        needed.name
    );
    let search = match first.elf.search.is_empty() {
        true => "it has no search path of its own".to_owned(),
        false => format!("its own search path is {}", first.elf.search.join(":")),
    };
    let finding = RULE
        .finding(Severity::Info, Confidence::Possible, title)
        .evidence(format!("needs {} (DT_NEEDED); {search}", needed.name), first.file.path.clone())
        .evidence("it lies here, where the loader does not look", other)
        .cause(
            "The loader looks in the file's own search path and in the system's folders. Some packages open the library \
             by its path before they import the file; where this one does not, its import fails.",
        )
        .fix(["# only where the import fails:".to_owned(), reach])
        .done();
    Some(finding)
}

/// The first CUDA library a file needs that lies neither where the loader looks nor where its package would load it from.
fn missing<'a>(native: &Native<'a>) -> Option<&'a Needed> {
    let mut needed = native.elf.needed.iter().filter(|needed| needed.path.is_none());
    needed.find(|needed| {
        let elsewhere = match needed.other.as_deref() {
            None => false,
            // torch loads by their paths what lies in the folders of NVIDIA's packages, and no other copy.
            Some(other) if native.is_torch() || native.is_nvidia() => is_preloaded(other),
            // What other packages open by themselves no file shows.
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
            format!("{} in {} needs {}, {gone}", first.what(), env.root, needed.name),
        )
        .evidence(format!("needs {} (DT_NEEDED)", needed.name), shown.file.path.clone());
    if !first.elf.search.is_empty() {
        draft = draft.evidence(
            format!("its own search path is {}", first.elf.search.join(":")),
            first.file.path.clone(),
        );
    }
    if let Some(other) = &needed.other {
        draft = draft.evidence("a copy lies where nothing looks for it", other.clone());
    }
    if let (Severity::Info, Some(by)) = (severity, &first.elf.optional_in) {
        let cause = "The package tries to load this file, handles the failure and works without it; what the file does is not \
                     available until the library is installed.";
        let draft = draft.evidence("loads it and handles the failure", by.clone());
        return Some(draft.cause(cause).done());
    }
    let wanted = major(&needed.name);
    let cuda = cuda_of_torch(env);
    if let Some(torch) = env.torch.as_ref() {
        let built =
            torch.cuda.as_deref().map_or("without CUDA".into(), |cuda| format!("with CUDA {cuda}"));
        draft = draft
            .evidence(format!("torch {} was built {built}", torch.version), torch.source.clone());
    }
    // The number behind `.so` is the CUDA release's major version only in these; others count for themselves.
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
            let cause = "None of the places the loader looks in has it: RPATH, LD_LIBRARY_PATH, RUNPATH, the system's cache \
                         and folders. The package that brings it was removed, or never installed.";
            let fix = match (cuda, is_for_torch(first) || looks_into_packages(first)) {
                (Some(cuda), true) => commands(&installer, package, cuda),
                (None, true) => install(&installer, package, release),
                (_, false) if own_extras(first).is_some() => {
                    own_extras(first).map(|spec| installer.install(&[spec], None)).into_iter().collect()
                }
                // NVIDIA's packages from a Python index would lie where this file does not look.
                (_, false) => vec![
                    format!(
                        "# it uses the libraries of a CUDA {release} toolkit; where one is installed:"
                    )
                    .into(),
                    format!("export LD_LIBRARY_PATH=/usr/local/cuda-{release}/lib64").into(),
                ],
            };
            (cause.to_owned(), fix)
        }
    };
    Some(draft.cause(cause).fix(fix).done())
}

/// Gets the package's build for torch's CUDA.
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
mod tests {
    use crate::test_support::{Case, elf, env, lacking, machines};
    use facts::{Confidence::*, Elf, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |torch: (&str, &str), owner: &str, file: &str, elf: Elf| -> Vec<PyEnv> {
            let env = env("/v").torch(torch.0, Some(torch.1)).dist("flash_attn", "2.8.3");
            vec![env.compiled(owner, file, elf).build()]
        };
        let cu130 = ("2.11.0+cu130", "13.0");
        let cu128 = ("2.9.1+cu128", "12.8");
        let elsewhere = || {
            let mut elf = lacking("libcudart.so.12");
            elf.needed[0].other =
                Some("/v/lib/python3.12/site-packages/nvidia/x/lib/libcudart.so.12".into());
            elf
        };
        vec![
            Case::new(
                "an extension for CUDA 12 beside a torch for 13 (row 15)",
                machines::h200(),
                env(cu130, "flash_attn", "flash_attn_2_cuda.so", lacking("libcudart.so.12")),
            )
            .finds(
                Error,
                Certain,
                &[
                    "flash_attn 2.8.3 in /v needs libcudart.so.12, which is nowhere here",
                    "needs libcudart.so.12 (DT_NEEDED) [/v/lib/python3.12/site-packages/flash_attn_2_cuda.so]",
                    "torch 2.11.0+cu130 was built with CUDA 13.0",
                    "built for CUDA 12, and the torch here brings the libraries of CUDA 13",
                    "FLASH_ATTENTION_FORCE_BUILD=TRUE",
                ],
            ),
            Case::new(
                "torch without one of its packages",
                machines::a10(),
                env(cu128, "torch", "torch/lib/libtorch_cuda.so", lacking("libcusparseLt.so.0")),
            )
            .finds(
                Error,
                Certain,
                &["torch 2.9.1 in /v needs libcusparseLt.so.0", "pip install nvidia-cusparselt-cu12"],
            ),
            Case::new(
                "a package that keeps CUDA's number in its name from 13 on",
                machines::a10(),
                env(cu130, "torch", "torch/lib/libtorch_cuda.so", lacking("libnvshmem_host.so.3")),
            )
            .finds(Error, Certain, &["needs libnvshmem_host.so.3", "pip install nvidia-nvshmem-cu13"]),
            Case::new("CuPy finds its CUDA when it is first used", machines::a10(), {
                let elf = || Elf { module: Some(true), ..lacking("libcufft.so.11") };
                let env = crate::test_support::env("/v").dist("cupy-cuda12x", "13.4.0");
                let env = env.compiled("cupy-cuda12x", "cupy/cuda/cufft.cpython-312-x86_64-linux-gnu.so", elf());
                vec![env.compiled("cupy-cuda12x", "cupyx/cusolver.cpython-312-x86_64-linux-gnu.so", elf()).build()]
            })
            .finds(
                Warning,
                Certain,
                &[
                    "cupy-cuda12x 13.4.0 in /v needs libcufft.so.11",
                    "# it uses the libraries of a CUDA 12 toolkit",
                    "export LD_LIBRARY_PATH=/usr/local/cuda-12/lib64",
                ],
            ),
            Case::new("a module deep in a package that requires torch", machines::h200(), {
                let elf = Elf { module: Some(true), ..lacking("libcudart.so.12") };
                let env = crate::test_support::env("/v").torch("2.11.0+cu130", Some("13.0")).dist("vllm", "0.12");
                vec![env.requires("vllm", "torch==2.11.0").compiled("vllm", "vllm/_C.abi3.so", elf).build()]
            })
            .finds(Error, Certain, &["vllm 0.12 in /v needs libcudart.so.12"]),
            Case::new("S05: CuPy's NCCL, which its package handles the absence of", machines::a10(), {
                let optional_in = Some("/v/lib/python3.12/site-packages/cupy/cuda/nccl.py".into());
                let elf = Elf { module: Some(true), optional_in, ..lacking("libnccl.so.2") };
                let env = crate::test_support::env("/v").dist("cupy-cuda12x", "14.2.0");
                vec![env.compiled("cupy-cuda12x", "cupy_backends/cuda/libs/nccl.so", elf).build()]
            })
            .finds(Info, Certain, &["needs libnccl.so.2", "cupy/cuda/nccl.py", "works without it"])
            .without(&["pip install", "export"]),
            Case::new("onnxruntime-gpu names its CUDA libraries in an extra", machines::a10(), {
                let env = crate::test_support::env("/v").dist("onnxruntime-gpu", "1.31.1");
                let env = env.requires("onnxruntime-gpu", "nvidia-curand~=10.0; extra == \"cuda\"");
                let env = env.requires("onnxruntime-gpu", "nvidia-cudnn-cu13~=9.0; extra == \"cudnn\"");
                let elf = Elf { module: Some(false), ..lacking("libcublasLt.so.13") };
                vec![env.compiled("onnxruntime-gpu", "onnxruntime/capi/libonnxruntime_providers_cuda.so", elf).build()]
            })
            .finds(Warning, Certain, &["pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"]),
            Case::new(
                "a library the package may never load",
                machines::a10(),
                env(cu128, "flash_attn", "libodd.so", lacking("libcudnn.so.8")),
            )
            .finds(Warning, Certain, &["libcudnn.so.8"]),
            Case::new(
                "it lies in the environment: the package may load it itself",
                machines::a10(),
                env(cu128, "flash_attn", "a.so", elsewhere()),
            )
            .finds(
                Info,
                Possible,
                &[
                    "flash_attn 2.8.3 in /v finds libcudart.so.12 only if its package loads it by itself",
                    "export LD_LIBRARY_PATH=/v/lib/python3.12/site-packages/nvidia/x",
                ],
            ),
            Case::new(
                "a copy that a wheel renamed: its folder would not help",
                machines::a10(),
                env(cu128, "flash_attn", "a.so", {
                    let mut elf = lacking("libcudart.so.12");
                    elf.needed[0].other =
                        Some("/v/lib/python3.12/site-packages/x.libs/libcudart.4111.so.12".into());
                    elf
                }),
            )
            .finds(
                Info,
                Possible,
                &["export LD_PRELOAD=/v/lib/python3.12/site-packages/x.libs/libcudart.4111.so.12"],
            ),
            Case::new(
                "torch loads its own libraries by itself",
                machines::a10(),
                env(cu128, "torch", "torch/_C.so", elsewhere()),
            ),
            Case::new("Triton has a copy of cuPTI, and torch's own was uninstalled", machines::h200(), {
                let mut elf = lacking("libcupti.so.13");
                elf.needed[0].other = Some(
                    "/v/lib/python3.12/site-packages/triton/backends/nvidia/lib/cupti/libcupti.so.13".into(),
                );
                env(("2.15.0+cu132", "13.2"), "torch", "torch/lib/libtorch_cpu.so", elf)
            })
            .finds(
                Error,
                Certain,
                &[
                    "torch 2.15.0 in /v needs libcupti.so.13, which is not where the loader looks",
                    "a copy lies where nothing looks for it [/v/lib/python3.12/site-packages/triton/",
                    "nvidia-cuda-cupti",
                ],
            ),
            Case::new("a library of NVIDIA's that torch needs lacks another", machines::h200(), {
                let elf = Elf {
                    opened_by: Some("/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so".into()),
                    ..lacking("libnvJitLink.so.12")
                };
                env(cu128, "nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", elf)
            })
            .finds(Error, Certain, &["needs libnvJitLink.so.12, which is nowhere here", "nvidia-nvjitlink-cu12"]),
            Case::new("one that nothing needs", machines::h200(), {
                env(cu128, "nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", lacking("libnvJitLink.so.12"))
            }),
            Case::new("for another processor", machines::gb10(), {
                env(cu128, "flash_attn", "flash_attn/_C.so", lacking("libcudart.so.12"))
            }),
            Case::new(
                "a library that may never be opened, and whose own lies in the environment",
                machines::a10(),
                env(cu128, "flash_attn", "libodd.so", elsewhere()),
            ),
            Case::new(
                "the driver's own is another matter",
                machines::x86(),
                env(cu128, "torch", "torch/lib/libcaffe2_nvrtc.so", lacking("libcuda.so.1")),
            ),
            Case::new(
                "not CUDA's",
                machines::a10(),
                env(cu128, "flash_attn", "a.so", lacking("libmpi.so.40")),
            ),
            Case::new("nothing needed", machines::a10(), env(cu128, "flash_attn", "a.so", elf())),
        ]
    }

    #[test]
    fn the_package_is_named_for_the_major_version_of_torch() {
        let check = |text: &str, torch: &str, cuda: &str, expect: &str| {
            let envs = [env("/v").torch(torch, Some(cuda)).build()];
            let found = crate::explain(text, &machines::h200(), &envs);
            assert_eq!(found[0].rule.id, "missing-cuda-library");
            assert!(found[0].fix[1].ends_with(expect), "{:?}", found[0].fix);
        };
        let text = "ImportError: libcublas.so.12: cannot open shared object file";
        check(text, "2.9.1+cu128", "12.8", "install nvidia-cublas-cu12");
        check(text, "2.11.0+cu130", "13.0", "install nvidia-cublas");
        let text = "OSError: libcudnn.so.9: cannot open shared object file";
        check(text, "2.11.0+cu130", "13.0", "install nvidia-cudnn-cu13");
        let text = "OSError: libcusparseLt.so.0: cannot open shared object file";
        check(text, "2.9.1+cu128", "12.8", "install nvidia-cusparselt-cu12");
    }
}
