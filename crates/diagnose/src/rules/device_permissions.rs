use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "device-permissions",
    title: "this user may not open the GPU's device files",
    about: "\
Every CUDA program opens /dev/nvidiactl, /dev/nvidia-uvm and the /dev/nvidiaN of its GPU. By default the driver creates
them readable and writable for every user; a module option or a udev rule can restrict them to a group (often video or
vglusers). On Jetson, /dev/nvmap and /dev/nvhost* belong to the group video. In a container, SELinux or a user namespace
without the group denies access too.

It shows as one of
  Failed to initialize NVML: Insufficient Permissions
  nvidia-container-cli: initialization error: nvml error: insufficient permissions

Detected by comparing owner, group and mode of the files with this process's user and groups.

Add the user to the group and log in again; in a rootless container keep the groups or disable SELinux labeling.",
    links: &[
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/210",
        "https://github.com/NVIDIA/nvidia-docker/issues/284",
    ],
    texts: &[
        Text::new("Failed to initialize NVML: Insufficient Permissions", "Failed to initialize NVML: Insufficient Permissions"),
        Text::new("nvml error: insufficient permissions", "nvidia-container-cli: initialization error: nvml error: insufficient permissions: unknown."),
        Text::new("NVMLError_NoPermission: Insufficient Permissions", "    raise NVMLError(ret)\nNVMLError_NoPermission: Insufficient Permissions"),
        Text::new("nvml: Insufficient Permissions", "nvidia-docker | 2017/01/06 20:03:02 Error: nvml: Insufficient Permissions"),
        Text::new("pynvml could not be initialized*Insufficient Permissions", "python.d ERROR: nv pynvml could not be initialized Insufficient Permissions"),
        Text::new("/dev/nvidia* Permission denied", "NVIDIA: could not open the device file /dev/nvidiactl (Permission denied)."),
    ],
    remedy: |seen| host::open_devices(seen.machine(), None),
    needs: &[Need::DeviceFiles],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::Permissions) {
        return Vec::new();
    }
    let machine = context.machine;
    let closed = access::closed(machine);
    let confidence = if closed.is_empty() { Confidence::Likely } else { Confidence::Certain };
    let title = match closed.first() {
        Some(node) => format!("this user may not open {}", node.path),
        None => "this user may not ask the NVIDIA driver: Insufficient Permissions".into(),
    };
    let mut draft = access::evidence(RULE.finding(Severity::Error, confidence, title), context);
    for node in &closed {
        let what = format!("{} has mode {:o} and group {}", node.path, node.mode, node.group);
        draft = draft.evidence(what, node.path.clone());
    }
    let group = closed.first().map(|node| node.group.as_str()).filter(|group| *group != "root");
    let fix = match (group, host::container(machine)) {
        // Only root has access: a module option of the driver set this.
        (None, None) if !closed.is_empty() => vec![
            "grep -r NVreg_DeviceFile /etc/modprobe.d /usr/lib/modprobe.d".into(),
            "# the driver's default mode:".into(),
            "sudo chmod 666 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*".into(),
        ],
        _ => host::open_devices(machine, group),
    };
    vec![draft.cause("CUDA opens these files with this process's user and groups; root on the host has no effect in a container.").fix(fix).finish()]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let refused = |machine| machines::refused(machine, "Insufficient Permissions");
        let mut root = machines::closed(machines::a10());
        root.access.nodes.iter_mut().for_each(|node| node.group = "root".into());
        vec![
            Case::new("files of a group", machines::closed(machines::a10()), vec![]).finds(
                Error,
                Certain,
                &[
                    "/dev/nvidia0 has mode 660 and group vglusers",
                    "sudo usermod --append --groups vglusers",
                ],
            ),
            Case::new("files of root", root, vec![]).finds(Error, Certain, &["NVreg_DeviceFile"]),
            Case::new("only NVML's message", refused(machines::a10()), vec![]).finds(
                Error,
                Likely,
                &["Insufficient Permissions", "ls -l /dev/nvidia*"],
            ),
            Case::new(
                "rootless Podman",
                refused(machines::within(machines::a10(), "podman")),
                vec![],
            )
            .finds(Error, Likely, &["keep-groups"]),
            Case::new("open files", machines::a10(), vec![]),
        ]
    }
}
