use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "nouveau",
    title: "the nouveau driver is bound to the GPU",
    about: "\
nouveau, the Linux kernel's open driver, binds to NVIDIA GPUs at boot unless it is blacklisted. It does not support
CUDA, and NVIDIA's module cannot use a GPU that nouveau is bound to: the installer stops, or the module loads and finds
no device. Distributions' driver packages blacklist nouveau, which takes effect only after the initramfs is rebuilt.

It shows as one of
  ERROR: The Nouveau kernel driver is currently in use by your system.
  NVRM: The NVIDIA probe routine was not called for 1 device(s).
  NVRM: No NVIDIA graphics adapter probed!

Detected by the driver that the kernel has bound to the GPU's PCI device.

Blacklist nouveau, rebuild the initramfs, and reboot.",
    links: &[
        "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html",
        "https://github.com/microsoft/pai/issues/2962",
    ],
    texts: &[
        Text::new("The Nouveau kernel driver is currently in use by your system", " ERROR: The Nouveau kernel driver is currently in use by your system.  This
         driver is incompatible with the NVIDIA driver, and must be disabled
         before proceeding."),
        Text::new("NVRM: The NVIDIA probe routine was not called for", "[  188.976351] NVRM: The NVIDIA probe routine was not called for 1 device(s).
[  188.977053] NVRM: This can occur when a driver such as: 
NVRM: nouveau, rivafb, nvidiafb or rivatv 
NVRM: was loaded and obtained ownership of the NVIDIA device(s)."),
        Text::new("NVRM: No NVIDIA graphics adapter probed", "[188497.595099] NVRM: No NVIDIA graphics adapter probed!"),
    ],
    remedy: |seen| host::blacklist_nouveau(seen.machine()),
    needs: &[Need::GpuOnBus],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::Nouveau) {
        return Vec::new();
    }
    let title = "nouveau holds the NVIDIA GPU, and CUDA needs NVIDIA's own driver";
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let machine = context.machine;
    let mut fix = host::blacklist_nouveau(machine);
    if machine.access.module_file.is_none() {
        // The driver's package also blacklists nouveau.
        fix = host::update_driver(machine, 580);
    }
    vec![
        access::evidence(draft, context)
            .cause("nouveau was bound to the GPU at boot; it does not support CUDA, and NVIDIA's module cannot use the GPU.")
            .fix(fix)
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = || vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let mut installed = machines::on_bus(machines::x86(), Some("nouveau"));
        let file = Fact::new("updates/dkms/nvidia.ko".into(), "/lib/modules/6.8.0/modules.dep");
        installed.access.module_file = Some(file);
        vec![
            Case::new(
                "no driver installed",
                machines::on_bus(machines::x86(), Some("nouveau")),
                torch(),
            )
            .finds(
                Error,
                Certain,
                &[
                    "at 0000:01:00.0 with driver nouveau [/sys/bus/pci/devices/0000:01:00.0]",
                    "nvidia:580",
                ],
            ),
            Case::new("a driver that did not get it", installed, torch()).finds(
                Error,
                Certain,
                &["blacklist-nouveau.conf", "update-initramfs"],
            ),
            Case::new("a desktop", machines::on_bus(machines::x86(), Some("nouveau")), vec![]),
            Case::new("NVIDIA's own", machines::on_bus(machines::a10(), Some("nvidia")), torch()),
        ]
    }
}
