use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "container-lost-gpus",
    title: "a running container lost its GPUs",
    about: "\
Where systemd manages the control groups of containers, reloading its units on the host (systemctl daemon-reload, a
package upgrade) writes the device rules of every container anew, and those that the container toolkit had added are
lost: the container worked for hours and then no program in it may open /dev/nvidia*. The host still sees its GPUs.

It shows as
  Failed to initialize NVML: Unknown Error

Seen by NVML giving these words inside a container.

Start the container again. To keep it from coming back, name the device files to the runtime, let Docker manage control
groups itself, or pass the GPUs in by CDI.",
    links: &[
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
    ],
    texts: &[Text::new("Failed to initialize NVML: Unknown Error", "Failed to initialize NVML: Unknown Error")],
    remedy: |seen| host::keep_gpus(seen.machine()),
    needs: &[Need::Container],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::LostGpus) {
        return Vec::new();
    }
    let title = "this container may not open its GPUs any more: NVML says Unknown Error";
    let draft = RULE.finding(Severity::Error, Confidence::Likely, title);
    vec![
        access::evidence(draft, context)
            .cause("systemd wrote the container's device rules anew, without those of the container toolkit.")
            .fix(host::keep_gpus(context.machine))
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let lost = |kind: &str| {
            machines::refused(machines::within(machines::a10(), kind), "Unknown Error")
        };
        vec![
            Case::new("Docker", lost("docker"), vec![]).finds(
                Error,
                Likely,
                &["NVML says: Unknown Error", "docker restart", "--device /dev/nvidiactl"],
            ),
            Case::new("Podman", lost("podman"), vec![])
                .finds(Error, Likely, &["podman restart"])
                .without(&["docker"]),
            Case::new("Kubernetes", lost("kubernetes"), vec![]).finds(
                Error,
                Likely,
                &["kubectl delete pod"],
            ),
            Case::new("a host", machines::refused(machines::a10(), "Unknown Error"), vec![]),
            Case::new("GPUs that answer", machines::in_container(machines::a10()), vec![]),
        ]
    }
}
