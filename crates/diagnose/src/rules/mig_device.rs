use super::{Also, Context, Need, Rule, Text};
use crate::gpu;
use crate::torch_build::live_dist;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "mig-device",
    title: "a program that does not support a MIG partition",
    about: "\
A GPU in MIG mode is split into partitions that programs name by UUID (MIG-...) instead of by index. Programs that parse
CUDA_VISIBLE_DEVICES as numbers fail on it, and inside a container NVML may not report the parent GPU of the partition:
PyTorch's allocator then fails an assertion, most often when memory runs out.

It shows as one of
  ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'
  RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1154

Detected by CUDA_VISIBLE_DEVICES naming a partition, or by MIG mode without any partition.

Pass only the partition to such a program with the container's flag and leave CUDA_VISIBLE_DEVICES unset; stop PyTorch's
allocator from querying NVML, and use a smaller batch or model.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/41848",
        "https://github.com/pytorch/pytorch/issues/112377",
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html",
    ],
    texts: &[
        Text::new("invalid literal for int() with base 10: 'MIG-*", "ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'"),
        Text::new("NVML_SUCCESS == * INTERNAL ASSERT FAILED", "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1154, please report a bug to PyTorch."),
    ],
    also: &[
        Also {
            cause: "GPU memory ran out, and NVML did not answer while PyTorch wrote the message: a container without the utility capability, a Jetson, a faulty driver.",
            check: &["nvidia-smi -L; firstlight ps"],
        },
    ],
    remedy: |_| {
        vec![
            "nvidia-smi -L  # the partitions and their UUIDs".into(),
            "# one partition for the whole container, and no CUDA_VISIBLE_DEVICES inside:".into(),
            "docker run --gpus '\"device=0:0\"' ...".into(),
            "export PYTORCH_NVML_BASED_CUDA_CHECK=0".into(),
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False".into(),
        ]
    },
    needs: &[Need::Gpu],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let mut found = Vec::new();
    let on = gpu::nvidia(machine).find(|gpu| gpu.mig == Some(true));
    let none = machine.access.mig_instances.as_ref().filter(|count| count.value == 0);
    if let (Some(gpu), Some(none)) = (on, none) {
        found.push(
            RULE.finding(
                Severity::Error,
                Confidence::Certain,
                "MIG mode is on and no partition exists",
            )
            .evidence(format!("{} is in MIG mode", gpu::describe(gpu)), gpu.name.source.clone())
            .evidence("0 GPU instances", none.source.clone())
            .cause("In MIG mode programs run only on partitions; without one CUDA finds no device.")
            .fix([
                "sudo nvidia-smi mig -lgip  # the available sizes",
                "sudo nvidia-smi mig -cgi 0 -C  # one partition of the whole GPU",
                "# or without partitions:",
                "sudo nvidia-smi -mig 0",
            ])
            .finish(),
        );
    }
    let named = machine.access.visible_devices.as_ref().filter(|v| v.value.starts_with("MIG-"));
    let vllm = context.envs.iter().find_map(|env| Some((env, live_dist(env, "vllm")?)));
    if let (Some(variable), Some((env, vllm))) = (named, vllm) {
        let title = format!(
            "vllm {} parses numbers from CUDA_VISIBLE_DEVICES, which names a partition",
            vllm.version
        );
        found.push(
            RULE.finding(Severity::Warning, Confidence::Likely, title)
                .evidence(
                    format!("CUDA_VISIBLE_DEVICES={}", variable.value),
                    variable.source.clone(),
                )
                .evidence(format!("vllm {}", vllm.version), env.root.clone())
                .cause("It parses each entry as a number, but a partition is named by its UUID.")
                .fix([
                    "# pass the partition to the container, and leave the variable unset inside:",
                    "docker run --gpus '\"device=0:0\"' ...",
                    "unset CUDA_VISIBLE_DEVICES",
                ])
                .finish(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let mig = |instances: u32| {
            let mut machine = machines::h200();
            machine.gpus[0].mig = Some(true);
            let source = "/proc/driver/nvidia/capabilities";
            machine.access.mig_instances = Some(Fact::new(instances, source));
            machine
        };
        let named = |mut machine: Machine| {
            let uuid = "MIG-377e0049-554c-540b-93c6-d0976f8426cb";
            machine.access.visible_devices = Some(Fact::new(uuid.into(), "CUDA_VISIBLE_DEVICES"));
            machine
        };
        let vllm = || vec![env("/v").dist("vllm", "0.20.1").build()];
        vec![
            Case::new("no partition", mig(0), vec![]).finds(
                Error,
                Certain,
                &[
                    "NVIDIA H200",
                    "0 GPU instances [/proc/driver/nvidia/capabilities]",
                    "nvidia-smi mig -cgi",
                ],
            ),
            Case::new("a partition for vLLM", named(mig(2)), vllm()).finds(
                Warning,
                Likely,
                &["vllm 0.20.1", "MIG-377e0049"],
            ),
            Case::new("partitions", mig(7), vllm()),
            Case::new("a partition by name", named(mig(2)), vec![]),
            Case::new("no MIG", machines::h200(), vllm()),
        ]
    }
}
