use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "container-without-gpus",
    title: "the container was not given the GPUs",
    about: "\
A container has the GPUs only when its runtime passes them in: device files, driver libraries and nvidia-smi all come
from the host. Each runtime does it differently, and each needs NVIDIA's container toolkit on the host: Docker a
registered runtime, Podman a CDI file, Kubernetes the device plugin, Apptainer the flag --nv.

It shows as one of
  docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]
  docker: Error response from daemon: unknown or invalid runtime name: nvidia
  Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all
  0/1 nodes are available: 1 Insufficient nvidia.com/gpu
  WARNING: The NVIDIA Driver was not detected. GPU functionality will not be available.

Restart the container with the flag of its runtime; a GPU cannot be added to a running container.",
    links: &[
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
        "https://github.com/NVIDIA/nvidia-docker/issues/1034",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/146",
    ],
    texts: &[
        Text::new("could not select device driver '*' with capabilities: [[gpu]]", "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]."),
        Text::new("unknown or invalid runtime name: nvidia", "docker: Error response from daemon: unknown or invalid runtime name: nvidia."),
        Text::new("Unknown runtime specified nvidia", "docker: Error response from daemon: Unknown runtime specified nvidia."),
        Text::new("unresolvable CDI devices nvidia.com/gpu*", "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"),
        Text::new("stat nvidia.com/gpu=*no such file or directory", "Error: stat nvidia.com/gpu=all: no such file or directory"),
        Text::new("Insufficient nvidia.com/gpu", "  Warning  FailedScheduling  40s  default-scheduler  0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."),
        Text::new("The NVIDIA Driver was not detected", "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.
   Use the NVIDIA Container Toolkit to start this container with GPU support; see
   https://docs.nvidia.com/datacenter/cloud-native/ ."),
        Text::new("Could not find any nv files on this host", "INFO:    Could not find any nv files on this host!"),
    ],
    remedy: |seen| host::pass_gpus(seen.machine(), host::runtime_in(seen.text)),
    needs: &[Need::Container],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::NotPassed) {
        return Vec::new();
    }
    let machine = context.machine;
    let name = host::container(machine).unwrap_or("container");
    // A container shares the host's kernel: a loaded module or a GPU on the bus is the host's.
    let sure = access::loaded(machine) || !access::gpus_on_bus(machine).is_empty();
    let confidence = if sure { Confidence::Certain } else { Confidence::Likely };
    let title = match sure {
        true => format!("the host has an NVIDIA GPU, and this {name} container was not given it"),
        false => format!("this {name} container has no NVIDIA GPU"),
    };
    let draft = access::evidence(RULE.finding(Severity::Error, confidence, title), context);
    let nodes = match machine.access.nodes.len() {
        0 => "no /dev/nvidia*".to_owned(),
        count => format!("{count} device files of the driver"),
    };
    let driver = machine.driver.as_ref();
    vec![
        draft
            .evidence(nodes, "/dev")
            .fact("the host's kernel module", driver.and_then(|driver| driver.kernel_module.as_ref()))
            .cause("Only the container runtime passes device files and the driver's libraries into a container.")
            .fix(host::pass_gpus(machine, None))
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = || vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let on =
            |kind: &str| machines::within(machines::on_bus(machines::x86(), Some("nvidia")), kind);
        vec![
            Case::new("Docker", on("docker"), torch()).finds(
                Error,
                Certain,
                &[
                    "the host has an NVIDIA GPU",
                    "docker run --gpus all",
                    "no /dev/nvidia* [/dev]",
                    "2.9.1+cu128",
                ],
            ),
            Case::new("Podman", on("podman"), torch())
                .finds(Error, Certain, &["podman run --device nvidia.com/gpu=all"])
                .without(&["docker"]),
            Case::new("Kubernetes", on("kubernetes"), torch())
                .finds(Error, Certain, &["limits: {nvidia.com/gpu: 1}"])
                .without(&["docker"]),
            Case::new("Apptainer", on("apptainer"), torch())
                .finds(Error, Certain, &["apptainer exec --nv"])
                .without(&["docker"]),
            Case::new(
                "an image that includes NVML",
                machines::refused(machines::in_container(machines::x86()), "Driver Not Loaded"),
                torch(),
            )
            .finds(
                Error,
                Likely,
                &["NVML says: Driver Not Loaded", "docker run --gpus all"],
            ),
            Case::new("a host without a GPU", machines::in_container(machines::x86()), torch()),
            Case::new("no torch with CUDA", on("docker"), vec![]),
            Case::new("no container", machines::on_bus(machines::x86(), None), torch()),
        ]
    }
}
