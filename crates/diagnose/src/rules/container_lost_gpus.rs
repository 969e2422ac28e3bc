use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "container-lost-gpus",
    title: "a running container lost its GPUs",
    about: "\
If systemd manages the cgroups of containers, reloading its units on the host (systemctl daemon-reload, a package
upgrade) rewrites the device rules of every container, and the rules that the container toolkit had added are lost: the
container works for hours, and then no program in it can open /dev/nvidia*. The host still sees its GPUs.

It shows as
  Failed to initialize NVML: Unknown Error

Detected by NVML returning this error inside a container.

Restart the container. To prevent it, name the device files to the runtime, use Docker's cgroupfs driver, or pass the
GPUs through CDI.",
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
            .cause("systemd rewrote the container's device rules, without those of the container toolkit.")
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
