//! Apple GPUs, from macOS's system_profiler.

use crate::Source;
use crate::source::Command;
use facts::{Fact, Gpu, GpuVendor, Machine, Platform};
use std::time::Duration;

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if !matches!(machine.platform, Platform::MacosAarch64 | Platform::MacosX86_64) {
        return;
    }
    const FROM: &str = "system_profiler SPDisplaysDataType";
    let command = Command {
        record: "system_profiler-displays",
        program: "system_profiler",
        args: &["SPDisplaysDataType", "-detailLevel", "mini"],
        limit: Duration::from_secs(10),
    };
    let displays = match source.run(&command) {
        Ok(text) => parse_displays(&text),
        Err(error) => {
            machine.notes.push(format!("{FROM} {error}: the GPU is unknown"));
            return;
        }
    };
    for display in displays {
        if !display.is_apple() {
            machine
                .notes
                .push(format!("GPU `{}` is not Apple's and is not used ({FROM})", display.model));
            continue;
        }
        if display.metal.is_none() {
            machine.notes.push(format!(
                "GPU `{}` reports no Metal support and is not used ({FROM})",
                display.model
            ));
            continue;
        }
        let index = u32::try_from(machine.gpus.len()).unwrap_or(u32::MAX);
        let cores = display.cores.map(|cores| format!(", {cores}-core GPU")).unwrap_or_default();
        machine.gpus.push(Gpu {
            index,
            vendor: GpuVendor::Apple,
            name: Fact::new(format!("{}{cores}", display.model), FROM),
            uuid: None,
            compute_capability: None,
            memory_total_bytes: machine.memory.total_bytes.as_ref().map(|total| {
                Fact::new(total.value, format!("{} (shared with the host)", total.source))
            }),
            memory_used_bytes: None,
            pci_bus: None,
            mig: None,
            persistence: None,
            health: facts::GpuHealth::default(),
        });
    }
}

/// One GPU of system_profiler's list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Display {
    pub(crate) model: String,
    pub(crate) vendor: String,
    pub(crate) cores: Option<u32>,
    pub(crate) metal: Option<String>,
}

impl Display {
    fn is_apple(&self) -> bool {
        self.vendor.starts_with("Apple")
            || (self.vendor.is_empty() && self.model.starts_with("Apple"))
    }
}

/// Each `Chipset Model:` line starts a GPU; monitors are listed below it.
pub(crate) fn parse_displays(text: &str) -> Vec<Display> {
    let mut displays: Vec<Display> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "Chipset Model" {
            displays.push(Display { model: value.to_string(), ..Display::default() });
            continue;
        }
        let Some(display) = displays.last_mut() else { continue };
        match key {
            "Vendor" => display.vendor = value.to_string(),
            "Total Number of Cores" => display.cores = value.parse().ok(),
            // Until macOS 12 the line was `Metal Family: Supported, Metal GPUFamily Apple 7`.
            "Metal Support" | "Metal Family"
                if !value.is_empty() && !value.contains("Unsupported") =>
            {
                display.metal = Some(value.to_string());
            }
            _ => {}
        }
    }
    displays
}

#[cfg(test)]
mod tests {
    use super::{Display, parse_displays};

    #[test]
    fn two_gpus_of_an_intel_mac() {
        let text = "Graphics/Displays:\n\n    Intel UHD Graphics 630:\n\n      Chipset Model: Intel UHD Graphics 630\n      Vendor: Intel\n      Metal Support: Metal 3\n\n    AMD Radeon Pro 5500M:\n\n      Chipset Model: AMD Radeon Pro 5500M\n      Vendor: AMD (0x1002)\n      Metal Family: Unsupported\n      Displays:\n        Color LCD:\n          Display Type: Built-In Retina LCD\n";
        let display = |model: &str, vendor: &str, metal: Option<&str>| Display {
            model: model.to_string(),
            vendor: vendor.to_string(),
            cores: None,
            metal: metal.map(str::to_string),
        };
        let displays = parse_displays(text);
        assert_eq!(
            displays,
            [
                display("Intel UHD Graphics 630", "Intel", Some("Metal 3")),
                display("AMD Radeon Pro 5500M", "AMD (0x1002)", None),
            ]
        );
        assert!(displays.iter().all(|display| !display.is_apple()));
        assert_eq!(parse_displays("Graphics/Displays:\n"), []);
    }
}
