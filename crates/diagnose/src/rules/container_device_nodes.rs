use super::{Context, Need, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "container-device-nodes",
    title: "a container has some of the driver's device files and lacks others",
    about: "\
CUDA opens three kinds of device files: /dev/nvidiactl, one /dev/nvidiaN for each GPU, and /dev/nvidia-uvm. A
container started with only the first two (--device) lists its GPUs in nvidia-smi, but CUDA fails because nvidia-uvm
is missing. On the host the file is created when a program first needs it; a container cannot create it.

It shows as one of
  RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment
  CUDA error 999: unknown error
while nvidia-smi works.

Detected by the device files inside the container.

Load the module on the host (nvidia-modprobe -u -c=0), and pass the GPUs with the container toolkit, or name every
device file.",
    links: &[
        "https://github.com/NVIDIA/nvidia-docker/issues/145",
        "https://github.com/cBio/cbio-cluster/issues/389",
    ],
    texts: &[Text::new("error gathering device information while adding custom device '/dev/nvidia", "docker: Error response from daemon: error gathering device information while adding custom device \"/dev/nvidia-uvm\": no such file or directory.")],
    remedy: |_| commands(),
    needs: &[Need::Container, Need::DeviceFiles],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands() -> Vec<String> {
    [
        "# on the host:",
        "sudo nvidia-modprobe -u -c=0  # makes /dev/nvidia-uvm",
        "docker run --gpus all ...  # or --device for each of /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia0",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(name) = host::container(machine).filter(|name| *name != "wsl") else {
        return Vec::new();
    };
    let nodes = &machine.access.nodes;
    let has = |path: &str| nodes.iter().any(|node| node.path == path);
    // Without nvidiactl the container has no GPU at all (`container-without-gpus`); a Jetson has other device files.
    if !has("/dev/nvidiactl") || has("/dev/nvidia-uvm") || gpu::nvidia(machine).next().is_none() {
        return Vec::new();
    }
    let listed: Vec<&str> = nodes.iter().map(|node| node.path.as_str()).collect();
    vec![
        RULE.finding(
            Severity::Error,
            Confidence::Likely,
            format!(
                "this {name} container lacks /dev/nvidia-uvm, without which CUDA does not start"
            ),
        )
        .evidence(format!("device files: {}", listed.join(", ")), "/dev")
        .cause(
            "The container was started with some of the driver's device files, without nvidia-uvm.",
        )
        .fix(commands())
        .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, DeviceNode, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let with = |mut machine: Machine, paths: &[&str]| {
            let node = |path: &&str| DeviceNode {
                path: (*path).to_owned(),
                mode: 0o666,
                group: "root".into(),
                opens: true,
            };
            machine.access.nodes = paths.iter().map(node).collect();
            machine
        };
        let some = ["/dev/nvidiactl", "/dev/nvidia0"];
        let all = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"];
        vec![
            Case::new(
                "no nvidia-uvm",
                with(machines::in_container(machines::a10()), &some),
                Vec::new(),
            )
            .finds(
                Error,
                Likely,
                &[
                    "lacks /dev/nvidia-uvm",
                    "/dev/nvidiactl, /dev/nvidia0 [/dev]",
                    "nvidia-modprobe",
                ],
            ),
            Case::new(
                "every file",
                with(machines::in_container(machines::a10()), &all),
                Vec::new(),
            ),
            Case::new("a host", with(machines::a10(), &some), Vec::new()),
            Case::new("no files at all", machines::in_container(machines::a10()), Vec::new()),
        ]
    }
}
