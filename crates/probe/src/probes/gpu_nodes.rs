//! GPUs from the kernel module's files: only names, but available even if NVML does not start.

use crate::Source;
use facts::{Fact, Gpu, GpuVendor, Machine};

const FOLDER: &str = "/proc/driver/nvidia/gpus";
const BUS: &str = "/sys/bus/pci/devices";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    // NVML's list is better: it has memory and capability, and only the GPUs that this container may use.
    if !machine.gpus.is_empty() {
        return;
    }
    let silent = machine.driver.as_ref().is_some_and(|driver| driver.no_answer.is_some());
    for (index, bus) in (0..).zip(source.list(FOLDER)) {
        let file = format!("{FOLDER}/{bus}/information");
        // The module generates this file on read, with locks that a broken driver holds: reading it would hang.
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
            persistence: None,
            health: facts::GpuHealth::default(),
        });
    }
}

/// Names of the NVIDIA GPUs in this machine, from files only: no driver is queried, so the names are available without
/// a working one.
pub fn names(source: &Source) -> Vec<Fact<String>> {
    let known = source.list(FOLDER);
    if known.is_empty() {
        return on_the_bus(source);
    }
    let named = known.into_iter().map(|bus| {
        let file = format!("{FOLDER}/{bus}/information");
        let model = source.text(&file).and_then(|text| parse_information(&text).model);
        model.map_or_else(|| unnamed(source, &bus), |model| Fact::new(model, file))
    });
    named.collect()
}

/// NVIDIA's display and 3D controllers on the PCI bus, which lists them without a driver.
fn on_the_bus(source: &Source) -> Vec<Fact<String>> {
    let word = |bus: &str, file| source.word(format!("{BUS}/{bus}/{file}")).unwrap_or_default();
    let is_gpu = |bus: &String| {
        let class = word(bus, "class");
        word(bus, "vendor") == "0x10de"
            && (class.starts_with("0x0300") || class.starts_with("0x0302"))
    };
    source.list(BUS).into_iter().filter(is_gpu).map(|bus| unnamed(source, &bus)).collect()
}

/// A GPU by its PCI IDs, which the system has without a driver.
fn unnamed(source: &Source, bus: &str) -> Fact<String> {
    let file = format!("{BUS}/{}/device", bus.to_ascii_lowercase());
    match source.word(&file) {
        Some(device) => Fact::new(
            format!("NVIDIA GPU (PCI device 10de:{})", device.trim_start_matches("0x")),
            file,
        ),
        None => Fact::new("NVIDIA GPU without a name".to_string(), format!("{FOLDER}/{bus}")),
    }
}

/// The content of a GPU's `information` file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuInformation {
    pub(crate) model: Option<String>,
    pub(crate) uuid: Option<String>,
}

pub(crate) fn parse_information(text: &str) -> GpuInformation {
    let value = |key: &str| {
        let value =
            text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
        let value = value.trim();
        // The module writes question marks for a UUID that it has not read yet.
        (!value.is_empty() && !value.contains('?')).then(|| value.to_string())
    };
    GpuInformation { model: value("Model"), uuid: value("GPU UUID") }
}

#[cfg(test)]
mod tests {
    use super::{GpuInformation, names, parse_information};
    use crate::Source;

    #[test]
    fn gpus_have_names_with_and_without_a_driver() {
        let check = |files: &[(&str, &str)], expect: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("root")).unwrap();
            for (path, text) in files {
                let path = folder.path().join("root").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let found = names(&Source::recorded(folder.path()).unwrap());
            let found: Vec<&str> = found.iter().map(|name| &*name.value).collect();
            assert_eq!(found, expect);
        };
        let pci = [
            ("sys/bus/pci/devices/0000:00:06.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:00:06.0/class", "0x030200\n"),
            ("sys/bus/pci/devices/0000:00:06.0/device", "0x2335\n"),
            // Its audio device, and another vendor's display.
            ("sys/bus/pci/devices/0000:00:06.1/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:00:06.1/class", "0x040300\n"),
            ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
            ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
        ];
        check(&pci, &["NVIDIA GPU (PCI device 10de:2335)"]);
        let module =
            [("proc/driver/nvidia/gpus/0000:00:06.0/information", "Model: \t NVIDIA H200\n")];
        check(&[&pci[..], &module[..]].concat(), &["NVIDIA H200"]);
        check(&[], &[]);
    }

    #[test]
    fn model_and_uuid() {
        let text = "Model: \t\t NVIDIA A10\nIRQ:   \t\t 62\nGPU UUID: \t GPU-????????-????-????-????-????????????\nVideo BIOS: \t 94.02\n";
        let expect = GpuInformation { model: Some("NVIDIA A10".to_string()), uuid: None };
        assert_eq!(parse_information(text), expect);
        assert_eq!(parse_information("Model\nGPU UUID: GPU-1\n").uuid.as_deref(), Some("GPU-1"));
        assert_eq!(parse_information(""), GpuInformation::default());
    }
}
