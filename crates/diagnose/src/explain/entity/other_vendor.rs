//! GPUs of other vendors: the reported error and its possible causes. Their drivers are not diagnosed.

use super::super::cause::Cause;
use super::{Entity, Form, form, keyed};
use crate::rules::PastedError;
use knowledge::gpu_codes;

pub(super) fn forms() -> Vec<Form> {
    let amd = [
        "HIP error: {error}",
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
        "libhsa-runtime64.so*",
        "librocblas.so*",
        "libhipblas*.so*",
        "libMIOpen.so*",
        "librccl.so*",
        "Unable to open /dev/kfd",
        "/dev/kfd: Permission denied",
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
        "libmkl_sycl*.so*",
        "libOpenCL.so*xpu",
        "libpi_level_zero.so*",
        "libur_loader.so*",
        "libur_adapter_level_zero.so*",
    ];
    let codes = gpu_codes::hip().iter().map(|row| keyed(row.name.as_str(), &row.name, hip));
    let of_amd = amd.into_iter().map(|pattern| form(pattern, rocm));
    codes.chain(of_amd).chain(intel.into_iter().map(|pattern| form(pattern, xpu))).collect()
}

/// A code of HIP: its number, and the causes of ROCm errors.
fn hip(seen: &PastedError, name: &'static str) -> Option<Entity> {
    let row = gpu_codes::hip().iter().find(|row| row.name == name)?;
    let mut entity = rocm(seen, "")?;
    entity.name = format!("{name} ({}) of an AMD GPU (ROCm)", row.code);
    Some(entity)
}

fn rocm(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let text = seen.text.to_ascii_lowercase();
    let amd = ["hip", "rocm", "hsa", "roc", "amd", "gfx", "miopen", "rccl"];
    amd.iter().any(|word| text.contains(word)).then_some(())?;
    let device_function = text.contains("invalid device function")
        || text.contains("invaliddevicefunction")
        || text.contains("nobinaryforgpu")
        || text.contains("no kernel image")
        || text.contains("code object");
    let no_device = text.contains("no hip gpus")
        || text.contains("/dev/kfd")
        || text.contains("nodevice")
        || text.contains("no rocm-capable");
    let no_code = Cause::new("The library has no code for this GPU's architecture (gfx number): torch, or the extension of the traceback's last frames.")
        .check(["rocminfo | grep -m1 gfx; python -c 'import torch; print(torch.__version__, torch.version.hip, torch.cuda.get_arch_list())'"])
        .fix(["# a ROCm build that lists the gfx number; built here: PYTORCH_ROCM_ARCH, GPU_TARGETS or AMDGPU_TARGETS=gfxNNNN", "# a close relative of a supported GPU: HSA_OVERRIDE_GFX_VERSION=10.3.0 (RDNA 2), 11.0.0 (RDNA 3)"]);
    let access = Cause::new("The process may not open the GPU: the user is not in the groups render and video, or the container lacks /dev/kfd and /dev/dri.")
        .check(["ls -l /dev/kfd /dev/dri/render*; id"])
        .fix(["sudo usermod -aG render,video $USER  # then log in again; containers: --device /dev/kfd --device /dev/dri --group-add video"]);
    let releases = Cause::new("The ROCm release of the package is not that of the system's libraries or driver, or the package is a CUDA or CPU build.")
        .check(["cat /opt/rocm/.info/version; python -m pip list | grep -iE 'torch|rocm|triton'; dkms status"])
        .fix(["# the package's build for the installed ROCm, from the index that its page names"]);
    let hidden = Cause::new("HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hides the GPU, or the amdgpu driver is not loaded.")
        .check(["env | grep VISIBLE_DEVICES; lsmod | grep amdgpu; rocminfo | head -20"]);
    let fault = Cause::new("A kernel of this release fails on the GPU, or memory ran out.")
        .check([
            "rocm-smi --showmeminfo vram; sudo dmesg | grep -i amdgpu | tail",
            "AMD_SERIALIZE_KERNEL=3 python your_program.py  # names the call",
        ])
        .fix([
            "# another release of the package, or without the kernel (another attention backend)",
        ]);
    let causes = match (device_function, no_device) {
        (true, _) => vec![no_code, releases],
        (_, true) => vec![access, hidden, releases],
        _ => vec![fault, no_code, releases],
    };
    Some(
        Entity::new("other-vendor", "AMD GPU (ROCm)")
            .meaning(
                "The text is about an AMD GPU with ROCm or HIP. firstlight reads NVIDIA GPUs and does not diagnose ROCm; the causes below \
                 follow from the text alone.",
            )
            .causes(causes)
            .fix([
                "# supported GPUs: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
            ])
            .rank(5),
    )
}

fn xpu(seen: &PastedError, _: &'static str) -> Option<Entity> {
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
        "libur_",
        "libpi_",
    ];
    intel.iter().any(|word| text.contains(word)).then_some(())?;
    let library = text.contains("cannot open shared object file");
    let causes = [
        Cause::new("oneAPI's libraries are installed, and the shell did not read its settings.")
            .check(["ls /opt/intel/oneapi; echo $ONEAPI_ROOT $LD_LIBRARY_PATH"])
            .fix(["source /opt/intel/oneapi/setvars.sh"]),
        Cause::new("The installed oneAPI is of another year than the package was built with: the number after `.so.` changes with it (libsycl.so.7 is of 2024, .8 of 2025).")
            .check(["find / -name 'libsycl.so*' -not -path '/proc/*' 2>/dev/null | head"])
            .fix(["# the oneAPI release that the package's installation page names, or the package's build for this one"]),
    ];
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
            .causes(causes.into_iter().filter(|_| library))
            .rank(5),
    )
}
