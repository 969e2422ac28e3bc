//! Error codes of CUDA, cuDNN, cuBLAS and NCCL, by number, by enum name and by the sentence that programs print.

use super::{Entity, Form, keyed};
use crate::host;
use crate::rules::Seen;
use std::borrow::Cow;

/// One error of the CUDA runtime or driver API. Read on 2026-11-28 in PyPI's wheels of nvidia-cuda-runtime 12.4 and 13.0: codes and
/// names in driver_types.h and cuda.h, words by cudaGetErrorString of libcudart.
struct Cuda {
    code: u32,
    runtime: &'static str,
    driver: &'static str,
    /// The words of cudaGetErrorString.
    words: &'static str,
    /// Whether the words need no prefix, since other programs do not print them.
    distinct: bool,
    advice: Advice,
}

#[derive(Clone, Copy)]
enum Advice {
    /// A kernel read or wrote outside of its memory, or asserted.
    Kernel,
    /// An argument of a call is wrong.
    Argument,
    /// The kernel asks for more than the GPU has.
    Resources,
    /// The operation does not exist on this GPU or in this virtual GPU.
    NotSupported,
    /// The driver refuses the program.
    Driver,
    /// The GPU's hardware reports an error.
    Hardware,
    /// The GPU's code is missing from the library.
    Code,
    /// The GPU is used exclusively by another process, or not visible.
    Device,
    /// A kernel ran longer than the limit of a GPU that drives a display.
    Timeout,
}

const fn row(
    code: u32,
    runtime: &'static str,
    driver: &'static str,
    words: &'static str,
    distinct: bool,
    advice: Advice,
) -> Cuda {
    Cuda { code, runtime, driver, words, distinct, advice }
}

/// Errors about memory that ran out are another kind's.
const CUDA: [Cuda; 28] = [
    row(
        1,
        "cudaErrorInvalidValue",
        "CUDA_ERROR_INVALID_VALUE",
        "invalid argument",
        false,
        Advice::Argument,
    ),
    row(
        3,
        "cudaErrorInitializationError",
        "CUDA_ERROR_NOT_INITIALIZED",
        "initialization error",
        false,
        Advice::Driver,
    ),
    row(
        9,
        "cudaErrorInvalidConfiguration",
        "",
        "invalid configuration argument",
        true,
        Advice::Argument,
    ),
    row(
        35,
        "cudaErrorInsufficientDriver",
        "",
        "CUDA driver version is insufficient for CUDA runtime version",
        true,
        Advice::Driver,
    ),
    row(
        46,
        "cudaErrorDevicesUnavailable",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA-capable device(s) is/are busy or unavailable",
        true,
        Advice::Device,
    ),
    row(98, "cudaErrorInvalidDeviceFunction", "", "invalid device function", false, Advice::Code),
    row(
        100,
        "cudaErrorNoDevice",
        "CUDA_ERROR_NO_DEVICE",
        "no CUDA-capable device is detected",
        true,
        Advice::Device,
    ),
    row(
        101,
        "cudaErrorInvalidDevice",
        "CUDA_ERROR_INVALID_DEVICE",
        "invalid device ordinal",
        true,
        Advice::Device,
    ),
    row(
        200,
        "cudaErrorInvalidKernelImage",
        "CUDA_ERROR_INVALID_IMAGE",
        "device kernel image is invalid",
        true,
        Advice::Code,
    ),
    row(
        201,
        "cudaErrorDeviceUninitialized",
        "CUDA_ERROR_INVALID_CONTEXT",
        "invalid device context",
        true,
        Advice::Argument,
    ),
    row(
        209,
        "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device",
        true,
        Advice::Code,
    ),
    row(
        214,
        "cudaErrorECCUncorrectable",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "uncorrectable ECC error encountered",
        true,
        Advice::Hardware,
    ),
    row(
        220,
        "cudaErrorNvlinkUncorrectable",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable NVLink error detected during the execution",
        true,
        Advice::Hardware,
    ),
    row(
        222,
        "cudaErrorUnsupportedPtxVersion",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the provided PTX was compiled with an unsupported toolchain",
        true,
        Advice::Driver,
    ),
    row(
        400,
        "cudaErrorInvalidResourceHandle",
        "CUDA_ERROR_INVALID_HANDLE",
        "invalid resource handle",
        true,
        Advice::Argument,
    ),
    row(
        700,
        "cudaErrorIllegalAddress",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered",
        true,
        Advice::Kernel,
    ),
    row(
        701,
        "cudaErrorLaunchOutOfResources",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "too many resources requested for launch",
        true,
        Advice::Resources,
    ),
    row(
        702,
        "cudaErrorLaunchTimeout",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "the launch timed out and was terminated",
        true,
        Advice::Timeout,
    ),
    row(
        710,
        "cudaErrorAssert",
        "CUDA_ERROR_ASSERT",
        "device-side assert triggered",
        true,
        Advice::Kernel,
    ),
    row(
        715,
        "cudaErrorIllegalInstruction",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "an illegal instruction was encountered",
        true,
        Advice::Kernel,
    ),
    row(
        716,
        "cudaErrorMisalignedAddress",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "misaligned address",
        false,
        Advice::Kernel,
    ),
    row(
        717,
        "cudaErrorInvalidAddressSpace",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "operation not supported on global/shared address space",
        true,
        Advice::Kernel,
    ),
    row(
        718,
        "cudaErrorInvalidPc",
        "CUDA_ERROR_INVALID_PC",
        "invalid program counter",
        true,
        Advice::Kernel,
    ),
    row(
        719,
        "cudaErrorLaunchFailure",
        "CUDA_ERROR_LAUNCH_FAILED",
        "unspecified launch failure",
        true,
        Advice::Kernel,
    ),
    row(
        800,
        "cudaErrorNotPermitted",
        "CUDA_ERROR_NOT_PERMITTED",
        "operation not permitted",
        false,
        Advice::NotSupported,
    ),
    row(
        801,
        "cudaErrorNotSupported",
        "CUDA_ERROR_NOT_SUPPORTED",
        "operation not supported",
        false,
        Advice::NotSupported,
    ),
    row(
        803,
        "cudaErrorSystemDriverMismatch",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
        true,
        Advice::Driver,
    ),
    row(999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error", false, Advice::Driver),
];

/// Status names of cuDNN and cuBLAS, and results of NCCL. An allocation that failed is another kind's. Names read on 2026-11-28:
/// cudnn_graph.h of PyPI's nvidia-cudnn-cu12 9.28 (cuDNN 9), the documentation of cudarc 0.9.9 (MAPPING_ERROR, ARCH_MISMATCH,
/// VERSION_MISMATCH and RUNTIME_PREREQUISITE_MISSING of cuDNN 8), nvmath-python's list of cublasStatus_t, and nccl.h of
/// nvidia-nccl-cu12 2.32. No vendor's text was read for what the sentences advise.
const STATUS: [(&str, &str, &str); 24] = [
    ("CUDNN_STATUS_NOT_INITIALIZED", "cuDNN", CUDNN_LOAD),
    ("CUDNN_STATUS_INTERNAL_ERROR", "cuDNN", CUDNN_LOAD),
    ("CUDNN_STATUS_EXECUTION_FAILED", "cuDNN", EXECUTION),
    ("CUDNN_STATUS_MAPPING_ERROR", "cuDNN", EXECUTION),
    (
        "CUDNN_STATUS_ARCH_MISMATCH",
        "cuDNN",
        "cuDNN has no code for this GPU's compute capability: another cuDNN release, or another GPU.",
    ),
    ("CUDNN_STATUS_BAD_PARAM", "cuDNN", CUDNN_SHAPE),
    ("CUDNN_STATUS_NOT_SUPPORTED", "cuDNN", CUDNN_SHAPE),
    ("CUDNN_STATUS_VERSION_MISMATCH", "cuDNN", CUDNN_MIX),
    ("CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "cuDNN", CUDNN_MIX),
    ("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", "cuDNN", CUDNN_MIX),
    ("CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING", "cuDNN", CUDNN_MIX),
    (
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "cuBLAS",
        "cuBLAS could not create its handle: most often no GPU memory is left for its workspace, and sometimes an earlier kernel failed.",
    ),
    ("CUBLAS_STATUS_EXECUTION_FAILED", "cuBLAS", EXECUTION),
    ("CUBLAS_STATUS_INTERNAL_ERROR", "cuBLAS", EXECUTION),
    ("CUBLAS_STATUS_INVALID_VALUE", "cuBLAS", CUBLAS_VALUE),
    ("CUBLAS_STATUS_NOT_SUPPORTED", "cuBLAS", CUBLAS_VALUE),
    (
        "CUBLAS_STATUS_ARCH_MISMATCH",
        "cuBLAS",
        "This GPU lacks a data type that the product asks for: bfloat16 needs compute capability 8.0, float8 needs 8.9.",
    ),
    ("unhandled system error", "NCCL", NCCL_SYSTEM),
    ("ncclSystemError", "NCCL", NCCL_SYSTEM),
    ("unhandled cuda error", "NCCL", NCCL_CUDA),
    ("ncclUnhandledCudaError", "NCCL", NCCL_CUDA),
    ("ncclInternalError", "NCCL", NCCL_SYSTEM),
    (
        "ncclRemoteError",
        "NCCL",
        "Another rank ended or lost its connection: its own log has the cause.",
    ),
    (
        "ncclInvalidUsage",
        "NCCL",
        "The ranks call NCCL in different ways, or two ranks use one GPU: each rank needs a GPU of its own (`torch.cuda.set_device(local_rank)`).",
    ),
];

const CUDNN_LOAD: &str = "cuDNN could not set itself up: its libraries are of another release than the program was built for (two copies in one process), GPU memory is exhausted, or an earlier kernel failed.";
const CUDNN_MIX: &str = "The libraries of cuDNN in this process are of different releases: one copy comes from the environment, another from LD_LIBRARY_PATH or the system.";
const CUDNN_SHAPE: &str = "cuDNN does not take this shape, layout or data type; with GPU memory exhausted it says the same.";
const EXECUTION: &str = "A kernel of the library failed on the GPU. Most often an earlier kernel wrote outside of its memory and the error is reported late; else the GPU memory is exhausted, or two releases of the library are mixed in one process.";
const CUBLAS_VALUE: &str = "cuBLAS refuses the shape, leading dimension or data type of this product. Where the same program runs elsewhere, two releases of cuBLAS are mixed: LD_LIBRARY_PATH puts another copy in front of the environment's.";
const NCCL_SYSTEM: &str = "A system call failed inside NCCL: the network interface, /dev/shm, a port that is blocked, or a peer that ended. The line that NCCL prints before it, with NCCL_DEBUG=INFO, names the call.";
const NCCL_CUDA: &str = "A CUDA call failed inside NCCL; the line that NCCL prints before it, with NCCL_DEBUG=INFO, names the CUDA error. Two ranks on one GPU and exhausted GPU memory are the usual causes.";

pub(super) fn forms() -> Vec<Form> {
    let mut all = Vec::new();
    for row in &CUDA {
        let mut add = |pattern: Cow<'static, str>| all.push(keyed(pattern, row.runtime, cuda));
        add(Cow::Borrowed(row.runtime));
        if !row.driver.is_empty() {
            add(Cow::Borrowed(row.driver));
        }
        // Short words such as `invalid argument` are those of other programs as well.
        for prefix in [
            "CUDA error: ",
            "Cuda failure '",
            "Cuda failure ",
            "CUDA runtime error: ",
            "CUDA driver error: ",
        ] {
            add(Cow::Owned(format!("{prefix}{}", row.words)));
        }
        if row.distinct {
            add(Cow::Borrowed(row.words));
        }
        for prefix in
            ["CUDA error ", "CUDA error: ", "CUDA error code=", "Cuda error ", "cudaError_t "]
        {
            add(Cow::Owned(format!("{prefix}{}", row.code)));
        }
        for prefix in ["CUDA failure ", "Cuda failure "] {
            add(Cow::Owned(format!("{prefix}{} '{}", row.code, row.words)));
        }
        add(Cow::Owned(format!("CUDA failure {}:", row.code)));
    }
    for (name, library, _) in &STATUS {
        let pattern = match (*library, name.starts_with("nccl")) {
            ("NCCL", false) => format!("NCCL*{name}"),
            _ => (*name).to_owned(),
        };
        all.push(keyed(pattern, name, status));
    }
    all
}

fn cuda(seen: &Seen, key: &'static str) -> Option<Entity> {
    let row = CUDA.iter().find(|row| row.runtime == key)?;
    let name = format!("{} ({}): {}", row.runtime, row.code, row.words);
    let machine = seen.machine();
    let nccl = seen.text.contains("NCCL");
    let (meaning, fix): (&str, Vec<String>) = match row.advice {
        Advice::Kernel => (
            "A kernel failed on the GPU. CUDA reports it at a later call, so the line of the traceback is seldom the one that caused it. An index \
             outside of its tensor (a token id beyond the vocabulary, a label beyond the classes) is the usual cause; the process has to be \
             started again, since every later CUDA call fails too.",
            vec![
                "CUDA_LAUNCH_BLOCKING=1 python your_program.py  # the traceback then names the call".into(),
                "compute-sanitizer python your_program.py  # names the kernel and the address".into(),
                "sudo dmesg | grep -E 'NVRM|Xid'  # Xid 13 or 31: the program; others: the GPU".into(),
            ],
        ),
        Advice::Argument => (
            "A call to CUDA has an argument that it refuses: a launch with no or too many threads, a stream or handle of another device or \
             process, a pointer that is not CUDA's.",
            vec!["CUDA_LAUNCH_BLOCKING=1 python your_program.py".into(), "compute-sanitizer python your_program.py".into()],
        ),
        Advice::Resources => (
            "The kernel asks for more registers or shared memory in a block than this GPU has: it was tuned for another GPU, or its block \
             is too large.",
            vec!["nvidia-smi --query-gpu=name,compute_cap --format=csv".into(), "# smaller block or tile sizes, fewer stages, or another attention backend".into()],
        ),
        Advice::NotSupported if nccl => (
            "NCCL asked CUDA for an operation that this GPU does not have here. In a virtual machine with a vGPU, the profile has no unified \
             memory or no peer-to-peer access, which NCCL needs: the hypervisor has to enable it for the vGPU (`enable_uvm=1` for NVIDIA vGPU), \
             or a whole GPU has to be passed through. One GPU without NCCL works meanwhile.",
            vec![
                "NCCL_DEBUG=INFO python your_program.py".into(),
                "nvidia-smi -q | grep -i -A2 virtualization".into(),
                "# one GPU: --tensor-parallel-size 1; or without P2P and unified buffers:".into(),
                "export NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0".into(),
            ],
        ),
        Advice::NotSupported => (
            "CUDA does not have this operation on this GPU or in this virtual GPU: unified memory, peer-to-peer access, CUDA graphs of some calls \
             and memory pools are absent from some vGPU profiles, from WSL and from integrated GPUs.",
            vec!["nvidia-smi -q | grep -i -A2 virtualization".into(), "firstlight doctor".into()],
        ),
        Advice::Driver => (
            "The driver and the program do not fit, or the driver is in trouble: a driver older than the program's CUDA release, a module that was \
             updated without a reboot, or a device that was lost.",
            vec!["firstlight doctor".into(), "nvidia-smi".into()],
        ),
        Advice::Hardware => (
            "The GPU's hardware reports an error that it could not correct. Reset the GPU; where it returns, the GPU has to be replaced.",
            vec![
                "sudo dmesg | grep -E 'NVRM|Xid'".into(),
                "nvidia-smi --query --display=ECC,ROW_REMAPPER".into(),
                "sudo nvidia-smi --gpu-reset".into(),
            ],
        ),
        Advice::Code => (
            "The library has no code for this GPU's compute capability.",
            vec!["firstlight doctor".into(), "nvidia-smi --query-gpu=name,compute_cap --format=csv".into()],
        ),
        Advice::Device => (
            "The program asks for a GPU that it does not get: it is not visible (CUDA_VISIBLE_DEVICES, a container without GPUs), another process has \
             it exclusively, or its number is too high.",
            vec!["nvidia-smi -L".into(), "echo \"$CUDA_VISIBLE_DEVICES\"".into(), "nvidia-smi --query-gpu=compute_mode --format=csv".into(), "firstlight doctor".into()],
        ),
        Advice::Timeout => (
            "A kernel ran longer than the driver's limit for a GPU that drives a display.",
            vec!["# run on a GPU without a display, or raise the limit (Windows: TdrDelay)".into()],
        ),
    };
    let host =
        host::where_the_driver_is(machine).filter(|_| matches!(row.advice, Advice::Hardware));
    Some(Entity::new("cuda-error", name).meaning(meaning).fix(host).fix(fix).rank(3))
}

fn status(seen: &Seen, key: &'static str) -> Option<Entity> {
    let (name, library, words) = STATUS.iter().find(|(name, ..)| *name == key)?;
    let python = seen.installer().python();
    let fix: Vec<String> = match *library {
        "NCCL" => vec![
            "NCCL_DEBUG=INFO python your_program.py  # the line before the error names the call"
                .into(),
            "df -h /dev/shm  # containers: --shm-size or --ipc=host".into(),
            "ip -brief address  # NCCL_SOCKET_IFNAME=NAME picks the interface".into(),
            "firstlight bench fabric".into(),
        ],
        _ => vec![
            "firstlight ps  # GPU memory".into(),
            "echo \"$LD_LIBRARY_PATH\"  # unset it where it names another copy of the libraries"
                .into(),
            "CUDA_LAUNCH_BLOCKING=1 python your_program.py".into(),
            format!(
                "{python} -c 'import torch; print(torch.version.cuda, torch.backends.cudnn.version())'"
            ),
        ],
    };
    let mut entity = Entity::new("library-status", format!("{library}: {name}"))
        .meaning(*words)
        .fix(fix)
        .rank(3);
    let part = match *library {
        "cuDNN" => "nvidia-cudnn",
        "cuBLAS" => "nvidia-cublas",
        _ => "nvidia-nccl",
    };
    for env in seen.context.envs {
        for dist in env.dists.iter().filter(|dist| dist.name.replace('_', "-").starts_with(part)) {
            entity = entity
                .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
                .package(dist.name.clone());
        }
    }
    Some(entity)
}
