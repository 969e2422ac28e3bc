use super::{Context, Need, Rule, Text};
use crate::gpu;
use facts::{Confidence, Finding, Gpu, Severity};

pub(super) const RULE: Rule = Rule {
    id: "visible-devices",
    title: "CUDA_VISIBLE_DEVICES hides the requested GPU",
    about: "\
CUDA numbers the GPUs in CUDA_VISIBLE_DEVICES from 0, and stops reading the list at the first invalid entry: an empty
value or -1 hides every GPU, and an index or UUID that does not exist hides itself and all entries after it. A program
that requests GPU 1 when only one GPU is visible fails in the same way.

It shows as one of
  RuntimeError: No CUDA GPUs are available
  RuntimeError: CUDA error: invalid device ordinal
  ValueError: invalid literal for int() with base 10: 'GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc'

Detected by reading the variable and comparing it with the GPUs that the driver lists.

Unset it, or list indices that nvidia-smi -L shows; then use GPU 0.",
    links: &[
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars",
        "https://github.com/vllm-project/vllm/issues/13815",
    ],
    texts: &[
        Text::new("invalid device ordinal", "RuntimeError: CUDA error: invalid device ordinal"),
        Text::new("invalid literal for int() with base 10: 'GPU-*", "ValueError: invalid literal for int() with base 10: 'GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc'"),
        Text::new("Invalid CUDA '* requested", "ValueError: Invalid CUDA 'device=1' requested. Use 'device=cpu' or pass valid CUDA device(s) if available, i.e. 'device=0' or 'device=0,1,2,3' for Multi-GPU."),
        Text::new("Attempting to deserialize object on CUDA device * but torch.cuda.device_count() is", "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1. Please use torch.load with map_location to map your storages to an existing device."),
        Text::new("No CUDA GPUs are available", "RuntimeError: No CUDA GPUs are available"),
        Text::new("no CUDA-capable device is detected", "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"),
        Text::new("FAILED_PRECONDITION: No visible GPU devices", "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: No visible GPU devices."),
        Text::new("request, valid devices are 0 -", "Invalid `--device 0` request, valid devices are 0 - -1."),
    ],
    remedy: |_| {
        vec![
            "echo \"[$CUDA_VISIBLE_DEVICES]\"; nvidia-smi -L".into(),
            "unset CUDA_VISIBLE_DEVICES".into(),
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
    let Some(variable) = &machine.access.visible_devices else { return Vec::new() };
    let gpus: Vec<&Gpu> = gpu::nvidia(machine).collect();
    let refused = machine.driver.as_ref().is_none_or(|driver| driver.nvml_error.is_some());
    if gpus.is_empty() || refused {
        return Vec::new();
    }
    let entries: Vec<&str> = variable.value.split(',').map(str::trim).collect();
    let partitions = Partitions {
        count: machine.access.mig_instances.as_ref().map(|count| count.value),
        uuids: machine.access.mig_uuids.as_ref().map(|uuids| uuids.value.as_slice()),
    };
    let Some(place) = entries.iter().position(|entry| !known(entry, &gpus, &partitions)) else {
        return Vec::new();
    };
    let wrong = entries[place];
    let (severity, title) = match (place, wrong) {
        (0, "" | "-1") => (Severity::Warning, "CUDA_VISIBLE_DEVICES hides every GPU".to_owned()),
        (0, _) => (
            Severity::Error,
            format!(
                "CUDA_VISIBLE_DEVICES begins with {wrong}, which does not exist: no GPU is visible"
            ),
        ),
        _ => (
            Severity::Warning,
            format!(
                "CUDA_VISIBLE_DEVICES names {wrong}, which does not exist: CUDA sees {place} of {} GPUs",
                gpus.len()
            ),
        ),
    };
    let mut draft = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(format!("CUDA_VISIBLE_DEVICES={}", variable.value), variable.source.clone());
    for gpu in &gpus {
        let what = format!("GPU {}: {}", gpu.index, gpu::describe(gpu));
        draft = draft.evidence(what, gpu.name.source.clone());
    }
    let mut all: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    // A GPU in MIG mode is usable only through its partitions, and a program gets one of them.
    if let Some(uuids) = machine.access.mig_uuids.as_ref().filter(|_| wrong.starts_with("MIG-")) {
        draft = draft.evidence(uuids.value.join(", "), uuids.source.clone());
        all = uuids.value.iter().take(1).cloned().collect();
    }
    vec![
        draft
            .cause("CUDA stops reading the list at the first invalid entry.")
            .fix([
                "unset CUDA_VISIBLE_DEVICES".to_owned(),
                format!("# or, with existing GPUs: export CUDA_VISIBLE_DEVICES={}", all.join(",")),
            ])
            .finish(),
    ]
}

/// The existing MIG partitions, as far as known.
struct Partitions<'a> {
    count: Option<u32>,
    uuids: Option<&'a [String]>,
}

/// Whether an entry is valid for CUDA: an existing index, or a prefix of a GPU's UUID. A partition's UUID is invalid if no
/// partition has it, or if it names a missing GPU (`MIG-GPU-<uuid>/<instance>/<instance>`, of drivers before 470).
fn known(entry: &str, gpus: &[&Gpu], partitions: &Partitions<'_>) -> bool {
    match entry.parse::<usize>() {
        Ok(number) => number < gpus.len(),
        Err(_) if entry.starts_with("MIG-") => {
            if let Some(uuids) = partitions.uuids {
                return uuids.iter().any(|uuid| uuid.starts_with(entry));
            }
            let of_gpu = entry.strip_prefix("MIG-").filter(|rest| rest.starts_with("GPU-"));
            let whole = of_gpu.map(|rest| rest.split('/').next().unwrap_or(rest));
            let named = |gpu: &&&Gpu| match (whole, &gpu.uuid) {
                (Some(whole), Some(uuid)) => uuid == whole,
                _ => true,
            };
            let could = |gpu: &Gpu| gpu.mig != Some(false);
            partitions.count != Some(0) && gpus.iter().filter(named).any(|gpu| could(gpu))
        }
        Err(_) => {
            let begins = |gpu: &&&Gpu| gpu.uuid.as_ref().is_none_or(|uuid| uuid.starts_with(entry));
            entry.starts_with("GPU-") && gpus.iter().filter(begins).count() >= 1
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let set = |value: &str| {
            let mut machine = machines::a10();
            machine.gpus[0].uuid = Some("GPU-52a3a85d-3c55".into());
            machine.access.visible_devices = Some(Fact::new(value.into(), "CUDA_VISIBLE_DEVICES"));
            machine
        };
        let mig = |on: Option<bool>, partitions: u32, value: &str| {
            let mut machine = set(value);
            machine.gpus[0].mig = on;
            machine.access.mig_instances =
                Some(Fact::new(partitions, "/proc/driver/nvidia/capabilities"));
            machine
        };
        let listed = |value: &str| {
            let mut machine = mig(Some(true), 2, value);
            let uuids = ["MIG-c6d4f1ef-42e4", "MIG-cba663e8-9bed"].map(str::to_owned);
            machine.access.mig_uuids = Some(Fact::new(uuids.into(), "nvidia-smi -L"));
            machine
        };
        let mut none = machines::x86();
        none.access.visible_devices = Some(Fact::new("7".into(), "CUDA_VISIBLE_DEVICES"));
        vec![
            Case::new("empty", set(""), vec![]).finds(
                Warning,
                Certain,
                &[
                    "hides every GPU",
                    "CUDA_VISIBLE_DEVICES= [CUDA_VISIBLE_DEVICES]",
                    "unset CUDA_VISIBLE_DEVICES",
                    "GPU 0: NVIDIA A10",
                ],
            ),
            Case::new("minus one", set("-1"), vec![]).finds(Warning, Certain, &["hides every GPU"]),
            Case::new("out of range", set("1"), vec![]).finds(
                Error,
                Certain,
                &["begins with 1", "DEVICES=0"],
            ),
            Case::new("a list cut short", set("0, 3"), vec![]).finds(
                Warning,
                Certain,
                &["CUDA sees 1 of 1"],
            ),
            Case::new("an unknown UUID", set("GPU-ffff"), vec![]).finds(
                Error,
                Certain,
                &["GPU-ffff"],
            ),
            Case::new("words", set("all"), vec![]).finds(Error, Certain, &["begins with all"]),
            Case::new("a prefix of its UUID", set("GPU-52a3"), vec![]),
            Case::new("its index", set("0"), vec![]),
            Case::new("a partition", set("MIG-377e0049"), vec![]),
            Case::new(
                "a partition of the GPU here",
                mig(Some(true), 2, "MIG-GPU-52a3a85d-3c55/1/0"),
                vec![],
            ),
            Case::new(
                "a partition, and no GPU is in MIG mode",
                mig(Some(false), 0, "MIG-377e0049"),
                vec![],
            )
            .finds(Error, Certain, &["begins with MIG-377e0049, which does not exist"]),
            Case::new("a partition, and none was made", mig(Some(true), 0, "MIG-377e0049"), vec![])
                .finds(Error, Certain, &["begins with MIG-377e0049, which does not exist"]),
            Case::new("a partition of another GPU", mig(Some(true), 2, "MIG-GPU-ffff/1/0"), vec![])
                .finds(Error, Certain, &["begins with MIG-GPU-ffff/1/0, which does not exist"]),
            Case::new("one of its partitions", listed("MIG-cba663e8-9bed"), vec![]),
            Case::new("no partition of this machine", listed("MIG-377e0049"), vec![]).finds(
                Error,
                Certain,
                &[
                    "begins with MIG-377e0049, which does not exist",
                    "MIG-c6d4f1ef-42e4, MIG-cba663e8-9bed [nvidia-smi -L]",
                    "export CUDA_VISIBLE_DEVICES=MIG-c6d4f1ef-42e4",
                ],
            ),
            Case::new("no GPU to hide", none, vec![]),
        ]
    }
}
