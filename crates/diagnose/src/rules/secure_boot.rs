use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "secure-boot",
    title: "Secure Boot keeps the NVIDIA module from loading",
    about: "\
With UEFI Secure Boot on, the kernel loads only modules whose signature it trusts. A module that DKMS built is signed
with this machine's key (MOK), which has to be enrolled once on the firmware's console at the next boot. If that screen
was missed, the module is installed but refused at every boot.

It shows as one of
  modprobe: ERROR: could not insert 'nvidia': Key was rejected by service
  modprobe: ERROR: could not insert 'nvidia': Required key not available

Detected by Secure Boot being on and the nvidia module installed for this kernel but not loaded.

Enrol the key and confirm it at the next boot, or install the distribution's signed module, or switch Secure Boot off in
the firmware.",
    links: &[
        "https://wiki.debian.org/SecureBoot",
        "https://github.com/secureblue/secureblue/issues/1043",
    ],
    texts: &[
        Text::new("could not insert 'nvidia': Key was rejected by service", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
        Text::new("could not insert 'nvidia_drm': Key was rejected by service", "modprobe: ERROR: could not insert 'nvidia_drm': Key was rejected by service"),
        Text::new("could not insert 'nvidia': Required key not available", "modprobe: ERROR: could not insert 'nvidia': Required key not available"),
        Text::new("nvidia.ko: Key was rejected by service", "insmod: ERROR: could not insert module ./kernel/nvidia.ko: Key was rejected by service"),
        Text::new("nvidia.ko: Required key not available", "insmod: ERROR: could not insert module /lib/modules/5.15.0-25-generic/kernel/drivers/video/nvidia.ko: Required key not available"),
    ],
    remedy: |seen| host::sign_module(seen.machine()),
    needs: &[Need::GpuOnBus],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::SecureBoot) {
        return Vec::new();
    }
    let machine = context.machine;
    let title = "the NVIDIA module is installed and not loaded, with Secure Boot on";
    let mut draft =
        access::evidence(RULE.finding(Severity::Error, Confidence::Likely, title), context)
            .fact("for this kernel", machine.access.module_file.as_ref());
    if let Some(secure) = &machine.access.secure_boot {
        draft = draft.evidence("Secure Boot is on", secure.source.clone());
    }
    vec![
        draft
            .cause("The kernel refuses a module that is signed with a key that is not enrolled in the firmware.")
            .fix(host::sign_module(machine))
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let machine = |on: bool, driver: Option<&str>| {
            let mut machine = machines::on_bus(machines::x86(), driver);
            machine.access.secure_boot = Some(Fact::new(on, "SecureBoot-8be4df61"));
            let file =
                Fact::new("updates/dkms/nvidia.ko.zst".into(), "/lib/modules/6.8.0/modules.dep");
            machine.access.module_file = Some(file);
            machine
        };
        vec![
            Case::new("a module that is not trusted", machine(true, None), vec![]).finds(
                Error,
                Likely,
                &[
                    "Secure Boot is on [SecureBoot",
                    "updates/dkms/nvidia.ko.zst [/lib/modules",
                    "update-secureboot-policy",
                ],
            ),
            Case::new("Secure Boot off", machine(false, None), vec![]),
            Case::new("loaded all the same", machines::h200(), vec![]),
        ]
    }
}
