use super::{Also, Context, Need, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Driver, Finding, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "fabric-manager",
    title: "the GPUs wait for the fabric manager",
    about: "\
On machines whose GPUs are connected by NVSwitch (HGX and DGX boards with A100, H100, H200, B200), CUDA starts only
after NVIDIA's fabric manager has configured the switches. It is a separate service whose version has to match the
driver's exactly, so a driver upgrade without it stops CUDA on every GPU. nvidia-smi still works.

It shows as torch.cuda.is_available() being False, with
  Error 802: system not yet initialized

Detected by the driver listing NVSwitches while no process is named nv-fabricmanager. A container does not see the
host's processes, so there only the message shows it. `nvidia-smi -q` then has Fabric State: In Progress.

Install the fabric manager in the driver's version and start it; for a container or a virtual machine, on the host.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/35710",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    ],
    texts: &[
        Text::new("Error 802: system not yet initialized", "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)"),
        Text::new("error (802) : system not yet initialized", "RuntimeError: cuda runtime error (802) : system not yet initialized at /opt/conda/THCGeneral.cpp:50"),
        Text::new("cudaErrorSystemNotReady", "cudaGetDeviceProperties returned 802 (cudaErrorSystemNotReady)"),
        // https://github.com/jax-ml/jax/issues/24866
        Text::new("CUDA_ERROR_SYSTEM_NOT_READY", "E external/xla/xla/stream_executor/cuda/cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized"),
    ],
    also: &[
        Also {
            cause: "The virtual machine or container got GPUs of a partition that its host has not set up, or MIG is half configured.",
            check: &["nvidia-smi -q | grep -i -A3 fabric; nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv"],
        },
    ],
    remedy: |seen| start(seen.machine()),
    needs: &[Need::NvSwitches],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Installs the service in the driver's version and starts it.
fn start(machine: &Machine) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    let driver = machine.driver.as_ref().and_then(Driver::version);
    let package = driver.and_then(|version| {
        let branch = version.value.split('.').next()?;
        Some(format!(
            "sudo apt-get install --yes nvidia-fabricmanager-{branch}={}-1",
            version.value
        ))
    });
    lines.extend(package);
    lines.push("sudo systemctl enable --now nvidia-fabricmanager".into());
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    judge(context.machine).into_iter().collect()
}

fn judge(machine: &Machine) -> Option<Finding> {
    let driver = machine.driver.as_ref()?;
    let switches = driver.nvswitches.as_ref()?;
    // A container sees only its own processes, not the host's service.
    if driver.fabric_manager.is_some() || host::container(machine).is_some() {
        return None;
    }
    let gpu = gpu::nvidia(machine).next()?;
    let title =
        format!("{} NVSwitches are here, and the fabric manager does not run", switches.value);
    let finding = RULE
        .finding(Severity::Error, Confidence::Likely, title)
        .evidence(format!("{} NVSwitches", switches.value), switches.source.clone())
        .evidence("no process is named nv-fabricmanager", "/proc/PID/comm")
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .cause("CUDA starts on these GPUs only after the fabric manager has set up the switches between them.")
        .fix(start(machine))
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence, Fact, Machine, Severity};

    fn with_switches(mut machine: Machine, manager: Option<u32>) -> Machine {
        let driver = machine.driver.as_mut().expect("a driver");
        driver.nvswitches = Some(Fact::new(4, "/proc/driver/nvidia-nvswitch/devices"));
        driver.fabric_manager = manager.map(|pid| Fact::new(pid, format!("/proc/{pid}/comm")));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let words = ["4 NVSwitches are here", "sudo systemctl enable --now nvidia-fabricmanager"];
        vec![
            Case::new(
                "switches without a fabric manager",
                with_switches(machines::h200(), None),
                Vec::new(),
            )
            .finds(Severity::Error, Confidence::Likely, &words),
            Case::new(
                "switches with a fabric manager",
                with_switches(machines::h200(), Some(2841)),
                Vec::new(),
            ),
            Case::new("no switches", machines::h200(), Vec::new()),
            Case::new(
                "a container, which does not see the host's processes",
                machines::in_container(with_switches(machines::h200(), None)),
                Vec::new(),
            ),
        ]
    }

    #[test]
    fn message_is_unconfirmed_without_nvswitches() {
        let text = "Error 802: system not yet initialized";
        let confirmed = |machine: &Machine| crate::explain(text, machine, &[])[0].confirmed_here;
        assert_eq!(confirmed(&with_switches(machines::h200(), None)), Some(true));
        assert_eq!(confirmed(&with_switches(machines::h200(), Some(2841))), Some(false));
        assert_eq!(confirmed(&machines::h200()), None);
        assert_eq!(confirmed(&machines::in_container(with_switches(machines::h200(), None))), None);
    }
}
