use facts::{Gpu, GpuVendor, Machine};
pub(crate) use knowledge::Sm;
use knowledge::dotted;

/// The machine's NVIDIA GPUs.
pub(crate) fn nvidia(machine: &Machine) -> impl Iterator<Item = &Gpu> {
    machine.gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia)
}

/// The NVIDIA GPUs whose compute capability is known, one per product.
pub(crate) fn capabilities(machine: &Machine) -> Vec<(&Gpu, Sm)> {
    let mut seen = Vec::new();
    for gpu in nvidia(machine) {
        if let Some(capability) = &gpu.compute_capability {
            let same = |(other, sm): &(&Gpu, Sm)| {
                other.name.value == gpu.name.value && *sm == capability.value
            };
            if !seen.iter().any(same) {
                seen.push((gpu, capability.value));
            }
        }
    }
    seen
}

/// A GPU as text: `NVIDIA H200 (compute capability 9.0)`.
pub(crate) fn describe(gpu: &Gpu) -> String {
    match &gpu.compute_capability {
        Some(fact) => format!("{} (compute capability {})", gpu.name.value, dotted(fact.value)),
        None => gpu.name.value.clone(),
    }
}

/// Whether every NVIDIA GPU is a consumer card, on which NVIDIA's forward-compatibility libraries do not run.
pub(crate) fn all_geforce(machine: &Machine) -> bool {
    let mut any = false;
    nvidia(machine).all(|gpu| {
        any = true;
        gpu.name.value.contains("GeForce")
    }) && any
}

/// Names of architectures and products before Turing, which CUDA 13 does not support.
const BEFORE_TURING: [&str; 16] = [
    "Maxwell",
    "Pascal",
    "Volta",
    "sm_50",
    "sm_52",
    "sm_60",
    "sm_61",
    "sm_70",
    "GTX 9",
    "GTX 10",
    "GTX TITAN X",
    "TITAN V",
    "V100",
    "P100",
    "Quadro M",
    "Quadro P",
];

/// Whether the text names a GPU before Turing, or every GPU of this machine is one.
pub(crate) fn is_before_turing(machine: &Machine, text: &str) -> bool {
    let known = capabilities(machine);
    let here = !known.is_empty() && known.iter().all(|(_, sm)| *sm < (7, 5));
    here || BEFORE_TURING.iter().any(|name| text.contains(name))
}
