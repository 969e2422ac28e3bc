//! GPUs by the kernel module's own files: names only, but they are there even when NVML refuses to start.

use crate::Source;
use facts::{Fact, Gpu, GpuVendor, Machine};

const FOLDER: &str = "/proc/driver/nvidia/gpus";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    // NVML's list is better: it has memory and capability, and only the GPUs that this container may use.
    if !machine.gpus.is_empty() {
        return;
    }
    let silent = machine.driver.as_ref().is_some_and(|driver| driver.no_answer.is_some());
    for (index, bus) in (0..).zip(source.list(FOLDER)) {
        let file = format!("{FOLDER}/{bus}/information");
        // The module writes this file as it is read, with the locks a driver in trouble holds: reading it would hang.
        let information = if silent { None } else { source.text(&file) };
        let information = information.map(|text| parse_information(&text)).unwrap_or_default();
        machine.gpus.push(Gpu {
            index,
            vendor: GpuVendor::Nvidia,
            name: match information.model {
                Some(model) => Fact::new(model, file),
                None => unnamed(source, &bus),
            },
            uuid: information.uuid,
            compute_capability: None,
            memory_total_bytes: None,
            memory_used_bytes: None,
            pci_bus: Some(bus),
            mig: None,
        });
    }
}

/// A GPU by the numbers its board carries, which the system keeps apart from the driver.
fn unnamed(source: &Source, bus: &str) -> Fact<String> {
    let file = format!("/sys/bus/pci/devices/{}/device", bus.to_ascii_lowercase());
    match source.word(&file) {
        Some(device) => Fact::new(
            format!("NVIDIA GPU (PCI device 10de:{})", device.trim_start_matches("0x")),
            file,
        ),
        None => Fact::new("NVIDIA GPU without a name".to_string(), format!("{FOLDER}/{bus}")),
    }
}

/// What a GPU's `information` file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Information {
    pub(crate) model: Option<String>,
    pub(crate) uuid: Option<String>,
}

pub(crate) fn parse_information(text: &str) -> Information {
    let value = |key: &str| {
        let value =
            text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
        let value = value.trim();
        // The module writes question marks for a UUID it has not read yet.
        (!value.is_empty() && !value.contains('?')).then(|| value.to_string())
    };
    Information { model: value("Model"), uuid: value("GPU UUID") }
}

#[cfg(test)]
mod tests {
    use super::{Information, parse_information};

    #[test]
    fn model_and_uuid() {
        let text = "Model: \t\t NVIDIA A10\nIRQ:   \t\t 62\nGPU UUID: \t GPU-????????-????-????-????-????????????\nVideo BIOS: \t 94.02\n";
        let expect = Information { model: Some("NVIDIA A10".to_string()), uuid: None };
        assert_eq!(parse_information(text), expect);
        assert_eq!(parse_information("Model\nGPU UUID: GPU-1\n").uuid.as_deref(), Some("GPU-1"));
        assert_eq!(parse_information(""), Information::default());
    }
}
