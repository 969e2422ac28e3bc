//! The most common error lines of logs, texts about the doctor's findings, and other samples of each kind.

use super::samples::{Sample, sample};

/// By kind, with several samples per kind.
pub(super) const COMMON_LINES: &[(&str, &[Sample])] = &[
    (
        "T18",
        &[
            sample(
                "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.5.1+cu121 with CUDA 1201 (you have 2.9.0+cu128)",
                &["xformers", "2.5.1+cu121", "2.9.0+cu128"],
            ),
            sample(
                "ImportError: Numba needs NumPy 2.2 or less. Got NumPy 2.3.",
                &["numpy<2.3", "numba"],
            ),
            sample(
                "Skipping import of cpp extensions due to incompatible torch version 2.15.0+cu130 for torchao version 0.14.0",
                &["torchao", "notice"],
            ),
            sample(
                "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module, but found tokenizers==0.19.1.",
                &["tokenizers>=0.22.0,<=0.23.0"],
            ),
            sample(
                "ImportError: Using `bitsandbytes` 4-bit quantization requires the latest version of bitsandbytes: `pip install -U bitsandbytes`",
                &["bitsandbytes"],
            ),
            sample("ImportError: Numba needs NumPy 2.0 or less. Got NumPy 2.1.", &["numpy<2.1"]),
        ],
    ),
    (
        "functions of the driver's library, modules of another release, GSP that does not boot",
        &[
            sample(
                "ImportError: /opt/e/lib/python3.10/site-packages/sgl_kernel/common_ops.abi3.so: undefined symbol: cuGreenCtxDestroy",
                &["driver", "libcuda", "sgl-kernel"],
            ),
            sample(
                "ImportError: /v/lib/python3.12/site-packages/own/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled",
                &["driver", "libcuda"],
            ),
            sample(
                "ModuleNotFoundError: No module named 'transformers.modeling_layers'",
                &["older or newer", "transformers", "--upgrade"],
            ),
            sample(
                "NVRM: kgspInitRm_IMPL: Max GSP-RM boot attempts exceeded: 4/4\nNVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
                &["gsp-firmware"],
            ),
        ],
    ),
    (
        "D9 memory",
        &[
            sample("CUDA out of memory", &["out-of-memory", "firstlight ps"]),
            sample("cudaErrorMemoryAllocation", &["out-of-memory"]),
            sample(
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
                &["out-of-memory"],
            ),
            sample(
                "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (6.68 GiB). Based on the available memory, the estimated maximum model length is 54736.",
                &["KV cache", "--max-model-len"],
            ),
            sample(
                "ValueError: To serve at least one request with the models max seq len (131072), (16.00 GiB KV cache is needed",
                &["KV cache", "--max-model-len"],
            ),
            sample(
                "ValueError: The model's max seq len (40960) is larger than the maximum number of tokens that can be stored in KV cache (17232). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`",
                &["KV cache", "--gpu-memory-utilization"],
            ),
            sample(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
                &["KV cache"],
            ),
            sample(
                "ValueError: Free memory on device (3.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.3 GiB).",
                &["another process"],
            ),
            sample(
                "[ 1234.5] Out of memory: Killed process 4711 (python3) total-vm:123456kB",
                &["host memory"],
            ),
            sample(
                "RuntimeError: DataLoader worker (pid(s) 4711, 4712) is killed by signal: Killed.",
                &["host memory"],
            ),
        ],
    ),
    (
        "D9 kernels",
        &[
            sample(
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                &["cudaErrorIllegalAddress", "compute-sanitizer"],
            ),
            sample(
                "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call",
                &["cudaErrorAssert", "CUDA_LAUNCH_BLOCKING"],
            ),
            sample("CUDA error: misaligned address", &["cudaErrorMisalignedAddress"]),
            sample(
                "RuntimeError: CUDA error: unspecified launch failure",
                &["cudaErrorLaunchFailure"],
            ),
            sample("CUDA_ERROR_ILLEGAL_ADDRESS", &["cudaErrorIllegalAddress"]),
            sample(
                "RuntimeError: CUDA error: too many resources requested for launch",
                &["registers or shared memory"],
            ),
            sample("CUDA error 700 at foo.cu:12", &["cudaErrorIllegalAddress"]),
            sample("RuntimeError: CUDA error: uncorrectable ECC error encountered", &["hardware"]),
        ],
    ),
    (
        "D9 libraries",
        &[
            sample(
                "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2",
                &["NCCL", "NCCL_DEBUG=INFO"],
            ),
            sample(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
                &["CUDA call failed inside NCCL"],
            ),
            sample("ncclInternalError: Internal check failed.", &["NCCL"]),
            sample("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", &["cuDNN"]),
            sample("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", &["cuDNN"]),
            sample(
                "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
                &["LD_LIBRARY_PATH"],
            ),
            sample(
                "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
                &["cuBLAS"],
            ),
            sample(
                "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling cublasGemmStridedBatchedEx",
                &["LD_LIBRARY_PATH"],
            ),
        ],
    ),
    (
        "D9 modules and commands",
        &[
            sample("ModuleNotFoundError: No module named 'torch'", &["install torch"]),
            sample("ModuleNotFoundError: No module named 'flash_attn_2_cuda'", &["flash-attn"]),
            sample("ModuleNotFoundError: No module named 'sgl_kernel'", &["sgl-kernel"]),
            sample("/usr/bin/python3: No module named vllm", &["install vllm"]),
            sample("ModuleNotFoundError: No module named 'distutils'", &["3.12", "setuptools"]),
            sample("ModuleNotFoundError: No module named 'cv2'", &["opencv-python"]),
            sample("bash: nvcc: command not found", &["CUDA toolkit"]),
            sample("zsh: command not found: uv", &["uv"]),
            sample("/bin/sh: 1: ninja: not found", &["ninja"]),
            sample("bash: vllm: command not found", &["vllm"]),
        ],
    ),
    (
        "D9 installers",
        &[
            sample(
                "error: externally-managed-environment\n\n× This environment is externally managed",
                &["PEP 668", "venv"],
            ),
            sample(
                "error: The interpreter at /usr is externally managed, and indicates the following:",
                &["PEP 668"],
            ),
            sample(
                "ERROR: Could not build wheels for flash-attn, which is required to install pyproject.toml-based projects",
                &["flash-attn", "firstlight plan flash-attn"],
            ),
            sample("  ERROR: Failed building wheel for causal-conv1d", &["causal-conv1d"]),
            sample("ERROR: No matching distribution found for torch==2.1.0", &["torch", "Python"]),
            sample("ERROR: No matching distribution found for xformers==0.0.22", &["xformers"]),
            sample(
                "ERROR: Could not find a version that satisfies the requirement torhc (from versions: none)",
                &["misspelt"],
            ),
            sample(
                "ERROR: No matching distribution found for torch==2.9.0+cu128",
                &["download.pytorch.org/whl/cu128"],
            ),
        ],
    ),
    (
        "D9 network",
        &[
            sample(
                "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta-llama/Llama-3.1-8B.\n401 Client Error. (Request ID: Root=1-abc)",
                &["gated", "hf auth login"],
            ),
            sample(
                "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x/y",
                &["401", "token"],
            ),
            sample(
                "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/google/gemma-2b/resolve/main/config.json",
                &["403", "access"],
            ),
            sample("urllib.error.HTTPError: HTTP Error 404: Not Found", &["404"]),
            sample(
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
                &["cache", "HF_HUB_OFFLINE"],
            ),
            sample("socket.gaierror: [Errno -2] Name or service not known", &["DNS"]),
            sample("curl: (6) Could not resolve host: pypi.org", &["pypi.org", "DNS"]),
            sample(
                "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain')))",
                &["certificate"],
            ),
            sample(
                "requests.exceptions.ProxyError: HTTPSConnectionPool: Cannot connect to proxy.",
                &["proxy"],
            ),
            sample(
                "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='pypi.org', port=443): Read timed out. (read timeout=15)",
                &["pypi.org", "in time"],
            ),
            sample(
                "429 Client Error: Too Many Requests for url: https://huggingface.co/x",
                &["429"],
            ),
        ],
    ),
    (
        "D9 system",
        &[
            sample("OSError: [Errno 28] No space left on device", &["ENOSPC", "df -h"]),
            sample("tee: /root/log: No space left on device", &["ENOSPC"]),
            sample(
                "PermissionError: [Errno 13] Permission denied: '/usr/lib/python3/dist-packages/numpy'",
                &["EACCES", "venv"],
            ),
            sample("OSError: [Errno 24] Too many open files", &["EMFILE", "ulimit"]),
            sample("OSError: [Errno 122] Disk quota exceeded", &["quota"]),
            sample("OSError: [Errno 98] Address already in use", &["EADDRINUSE", "port"]),
        ],
    ),
    (
        "D9 models",
        &[
            sample(
                "ValueError: The checkpoint you are trying to load has model type `qwen3_next` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of date.",
                &["qwen3_next", "transformers --upgrade"],
            ),
            sample(
                "ValueError: The checkpoint you are trying to load has model type `gpt_oss` but Transformers does not recognize this architecture.",
                &["gpt_oss"],
            ),
            sample(
                "ValueError: Model architectures ['Qwen3NextForCausalLM'] are not supported for now. Supported architectures: dict_keys(['AquilaModel'])",
                &["Qwen3NextForCausalLM", "vllm"],
            ),
            sample(
                "llama_model_load: error loading model: unknown model architecture: 'gemma3n'",
                &["gemma3n"],
            ),
            sample(
                "ImportError: libsndfile.so.1: cannot open shared object file: No such file or directory",
                &["libsndfile1"],
            ),
            sample(
                "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
                &["libgl1"],
            ),
        ],
    ),
    (
        "2026-11-30: code numbers, compiled parts, files and functions of the driver, renamed arguments, listed releases",
        &[
            sample(
                "CudaSupportError: Error at driver init: [34] Call to cuInit results in CUDA_ERROR_STUB_LIBRARY",
                &["cudaErrorStubLibrary", "stub of the CUDA toolkit", "LD_LIBRARY_PATH"],
            ),
            sample("cuInit err: 34", &["cudaErrorStubLibrary (34)", "stub of the CUDA toolkit"]),
            sample(
                "ModuleNotFoundError: No module named 'pointnet2_ops._ext'",
                &["compiled modules of pointnet2-ops", "checkout", "--no-build-isolation"],
            ),
            sample(
                "OSError: /usr/lib/x86_64-linux-gnu/libcuda.so.1: file too short",
                &["belongs to the driver", "nvidia-ctk", "find /usr/lib/x86_64-linux-gnu -size 0"],
            ),
            sample(
                "ImportError: /usr/lib/x86_64-linux-gnu/libxcb.so.1: invalid ELF header",
                &["of the system", "dpkg -S /usr/lib/x86_64-linux-gnu/libxcb.so.1"],
            ),
            sample(
                "dlerr: /usr/lib64/libcuda.so.418.74: undefined symbol: cuCtxCreate_v3",
                &["this driver is older"],
            ),
            sample(
                "OSError: libcudnn.so: cannot open shared object file: No such file or directory",
                &["without a version", "/usr/local/cuda/lib64", "nvidia.cudnn"],
            ),
            sample(
                "ImportError: /v/lib/python3.9/site-packages/pytorch3d/_C.cpython-39-x86_64-linux-gnu.so: undefined symbol: _ZNK2at6Tensor7is_cudaEv",
                &["git+https://github.com/facebookresearch/pytorch3d.git"],
            ),
            sample(
                "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'processing_class'",
                &["trl>=0.12.0", "tokenizer instead of processing_class"],
            ),
            sample(
                "TypeError: Trainer.__init__() got an unexpected keyword argument 'processing_class'",
                &["transformers>=4.46.0", "trl<0.12"],
            ),
            sample(
                "ERROR: Could not find a version that satisfies the requirement torch==2.8.0 (from versions: 1.13.1, 2.0.0, 2.4.1)\nERROR: No matching distribution found for torch==2.8.0",
                &["newest of which is 2.4.1", "Python 3.9 to 3.13"],
            ),
            sample(
                "ERROR: Could not find a version that satisfies the requirement torch==1.8.1 (from versions: 1.13.0, 1.13.1, 2.0.0, 2.8.0)\nERROR: No matching distribution found for torch==1.8.1",
                &["oldest of which is 1.13.0", "too new for it"],
            ),
            sample(
                "ERROR: Could not find a version that satisfies the requirement xformers==0.0.19.1 (from versions: 0.0.18, 0.0.19, 0.0.20)",
                &["never published", "xformers==0.0.20"],
            ),
            sample(
                "AttributeError: module 'triton' has no attribute 'heuristics'",
                &["triton is too old", "misspelt"],
            ),
            sample(
                "NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)",
                &["link went down", "ibqueryerrors"],
            ),
        ],
    ),
];
