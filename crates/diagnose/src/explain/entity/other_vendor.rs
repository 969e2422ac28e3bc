//! GPUs of other makers: named, and said not to be diagnosed.

use super::{Entity, Form, form};
use crate::rules::Seen;

pub(super) fn forms() -> Vec<Form> {
    let amd = [
        "HIP error: {error}",
        "hipErrorInvalidDeviceFunction",
        "hipErrorNoBinaryForGpu",
        "hipErrorInvalidImage",
        "hipErrorOutOfMemory",
        "hipErrorIllegalAddress",
        "hipErrorInvalidValue",
        "hipErrorLaunchFailure",
        "HIP out of memory",
        "Configured ROCm binary not found",
        "HSA_STATUS_ERROR*",
        "No HIP GPUs are available",
        "rocBLAS error: {error}",
        "rocblaslt error: {error}",
        "MIOpen(HIP)",
        "miopenStatus*",
        "Torch not compiled with ROCm",
        "libamdhip64.so*",
        "RCCL WARN",
        "Memory access fault by GPU node",
        "gpu arch gfx{name}",
        "offload-arch=gfx{name}",
    ];
    let intel = [
        "UR error",
        "UR_RESULT_ERROR*",
        "ZE_RESULT_ERROR*",
        "PI_ERROR_*",
        "Torch not compiled with XPU enabled",
        "XPU out of memory",
        "No XPU devices are available",
        "Native API failed. Native API returns: {code}",
        "oneDNN error*xpu",
        "libsycl.so*",
        "libze_loader.so*",
    ];
    let of_amd = amd.into_iter().map(|pattern| form(pattern, rocm));
    of_amd.chain(intel.into_iter().map(|pattern| form(pattern, xpu))).collect()
}

fn rocm(seen: &Seen, _: &'static str) -> Option<Entity> {
    let text = seen.text.to_ascii_lowercase();
    let amd = ["hip", "rocm", "hsa", "roc", "amd", "gfx", "miopen", "rccl"];
    amd.iter().any(|word| text.contains(word)).then_some(())?;
    let device_function =
        text.contains("invalid device function") || text.contains("nobinaryforgpu");
    let why = match device_function {
        true => {
            " This error means that the library has no code for the GPU's architecture (gfx number)."
        }
        false => "",
    };
    Some(
        Entity::new("other-vendor", "AMD GPU (ROCm)")
            .meaning(format!(
                "The text is about an AMD GPU with ROCm or HIP. firstlight diagnoses NVIDIA GPUs and does not diagnose ROCm.{why} \
                 ROCm's documentation lists the supported GPUs and, for PyTorch, the index of its wheels; packages such as \
                 bitsandbytes and flash-attn have their own pages for ROCm."
            ))
            .fix([
                "rocminfo | grep gfx  # the GPU's architecture",
                "python -c 'import torch; print(torch.version.hip, torch.cuda.get_arch_list())'",
                "# https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
            ])
            .rank(5),
    )
}

fn xpu(seen: &Seen, _: &'static str) -> Option<Entity> {
    let text = seen.text.to_ascii_lowercase();
    let intel = [
        "xpu",
        "sycl",
        "level_zero",
        "level zero",
        "ze_",
        "ur_",
        "ur error",
        "pi_error",
        "native api",
    ];
    intel.iter().any(|word| text.contains(word)).then_some(())?;
    Some(
        Entity::new("other-vendor", "Intel GPU (XPU)")
            .meaning(
                "The text is about an Intel GPU with SYCL or Level Zero. firstlight diagnoses NVIDIA GPUs and does not diagnose \
                 Intel's stack. PyTorch's page on XPU lists the supported GPUs and drivers.",
            )
            .fix([
                "python -c 'import torch; print(torch.xpu.is_available(), torch.xpu.device_count())'",
                "# https://docs.pytorch.org/docs/stable/notes/get_start_xpu.html",
            ])
            .rank(5),
    )
}
