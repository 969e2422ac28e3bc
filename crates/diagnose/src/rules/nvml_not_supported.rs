use super::{Observation, PastedError, Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "nvml-not-supported",
    title: "NVML does not report this GPU's memory, which is not a fault",
    about: "\
A GPU that shares the host's memory (GB10 in a DGX Spark, Jetson) has no dedicated memory that NVML could count, so NVML
answers Not Supported; nvidia-smi shows [N/A] or Not Supported in that column. Tools that treat this answer as a failure
stop or report 0 bytes.

It shows as
  pynvml.NVMLError_NotSupported: Not Supported
or as Memory-Usage: Not Supported in nvidia-smi's table.

This is not a fault: CUDA programs use the host's memory, and /proc/meminfo shows how much is free. Use MemAvailable as
the limit, and leave some of it to the system, since a GPU program can take all of it.",
    links: &[
        "https://docs.nvidia.com/dgx/dgx-spark/known-issues.html",
    ],
    texts: &[
        Text::new("NVMLError_NotSupported: Not Supported", "pynvml.NVMLError_NotSupported: Not Supported"),
        Text::new("NVIDIA GB10*Not Supported", "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   41C    P8              4W /  N/A  | Not Supported          |      0%      Default |"),
    ],
    role: super::Role::Notice,
    remedy: |_| vec!["grep -E 'MemTotal|MemAvailable' /proc/meminfo".into()],
    observe: Some(observe),
    ..Rule::BLANK
};

fn observe(seen: &PastedError) -> Option<Observation> {
    let gpu = crate::gpu::nvidia(seen.machine()).next()?;
    let memory = gpu.memory_total_bytes.as_ref();
    let shared = memory.is_some_and(|fact| fact.source.contains("meminfo"));
    let source = memory.map_or(gpu.name.source.clone(), |fact| fact.source.clone());
    Some(match shared {
        true => {
            Observation::new(true, format!("{} shares the host's memory", gpu.name.value), source)
        }
        false => Observation::new(
            false,
            format!("NVML reports the memory of the {}", gpu.name.value),
            source,
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::machines;

    #[test]
    fn gb10_confirms_the_message() {
        let text = "pynvml.NVMLError_NotSupported: Not Supported";
        assert_eq!(crate::explain(text, &machines::gb10(), &[])[0].confirmed_here, Some(true));
        assert_eq!(crate::explain(text, &machines::a10(), &[])[0].confirmed_here, Some(false));
        assert_eq!(crate::explain(text, &machines::x86(), &[])[0].confirmed_here, None);
    }
}
