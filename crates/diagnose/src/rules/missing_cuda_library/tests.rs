use crate::test_support::{Case, elf, elf_missing_library, env, machines};
use facts::{Confidence::*, Elf, PyEnv, Severity::*};

pub(super) fn cases() -> Vec<Case> {
    let env = |torch: (&str, &str), owner: &str, file: &str, elf: Elf| -> Vec<PyEnv> {
        let env = env("/v").torch(torch.0, Some(torch.1)).dist("flash_attn", "2.8.3");
        vec![env.compiled(owner, file, elf).build()]
    };
    let cu130 = ("2.11.0+cu130", "13.0");
    let cu128 = ("2.9.1+cu128", "12.8");
    let elsewhere = || {
        let mut elf = elf_missing_library("libcudart.so.12");
        elf.needed[0].other =
            Some("/v/lib/python3.12/site-packages/nvidia/x/lib/libcudart.so.12".into());
        elf
    };
    vec![
        Case::new(
            "an extension for CUDA 12 with a torch for 13 (row 15)",
            machines::h200(),
            env(cu130, "flash_attn", "flash_attn_2_cuda.so", elf_missing_library("libcudart.so.12")),
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
            env(cu128, "torch", "torch/lib/libtorch_cuda.so", elf_missing_library("libcusparseLt.so.0")),
        )
        .finds(
            Error,
            Certain,
            &["torch 2.9.1 in /v needs libcusparseLt.so.0", "pip install nvidia-cusparselt-cu12"],
        ),
        Case::new(
            "a package with a CUDA suffix from CUDA 13 on",
            machines::a10(),
            env(cu130, "torch", "torch/lib/libtorch_cuda.so", elf_missing_library("libnvshmem_host.so.3")),
        )
        .finds(Error, Certain, &["needs libnvshmem_host.so.3", "pip install nvidia-nvshmem-cu13"]),
        Case::new("CuPy loads CUDA at first use", machines::a10(), {
            let elf = || Elf { module: Some(true), ..elf_missing_library("libcufft.so.11") };
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
            let elf = Elf { module: Some(true), ..elf_missing_library("libcudart.so.12") };
            let env = crate::test_support::env("/v").torch("2.11.0+cu130", Some("13.0")).dist("vllm", "0.12");
            vec![env.requires("vllm", "torch==2.11.0").compiled("vllm", "vllm/_C.abi3.so", elf).build()]
        })
        .finds(Error, Certain, &["vllm 0.12 in /v needs libcudart.so.12"]),
        Case::new("S05: CuPy handles a missing NCCL", machines::a10(), {
            let optional_in = Some("/v/lib/python3.12/site-packages/cupy/cuda/nccl.py".into());
            let elf = Elf { module: Some(true), optional_in, ..elf_missing_library("libnccl.so.2") };
            let env = crate::test_support::env("/v").dist("cupy-cuda12x", "14.2.0");
            vec![env.compiled("cupy-cuda12x", "cupy_backends/cuda/libs/nccl.so", elf).build()]
        })
        .finds(Info, Certain, &["needs libnccl.so.2", "cupy/cuda/nccl.py", "works without it"])
        .without(&["pip install", "export"]),
        Case::new("onnxruntime-gpu names its CUDA libraries in an extra", machines::a10(), {
            let env = crate::test_support::env("/v").dist("onnxruntime-gpu", "1.31.1");
            let env = env.requires("onnxruntime-gpu", "nvidia-curand~=10.0; extra == \"cuda\"");
            let env = env.requires("onnxruntime-gpu", "nvidia-cudnn-cu13~=9.0; extra == \"cudnn\"");
            let elf = Elf { module: Some(false), ..elf_missing_library("libcublasLt.so.13") };
            vec![env.compiled("onnxruntime-gpu", "onnxruntime/capi/libonnxruntime_providers_cuda.so", elf).build()]
        })
        .finds(Warning, Certain, &["pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"]),
        Case::new(
            "a library the package may never load",
            machines::a10(),
            env(cu128, "flash_attn", "libodd.so", elf_missing_library("libcudnn.so.8")),
        )
        .finds(Warning, Certain, &["libcudnn.so.8"]),
        Case::new(
            "a copy in the environment: the package may load it by path",
            machines::a10(),
            env(cu128, "flash_attn", "a.so", elsewhere()),
        )
        .finds(
            Info,
            Possible,
            &[
                "flash_attn 2.8.3 in /v finds libcudart.so.12 only if its package loads it by path",
                "export LD_LIBRARY_PATH=/v/lib/python3.12/site-packages/nvidia/x",
            ],
        ),
        Case::new(
            "a copy that a wheel renamed: its folder would not help",
            machines::a10(),
            env(cu128, "flash_attn", "a.so", {
                let mut elf = elf_missing_library("libcudart.so.12");
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
            "torch preloads its own libraries",
            machines::a10(),
            env(cu128, "torch", "torch/_C.so", elsewhere()),
        ),
        Case::new("Triton has a copy of cuPTI, and torch's own was uninstalled", machines::h200(), {
            let mut elf = elf_missing_library("libcupti.so.13");
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
                "a copy outside every search path [/v/lib/python3.12/site-packages/triton/",
                "nvidia-cuda-cupti",
            ],
        ),
        Case::new("an NVIDIA library that torch loads lacks another one", machines::h200(), {
            let elf = Elf {
                opened_by: Some("/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so".into()),
                ..elf_missing_library("libnvJitLink.so.12")
            };
            env(cu128, "nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", elf)
        })
        .finds(Error, Certain, &["needs libnvJitLink.so.12, which is nowhere here", "nvidia-nvjitlink-cu12"]),
        Case::new("one that nothing needs", machines::h200(), {
            env(cu128, "nvidia-cusparse-cu12", "nvidia/cusparse/lib/libcusparse.so.12", elf_missing_library("libnvJitLink.so.12"))
        }),
        Case::new("for another processor", machines::gb10(), {
            env(cu128, "flash_attn", "flash_attn/_C.so", elf_missing_library("libcudart.so.12"))
        }),
        Case::new(
            "a library that may never be opened, with a copy in the environment",
            machines::a10(),
            env(cu128, "flash_attn", "libodd.so", elsewhere()),
        ),
        Case::new(
            "a library of the driver",
            machines::x86(),
            env(cu128, "torch", "torch/lib/libcaffe2_nvrtc.so", elf_missing_library("libcuda.so.1")),
        ),
        Case::new(
            "not CUDA's",
            machines::a10(),
            env(cu128, "flash_attn", "a.so", elf_missing_library("libmpi.so.40")),
        ),
        Case::new("nothing needed", machines::a10(), env(cu128, "flash_attn", "a.so", elf())),
    ]
}

#[test]
fn names_the_package_for_torchs_cuda_major() {
    let check = |text: &str, torch: &str, cuda: &str, expect: &str| {
        let envs = [env("/v").torch(torch, Some(cuda)).build()];
        let found = crate::explain(text, &machines::h200(), &envs);
        assert_eq!(found[0].rule.id, "missing-cuda-library");
        assert!(found[0].fix[1].ends_with(expect), "{:?}", found[0].fix);
    };
    let text = "ImportError: libcublas.so.12: cannot open shared object file";
    check(text, "2.9.1+cu128", "12.8", "install nvidia-cublas-cu12");
    check(text, "2.11.0+cu130", "13.0", "install nvidia-cublas-cu12");
    let text = "W Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file";
    check(text, "2.9.1+cu128", "12.8", "install nvidia-cuda-runtime-cu11");
    let text = "OSError: libcublas.so.13: cannot open shared object file";
    check(text, "2.9.1+cu128", "12.8", "install nvidia-cublas");
    let text = "OSError: libcudnn.so.9: cannot open shared object file";
    check(text, "2.11.0+cu130", "13.0", "install 'nvidia-cudnn-cu13==9.*'");
    let text = "OSError: libcudnn.so.8: cannot open shared object file";
    check(text, "2.9.1+cu128", "12.8", "install 'nvidia-cudnn-cu12==8.*'");
    let text = "OSError: libcusparseLt.so.0: cannot open shared object file";
    check(text, "2.9.1+cu128", "12.8", "install nvidia-cusparselt-cu12");
}
