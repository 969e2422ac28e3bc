use super::{Rule, Text};
use crate::host;
pub(super) const RULE: Rule = Rule {
    id: "fabric-manager",
    title: "the GPUs wait for the fabric manager",
    about: "\
On machines whose GPUs are joined by NVSwitch (HGX and DGX boards with A100, H100, H200, B200) CUDA starts only after
NVIDIA's fabric manager has set up the switches. It is a service of its own, and its version has to equal the driver's
to the last number, so a driver upgrade without it stops every GPU. nvidia-smi works all the same.

It shows as torch.cuda.is_available() being False, with
  Error 802: system not yet initialized

Confirm it with `nvidia-smi -q`, where Fabric says State: In Progress, and `systemctl status nvidia-fabricmanager`.

Install the fabric manager of the driver's version and start it; in a container or a virtual machine, on the host.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/35710",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    ],
    texts: &[
        Text {
            pattern: "Error 802: system not yet initialized",
            sample: "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)",
        },
        Text {
            pattern: "error (802) : system not yet initialized",
            sample: "RuntimeError: cuda runtime error (802) : system not yet initialized at /opt/conda/THCGeneral.cpp:50",
        },
        Text {
            pattern: "cudaErrorSystemNotReady",
            sample: "cudaGetDeviceProperties returned 802 (cudaErrorSystemNotReady)",
        },
    ],
    remedy: |seen| {
        let mut lines: Vec<String> = host::where_the_driver_is(seen.machine()).into_iter().collect();
        let driver = seen.machine().driver.as_ref().and_then(|driver| driver.version());
        let package = driver.and_then(|version| {
            let branch = version.value.split('.').next()?;
            Some(format!("sudo apt-get install --yes nvidia-fabricmanager-{branch}={}-1", version.value))
        });
        lines.extend(package);
        lines.push("sudo systemctl enable --now nvidia-fabricmanager".into());
        lines
    },
    ..Rule::BLANK
};
