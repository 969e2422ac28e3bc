use super::{Also, Context, Need, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Driver, Finding, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "fabric-manager",
    title: "the GPUs wait for the fabric manager",
    about: "\
On machines whose GPUs are joined by NVSwitch (HGX and DGX boards with A100, H100, H200, B200) CUDA starts only after
NVIDIA's fabric manager has set up the switches. It is a service of its own, and its version has to equal the driver's
to the last number, so a driver upgrade without it stops every GPU. nvidia-smi works all the same.

It shows as torch.cuda.is_available() being False, with
  Error 802: system not yet initialized

Seen by the driver listing NVSwitches while no process is the fabric manager; in a container, whose processes are its
own, by its words alone. `nvidia-smi -q` has Fabric State: In Progress then.

Install the fabric manager of the driver's version and start it; in a container or a virtual machine, on the host.",
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

/// Installs the service in the driver's own version and starts it.
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
    // A container sees its own processes alone: the host's service is none of them.
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
                "switches that nobody sets up",
                with_switches(machines::h200(), None),
                Vec::new(),
            )
            .finds(Severity::Error, Confidence::Likely, &words),
            Case::new(
                "switches that are set up",
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
    fn without_visible_switches_no_finding() {
        let text = "Error 802: system not yet initialized";
        let confirmed = |machine: &Machine| crate::explain(text, machine, &[])[0].confirmed_here;
        assert_eq!(confirmed(&with_switches(machines::h200(), None)), Some(true));
        assert_eq!(confirmed(&with_switches(machines::h200(), Some(2841))), Some(false));
        assert_eq!(confirmed(&machines::h200()), None);
        assert_eq!(confirmed(&machines::in_container(with_switches(machines::h200(), None))), None);
    }
}
