//! The catalogue of known failures: the text of each row as readers reported it, and its rule. Rows with an empty text
//! print nothing; their rule finds them in the files.

/// Row, text, rule.
pub(super) const ROWS: &[(&str, &str, &str)] = &[
    (
        "1",
        "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        "extension-new-abi",
    ),
    ("2", "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs", "extension-old-abi"),
    ("3", "undefined symbol: _ZN3c104cuda9SetDeviceEi", "torch-minor-drift"),
    ("3", "undefined symbol: _ZN3c104cuda9SetDeviceEa", "torch-minor-drift"),
    ("3", "undefined symbol: _ZN3c104cuda9SetDeviceEab", "torch-minor-drift"),
    (
        "4",
        "undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningE",
        "extension-other-torch",
    ),
    (
        "5",
        "undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEE",
        "optional-type-drift",
    ),
    (
        "5",
        "undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEE",
        "optional-type-drift",
    ),
    ("6", "version `GLIBC_2.32' not found (required by /v/flash_attn_2_cuda.so)", "glibc-too-old"),
    ("7", "Torch not compiled with CUDA enabled", "cpu-only-torch"),
    ("8", "CUDA error: no kernel image is available for execution on the device", "gpu-too-new"),
    (
        "8",
        "RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation",
        "gpu-too-new",
    ),
    (
        "9",
        "PyTorch no longer supports this GPU because it is too old. The minimum cuda capability supported by this \
         library is 7.5.",
        "gpu-too-old",
    ),
    (
        "10",
        "NVIDIA Thor with CUDA capability sm_110 is not compatible with the current PyTorch installation",
        "gpu-too-new",
    ),
    (
        "11",
        "Orin with CUDA capability sm_87 is not compatible with the current PyTorch installation",
        "jetson-server-wheel",
    ),
    (
        "12",
        "Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)",
        "capability-warning",
    ),
    (
        "13",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "triton-ptxas-too-old",
    ),
    ("14", "the provided PTX was compiled with an unsupported toolchain.", "ptx-newer-than-driver"),
    ("15", "libcudart.so.12: cannot open shared object file", "mixed-cuda-majors"),
    ("15", "libcudart.so.13: cannot open shared object file", "mixed-cuda-majors"),
    (
        "16",
        "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "library-path-shadows",
    ),
    ("17", "The NVIDIA driver on your system is too old (found version 12020).", "driver-too-old"),
    ("18", "Error 802: system not yet initialized", "fabric-manager"),
    (
        "18",
        "Error 804: forward compatibility was attempted on non supported HW",
        "forward-compatibility",
    ),
    ("19", "Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch"),
    (
        "20",
        "The fast path is not available because one of `(mamba_inner_fn)` is None",
        "slow-hybrid-path",
    ),
    (
        "20",
        "The fast path is not available because one of the required library is not installed",
        "slow-hybrid-path",
    ),
    (
        "20",
        "causal_conv1d_fn is falling back to its reference PyTorch implementation because `causal_conv1d` is not \
         installed",
        "slow-hybrid-path",
    ),
    ("21", "'NoneType' object has no attribute 'causal_conv1d_fwd'", "conv-extension-missing"),
    (
        "22",
        "× Getting requirements to build wheel did not run successfully. ModuleNotFoundError: No module named 'torch'",
        "build-isolation",
    ),
    (
        "23",
        "The detected CUDA version (12.3) mismatches the version that was used to compile PyTorch (11.8)",
        "cuda-versions",
    ),
    ("24", "CUDA_HOME environment variable is not set", "cuda-home-not-set"),
    ("24", "Precompiled wheel not found. Building from source...", "no-prebuilt-wheel"),
    ("24", "Killed", "build-out-of-memory"),
    (
        "25",
        "Configured CUDA binary not found at /v/libbitsandbytes_cuda129.so",
        "bitsandbytes-library",
    ),
    ("26", "operator torchvision::nms does not exist", "torch-pairs"),
    (
        "27",
        "Cannot find a build variant for this system in kernels-community/x",
        "kernel-hub-variant",
    ),
    ("28", "", "sm103-miscompile"),
    ("29", "", "wrong-architecture"),
    ("30", "", "stale-process"),
    ("31", "FlashAttention only supports Ampere GPUs or newer.", "flash-attention-needs-ampere"),
    ("R0-03", "", "cpu-only-torch"),
    ("R0-04", "Python 3.10 is below recommended 3.11+", "old-python"),
    ("R0-05", "Triton is not supported on current platform", "cpu-only-torch"),
    (
        "R2-02",
        "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        "extension-new-abi",
    ),
    (
        "R2-03",
        "The fast path is not available because one of `(selective_state_update, causal_conv1d_fn, \
         causal_conv1d_update)` is None",
        "slow-hybrid-path",
    ),
    ("R2-04", "", "duplicate-processes"),
    ("R3-01", "fatal error: pybind11/pybind11.h: No such file or directory", "missing-header"),
    (
        "R3-02",
        "CUDA error: no kernel image is available for execution on the device",
        "gpu-too-new",
    ),
    ("R4-04", "Precompiled wheel not found. Building from source...", "no-prebuilt-wheel"),
    ("R4-05", "SyntaxError: expected 'except' or 'finally' block", "kernel-syntax-error"),
    ("R4-06", "gate broadcasting failed", "gate-broadcast"),
    (
        "R1-05",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "out-of-memory",
    ),
    ("R1-05", "RuntimeError: MPS backend out of memory", "out-of-memory"),
    ("R1-05", "RuntimeError: DefaultCPUAllocator: can't allocate memory", "out-of-memory"),
    ("R1-05", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "out-of-memory"),
    (
        "R1-06",
        "datasets 4.0.0 requires requests>=2.32.2, but you have requests 2.28.1 which is incompatible.",
        "dependency-conflict",
    ),
];
