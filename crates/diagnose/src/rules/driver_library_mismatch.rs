use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, Driver, Finding, Machine, Severity};
use knowledge::Version;

pub(super) const RULE: Rule = Rule {
    id: "driver-library-mismatch",
    title: "the loaded NVIDIA kernel module and the driver's libraries are of different versions",
    about: "\
The driver was upgraded on disk while the old kernel module stayed loaded (unattended upgrades do this), so every
program that uses the GPU fails until the new module is loaded. A container gets the driver's libraries from the host at
its start, so a container started before the upgrade keeps the old ones.

It shows as
  Failed to initialize NVML: Driver/library version mismatch
from nvidia-smi, and as torch.cuda.is_available() being False.

Detected by comparing /sys/module/nvidia/version with the version in the file name of libnvidia-ml.so.

Reboot, or unload and reload the module when no process uses the GPU; then restart the containers. Hold the driver
packages (`apt-mark hold`) to prevent this with unattended upgrades.",
    links: &["https://github.com/NVIDIA/ubuntu-packaging-nvidia-driver/issues/3"],
    texts: &[
        Text::new("Failed to initialize NVML: Driver/library version mismatch", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.148"),
        Text::new("NVRM: API mismatch: the client has the version {client}", "\
[ 5123.4421] NVRM: API mismatch: the client has the version 570.148.08, but
             NVRM: this kernel module has the version 550.163.01."),
        Text::new("nvml error: driver/library version mismatch", "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown."),
    ],
    remedy: |seen| {
        let mut lines: Vec<String> = host::driver_location_remark(seen.machine()).into_iter().collect();
        lines.push("sudo reboot".into());
        lines
    },
    needs: &[Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context
        .machine
        .driver
        .as_ref()
        .and_then(|driver| judge(context.machine, driver))
        .into_iter()
        .collect()
}

fn judge(machine: &Machine, driver: &Driver) -> Option<Finding> {
    let differing = driver
        .kernel_module
        .as_ref()
        .zip(driver.user_library.as_ref())
        .filter(|(module, library)| differ(&module.value, &library.value));
    let words = driver
        .nvml_error
        .as_ref()
        .filter(|error| error.value.to_ascii_lowercase().contains("version mismatch"));
    let answered = driver.nvml_error.is_none()
        && machine.gpus.iter().any(|gpu| gpu.name.source.starts_with("NVML"));
    let (severity, confidence, title) = match (differing, words) {
        (Some((module, library)), _) => {
            let title = format!(
                "kernel module {} is loaded, but the driver's libraries are {}",
                module.value, library.value
            );
            // If NVML answered, it found a library that matches the module: the other one is a second copy.
            match answered {
                true => (Severity::Warning, Confidence::Likely, title),
                false => (Severity::Error, Confidence::Certain, title),
            }
        }
        (None, Some(_)) => (
            Severity::Error,
            Confidence::Likely,
            "NVML finds the kernel module and its own version different".to_owned(),
        ),
        (None, None) => return None,
    };
    let mut fix: Vec<String> = Vec::new();
    if answered {
        fix.push("ldconfig -p | grep -E 'libnvidia-ml|libcuda.so'".into());
        fix.push(
            "# remove the packages of the version that is not the module's, or after an upgrade:"
                .into(),
        );
    }
    fix.extend(host::driver_location_remark(machine));
    fix.push("sudo reboot".into());
    fix.push("# or without a reboot, once nothing uses the GPU:".into());
    fix.push(
        "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia".into(),
    );
    let cause = match answered {
        true => {
            "NVML answered, so a library that matches the module was found; there is also a copy of another version, \
             and a program that loads that copy gets no GPU."
        }
        false => {
            "The driver's packages were upgraded after the module was loaded; the two must be of one version, so \
             NVML and CUDA refuse to start."
        }
    };
    let draft = RULE
        .finding(severity, confidence, title)
        .fact("kernel module", driver.kernel_module.as_ref())
        .fact("user library", driver.user_library.as_ref())
        .fact("NVML says:", driver.nvml_error.as_ref());
    Some(draft.cause(cause).fix(fix).finish())
}

/// Whether two driver versions differ in a component both have: `570.124` and `570.124.06` do not differ.
fn differ(module: &str, library: &str) -> bool {
    // A soname's `1` or a Tegra name is not a driver version; driver versions begin at 300.
    let read = |text: &str| Version::parse(text).filter(|v| v.release[0] >= 300);
    match (read(module), read(library)) {
        (Some(module), Some(library)) => {
            module.release.iter().zip(&library.release).any(|(a, b)| a != b)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Driver, Fact, Machine, Severity::*};

    fn drivers(mut machine: Machine, module: &str, library: &str, error: Option<&str>) -> Machine {
        let driver = machine.driver.get_or_insert_with(Driver::default);
        driver.kernel_module = Some(Fact::new(module.into(), "/sys/module/nvidia/version"));
        driver.user_library =
            Some(Fact::new(library.into(), format!("/usr/lib/libnvidia-ml.so.{library}")));
        driver.nvml_error = error.map(|error| Fact::new(error.into(), "NVML nvmlInit_v2"));
        if error.is_some() {
            machine.gpus.clear();
        }
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let error = Some("Driver/library version mismatch");
        vec![
            Case::new(
                "upgraded overnight",
                drivers(machines::a10(), "570.148.08", "570.195.03", error),
                vec![],
            )
            .finds(
                Error,
                Certain,
                &[
                    "kernel module 570.148.08",
                    "[/sys/module/nvidia/version]",
                    "[/usr/lib/libnvidia-ml.so.570.195.03]",
                    "Driver/library version mismatch [NVML nvmlInit_v2]",
                    "sudo reboot",
                    "rmmod nvidia_uvm",
                ],
            ),
            Case::new(
                "in a container, the fix is for the host",
                drivers(machines::in_container(machines::a10()), "570.148.08", "580.95.05", error),
                vec![],
            )
            .finds(Error, Certain, &["# on the host, not in this docker container:"]),
            Case::new(
                "a second copy while NVML answers",
                drivers(machines::a10(), "570.148.08", "580.95.05", None),
                vec![],
            )
            .finds(Warning, Likely, &["NVML answered", "ldconfig -p"]),
            Case::new(
                "only NVML's message",
                drivers(machines::a10(), "570.148.08", "1", error),
                vec![],
            )
            .finds(Error, Likely, &["NVML says:"]),
            Case::new("one version", machines::h200(), vec![]),
            Case::new(
                "a shortened version",
                drivers(machines::a10(), "570.148.08", "570.148", None),
                vec![],
            ),
            Case::new(
                "another NVML error",
                drivers(
                    machines::a10(),
                    "570.148.08",
                    "570.148.08",
                    Some("Insufficient Permissions"),
                ),
                vec![],
            ),
            Case::new("no driver", machines::x86(), vec![]),
        ]
    }
}
