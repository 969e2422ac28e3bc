//! Texts of public reports and other samples of each kind: the first answer must be the cause.

/// A text, and words of its first answer: of the rule's id or the entity's name, the meaning and the commands.
pub(super) struct Sample {
    pub(super) text: &'static str,
    pub(super) says: &'static [&'static str],
}

pub(super) const fn sample(text: &'static str, says: &'static [&'static str]) -> Sample {
    Sample { text, says }
}

/// By row of the third visit's cases, except T18; several samples per row.
pub(super) const SAMPLES: &[(&str, &[Sample])] = &[
    (
        "T01",
        &[
            sample(
                "RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14). Please install the same version",
                &["flashinfer-cubin", "one release", "flashinfer-cubin==0.6.14", "uninstall"],
            ),
            sample(
                "flashinfer-jit-cache version (0.5.3+cu129) does not match flashinfer version (0.5.2).",
                &["flashinfer-jit-cache==0.5.2", "flashinfer-python==0.5.2"],
            ),
            sample(
                "ImportError: vllm-flash-attn version (2.6.1) does not match vllm version (0.7.0)",
                &["one release", "0.7.0"],
            ),
            sample(
                "sgl-kernel version 0.3.9 does not match sglang version 0.4.1",
                &["one release", "sgl-kernel"],
            ),
            sample(
                "RuntimeError: nvidia-cutlass-dsl-libs-base version (4.3.0) does not match nvidia-cutlass-dsl version (4.4.1)",
                &["4.4.1", "one release"],
            ),
        ],
    ),
    (
        "T02",
        &[
            sample(
                "ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (unknown location)",
                &["namespace package", "flash-attn-4", "flash_attn.cute", "install flash-attn"],
            ),
            sample(
                "ImportError: cannot import name 'flash_attn_varlen_func' from 'flash_attn' (unknown location)",
                &["flash_attn.cute", "install flash-attn"],
            ),
            sample(
                "ImportError: cannot import name 'load_file' from 'safetensors' (unknown location)",
                &["without an __init__.py", "safetensors"],
            ),
            sample(
                "ImportError: cannot import name 'LLM' from 'vllm' (unknown location)",
                &["namespace package", "ls -d vllm"],
            ),
            sample(
                "ImportError: cannot import name 'Tensor' from 'torch' (unknown location)",
                &["namespace package", "torch"],
            ),
        ],
    ),
    (
        "T03",
        &[
            sample(
                "torch 2.8.0 with triton 3.5.0\nImportError: cannot import name 'triton_key' from 'triton.compiler.compiler' (/v/lib/python3.12/site-packages/triton/compiler/compiler.py)",
                &["triton==3.4", "torch 2.8.0"],
            ),
            sample(
                "ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler'",
                &["triton", "pins it", "2.8 goes with triton 3.4"],
            ),
            sample(
                "ImportError: cannot import name 'AttrsDescriptor' from 'triton.backends.compiler' (/x/lib/python3.11/site-packages/triton/backends/compiler.py)",
                &["triton", "each torch release"],
            ),
            sample(
                "ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler' while torch==2.5.1 is installed",
                &["triton==3.1"],
            ),
            sample(
                "ImportError: cannot import name 'JITCallable' from 'triton.runtime.jit'",
                &["triton"],
            ),
        ],
    ),
    (
        "T04",
        &[
            sample(
                "/usr/include/bits/mathcalls.h(79): error: exception specification is incompatible with that of previous function \"cospi\" (declared at line 2601 of /usr/local/cuda/include/crt/math_functions.h)",
                &["glibc 2.41", "CUDA before 13", "image"],
            ),
            sample(
                "/usr/include/x86_64-linux-gnu/bits/mathcalls.h(83): error: exception specification is incompatible with that of previous function \"sinpif\" (declared at line 1265)",
                &["glibc 2.41", "container image"],
            ),
            sample(
                "/usr/include/bits/mathcalls.h(206): error: exception specification is incompatible with that of previous function \"rsqrtf\" (declared at line 653 of /usr/local/cuda/include/crt/math_functions.h)",
                &["glibc 2.42", "CUDA 13.2"],
            ),
            sample(
                "bits/mathcalls.h(206): error: exception specification is incompatible with that of previous function 'rsqrt'",
                &["glibc 2.42"],
            ),
            sample(
                "/usr/include/bits/mathcalls.h:83:1: error: exception specification in declaration does not match previous declaration\n   83 | __MATHCALL_VEC (cospi,, (_Mdouble_ __x));",
                &["glibc 2.41"],
            ),
        ],
    ),
    (
        "T05",
        &[
            sample(
                "deviceQuery.cpp(139): error: class \"cudaDeviceProp\" has no member \"clockRate\"",
                &["cudaDeviceProp.clockRate", "CUDA 13 removed", "CUDA 12"],
            ),
            sample(
                "error: 'struct cudaDeviceProp' has no member named 'memoryClockRate'",
                &["CUDA 13 removed"],
            ),
            sample(
                "x.cu:12:8: error: no member named 'computeMode' in 'cudaDeviceProp'",
                &["CUDA 13 removed"],
            ),
            sample(
                "error: class \"cudaDeviceProp\" has no member \"kernelExecTimeoutEnabled\"",
                &["CUDA 13 removed", "cudaDeviceGetAttribute"],
            ),
            sample("error: namespace \"cub\" has no member \"Max\"", &["CCCL", "CUDA 13"]),
            sample(
                "error: no suitable constructor exists to convert from \"int\" to \"cudaMemLocation\"",
                &["CUDA 13 changed cudaMemPrefetchAsync"],
            ),
            sample("fatal error: nvToolsExt.h: No such file or directory", &["nvtx3/nvToolsExt.h"]),
            sample(
                "fatal error: texture_fetch_functions.h: No such file or directory",
                &["CUDA 13 removed it"],
            ),
            sample("fatal error: cub/cub.cuh: No such file or directory", &["include/cccl"]),
        ],
    ),
    (
        "T06",
        &[
            sample(
                "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)\nNVRM: installed in this system requires use of the NVIDIA open kernel modules.\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)",
                &["open-kernel-modules", "-open"],
            ),
            sample(
                "[  12.1] NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
                &["open-kernel-modules"],
            ),
            sample(
                "[   10.5] NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0xffff:2351)",
                &["gpu-init-failed"],
            ),
            sample("No devices were found", &["gpu-init-failed"]),
            sample(
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
                &["gpu-bar", "Above 4G"],
            ),
            sample(
                "nvidia 0000:01:00.0: Direct firmware load for nvidia/570.86.10/gsp_tu10x.bin failed with error -2\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x61:0x40:2100)",
                &["gsp-firmware"],
            ),
        ],
    ),
    (
        "T07",
        &[
            sample(
                "NVRM: Xid (PCI:0000:18:00): 74, pid=1234, name=python, NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0)",
                &["xid", "NVLINK Error", "nvlink --errorcounters"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:9b:00): 95, pid=17, Uncontained: FBHUB. RST: Yes, D-RST: No",
                &["xid", "Uncontained memory error", "reset the GPU"],
            ),
            sample(
                "[Sun Nov 23 10:11:12 2025] NVRM: Xid (PCI:0000:61:00): 119, pid=1346198, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802702 0x8).",
                &["xid", "GSP RPC Timeout", "gpu-reset"],
            ),
            sample(
                "kernel: NVRM: Xid (PCI:0000:3b:00): 120, GSP task exception: page fault",
                &["GSP Error"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:c1:00): 140, pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1",
                &["ECC Unrecovered Error", "gpu-reset"],
            ),
            sample(
                "NVRM: Xid (PCI:0019:01:00): 145, RLW_RXPIPE Nonfatal XC1 i0 Link 00 (0x00000004 0x80000000)",
                &["NVLINK: RLW Error", "NVLink workflow|error counters"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:41:00): 62, 32260(2d58) 00000000 00000000",
                &["Internal micro-controller halt"],
            ),
            sample(
                "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08",
                &["NVLINK: NETIR"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
                &["states what the errors", "reboot the node", "sudo reboot"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                &["reset the GPU"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
                &["drain|take no new work", "gpu-reset"],
            ),
            sample(
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
                &["peer-to-peer"],
            ),
            sample(
                "Xid 79: GPU has fallen off the bus",
                &["xid", "fallen off the bus", "sudo reboot"],
            ),
            sample("my server logs Xid 109 CTX SWITCH TIMEOUT", &["Context Switch Timeout"]),
        ],
    ),
    (
        "T08",
        &[
            sample(
                "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1131, please report a bug to PyTorch.",
                &["Jetson", "ran out", "swap"],
            ),
            sample(
                "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0",
                &["Jetson", "ENOMEM"],
            ),
            sample("NvMapMemAlloc: error 12\nSegmentation fault", &["Jetson"]),
            sample(
                "NvRmMemInitNvmap failed error 12 Cannot allocate memory",
                &["Jetson|host memory"],
            ),
            sample(
                "ggml_cuda: cudaMalloc failed: out of memory\nNvMapMemAllocInternalTagged: 1075072515 error 12",
                &["Jetson|memory"],
            ),
        ],
    ),
    (
        "T09",
        &[
            sample(
                "RuntimeError: HIP error: invalid device function\nHIP kernel errors might be asynchronously reported",
                &["AMD", "does not diagnose ROCm"],
            ),
            sample(
                "Configured ROCm binary not found at /v/lib/python3.12/site-packages/bitsandbytes/libbitsandbytes_rocm84.so",
                &["AMD", "does not diagnose ROCm", "rocm.docs.amd.com"],
            ),
            sample(
                "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.98 GiB",
                &["AMD"],
            ),
            sample(
                "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx1036",
                &["AMD"],
            ),
            sample(
                "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Page not present or supervisor privilege.\nhipErrorIllegalAddress",
                &["AMD"],
            ),
            sample(
                "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
                &["Intel"],
            ),
            sample("AssertionError: Torch not compiled with XPU enabled", &["Intel"]),
        ],
    ),
    (
        "T10",
        &[
            sample(
                "error: Distribution `torch==2.10.0 @ registry+https://pypi.org/simple` can't be installed because it doesn't have a source distribution or wheel for the current platform\n\nhint: You're on Linux (`manylinux_2_27_x86_64`), but `torch` (v2.10.0) only has wheels for the following platforms: `manylinux_2_28_aarch64`, `manylinux_2_28_x86_64`",
                &["torch 2.10.0", "glibc 2.27", "2.28"],
            ),
            sample(
                "error: Distribution `nvidia-cudnn-cu12==9.10.2.21 @ registry+https://pypi.org/simple` can't be installed because it doesn't have a source distribution or wheel for the current platform\n\nhint: You're on macOS (`macosx_15_0_arm64`), but `nvidia-cudnn-cu12` (v9.10.2.21) only has wheels for the following platforms: `manylinux_2_27_x86_64`",
                &["nvidia-cudnn-cu12", "cannot be installed here"],
            ),
            sample(
                "error: Distribution `vllm==0.11.0 @ registry+https://pypi.org/simple` can't be installed because it doesn't have a source distribution or wheel for the current platform\nhint: You're using CPython 3.14 (`cp314`), but `vllm` (v0.11.0) only has wheels with the following Python ABI tag: `cp38`",
                &["vllm 0.11.0", "no wheel is for this Python"],
            ),
            sample(
                "ERROR: flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl is not a supported wheel on this platform.",
                &["cp312", "linux_x86_64"],
            ),
            sample(
                "Because xformers==0.0.30 has no wheels with a matching platform tag (e.g., `manylinux_2_39_aarch64`) and you require xformers==0.0.30, we can conclude that your requirements are unsatisfiable.",
                &["xformers"],
            ),
        ],
    ),
    (
        "T11",
        &[
            sample(
                "error: Failed to install: x.whl\n  Caused by: Package metadata version `1.0` has inconsistent version: expected \"1.0+cu130\", but metadata has \"1.0\"",
                &["publisher", "another build", "UV_SKIP_WHEEL_FILENAME_CHECK|dependency-metadata"],
            ),
            sample(
                "Requested flash-attn from https://x/flash_attn-2.8.3+cu12.whl has inconsistent version: expected '2.8.3+cu12', but metadata has '2.8.3'",
                &["publisher", "2.8.3+cu12"],
            ),
            sample(
                "Discarding https://x/y.whl: Requested y has inconsistent version: filename has '0.3.0', but metadata has '0.3.0+pt28cu128'",
                &["publisher"],
            ),
            sample(
                "sgl_kernel has inconsistent version: expected \"0.3.21+cu130\", but metadata has \"0.3.21\"",
                &["publisher"],
            ),
        ],
    ),
    (
        "T12",
        &[
            sample(
                "Guessing wheel URL:  https://github.com/x/flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\nerror: [Errno 18] Invalid cross-device link: 'flash_attn.whl' -> '/home/user/.cache/pip/wheels/x'",
                &["file systems", "wheel was found", "TMPDIR"],
            ),
            sample(
                "OSError: [Errno 18] Invalid cross-device link: '/tmp/a' -> '/data/b'",
                &["file systems", "TMPDIR"],
            ),
            sample(
                "error: failed to hardlink file: Invalid cross-device link (os error 18)",
                &["UV_LINK_MODE"],
            ),
            sample(
                "mamba_ssm: Guessing wheel URL:  https://x/mamba_ssm-2.2.6.whl\nInvalid cross-device link",
                &["file systems"],
            ),
            sample("os.rename: [Errno 18] Invalid cross-device link", &["file systems"]),
        ],
    ),
    (
        "T13",
        &[
            sample(
                "host:1:2 [0] init.cc:426 NCCL WARN Cuda failure 'operation not supported'",
                &["cudaErrorNotSupported", "vGPU", "hypervisor"],
            ),
            sample(
                "[0] transport/p2p.cc:275 NCCL WARN Cuda failure 801 'operation not supported'",
                &["vGPU"],
            ),
            sample(
                "misc/cudawrap.cc NCCL WARN Cuda failure 'operation not supported' in function ncclCuMemAlloc",
                &["vGPU"],
            ),
            sample("RuntimeError: CUDA error: operation not supported", &["cudaErrorNotSupported"]),
            sample(
                "alloc.h:228 NCCL WARN Cuda failure 'invalid argument'",
                &["cudaErrorInvalidValue"],
            ),
        ],
    ),
    (
        "T14",
        &[
            sample(
                "ImportError: /v/lib/python3.12/site-packages/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
                &["extension-other-torch", "sgl-kernel"],
            ),
            sample(
                "ImportError: /opt/venv/lib/python3.11/site-packages/torchvision/_C.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev",
                &["torchvision"],
            ),
            sample(
                "ImportError: /v/lib/python3.12/site-packages/deep_ep_cpp.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
                &["deep-ep-cpp|deep-ep"],
            ),
            sample(
                "OSError: /v/lib/python3.10/site-packages/fbgemm_gpu/fbgemm_gpu_py.so: undefined symbol: _ZNK3c105Error4whatEv",
                &["fbgemm-gpu"],
            ),
            sample(
                "ImportError: /v/lib/python3.12/site-packages/cv2.abi3.so: undefined symbol: _ZN2cv3MatC1Ev",
                &["opencv", "_ZN2cv3MatC1Ev"],
            ),
        ],
    ),
    (
        "T15",
        &[
            sample(
                "RuntimeError: No supported CUDA architectures found for major versions [10].",
                &["no code for this GPU|none of the GPUs", "--attention-backend"],
            ),
            sample(
                "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
                &["9, 10", "backend"],
            ),
            sample(
                "File \"/v/lib/python3.9/site-packages/torch/utils/cpp_extension.py\", line 1972, in <listcomp>\nValueError: invalid literal for int() with base 10: '90a'",
                &["architecture 90a", "letter", "TORCH_CUDA_ARCH_LIST"],
            ),
            sample(
                "File \"/v/lib/python3.12/site-packages/flashinfer/compilation_context.py\", line 40, in __init__\n    major, minor = arch.split('.')\nValueError: invalid literal for int() with base 10: '0a'",
                &["architecture 0a", "letter"],
            ),
            sample(
                "    capability = float(arch)\nValueError: could not convert string to float: '12.0f'",
                &["architecture 12.0f", "family"],
            ),
            sample(
                "ValueError: Unknown CUDA arch (12.1) or GPU not supported",
                &["12.1", "TORCH_CUDA_ARCH_LIST"],
            ),
            sample(
                "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. Current capability: 90.",
                &["compute capability 10.0"],
            ),
            sample(
                "ValueError(\"type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\")",
                &["8.9"],
            ),
            sample(
                "ptxas fatal: Instruction 'wgmma.fence' not supported on .target 'sm_90'",
                &["sm_90a"],
            ),
        ],
    ),
    (
        "T16",
        &[
            sample(
                "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging",
                &["NVML", "CPU build", "no NVIDIA GPU is visible"],
            ),
            sample(
                "  File \"/v/lib/python3.12/site-packages/vllm/config/device.py\", line 60\nRuntimeError: Failed to infer device type",
                &["NVML", "no NVIDIA GPU is visible"],
            ),
            sample("RuntimeError: Device string must not be empty", &["NVML"]),
            sample(
                "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA) is available.",
                &["no NVIDIA GPU is visible"],
            ),
        ],
    ),
    (
        "T17",
        &[
            sample(
                "TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument types are supported:\n    1. (arg0: torch.Tensor)",
                &["causal-conv1d", "mamba-ssm", "different releases"],
            ),
            sample(
                "ImportError: cannot import name 'GreedySearchDecoderOnlyOutput' from 'transformers.generation' (/v/lib/python3.12/site-packages/transformers/generation/__init__.py)",
                &["transformers", "do not fit together"],
            ),
            sample(
                "TypeError: selective_scan_cuda.fwd(): incompatible function arguments.",
                &["mamba-ssm"],
            ),
            sample(
                "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/v/lib/python3.12/site-packages/transformers/__init__.py)",
                &["transformers", "do not fit together"],
            ),
            sample(
                "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/v/lib/python3.10/site-packages/huggingface_hub/__init__.py)",
                &["huggingface-hub"],
            ),
            sample(
                "  File \"/v/lib/python3.12/site-packages/peft/tuners/x.py\", line 3, in <module>\n  File \"/v/lib/python3.12/site-packages/transformers/y.py\"\nImportError: cannot import name 'EncoderDecoderCache' from 'transformers' (/v/lib/python3.12/site-packages/transformers/__init__.py)",
                &["peft", "transformers"],
            ),
            sample(
                "RuntimeError: _vllm_fa2_C::varlen_fwd() expected at most 21 argument(s) but received 22 argument(s).",
                &["vllm", "different releases"],
            ),
        ],
    ),
];
