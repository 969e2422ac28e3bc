//! Lines of NVIDIA's kernel driver that have no Xid number.

use super::{Entity, Form, form};
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("requires use of the NVIDIA open kernel modules", open_modules),
        form("RmInitAdapter failed! ({code})", adapter),
        form("RmInitAdapter failed", adapter),
        form("rm_init_adapter failed", adapter),
        form("This PCI I/O region assigned to your NVIDIA device is invalid", bar),
        form("NVRM: BAR{number} is 0M", bar),
        form("failed to load firmware image", firmware),
        form("Direct firmware load for nvidia/{file}", firmware),
        form("GSP firmware image", firmware),
        form("Failed to bootstrap GSP", firmware),
        form("The NVIDIA GPU * is not supported by the * driver release", unsupported),
        form("None of the NVIDIA devices were initialized", adapter),
        form("^No devices were found", no_devices),
    ]
}

fn rule(id: &'static str, name: &str) -> Option<Entity> {
    Some(Entity::new("driver-log", name).rule(id).rank(3))
}

fn open_modules(_: &PastedError, _: &'static str) -> Option<Entity> {
    rule("open-kernel-modules", "open kernel modules").map(|entity| entity.rank(5))
}

fn adapter(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let code = seen.word("code").unwrap_or("");
    rule("gpu-init-failed", format!("RmInitAdapter {code}").trim_end())
}

fn bar(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let gpu = seen.text.contains("NVRM") || seen.text.to_ascii_lowercase().contains("nvidia");
    gpu.then(|| rule("gpu-bar", "PCI BAR").map(|entity| entity.rank(4)))?
}

fn firmware(seen: &PastedError, _: &'static str) -> Option<Entity> {
    // The driver also requests log buffers that it does not ship, and continues without them. A terminal may have
    // broken the name.
    let squeezed: String = seen.text.split_whitespace().collect();
    let loads = squeezed.matches("firmwareloadfornvidia/").count();
    if loads > 0 && loads == squeezed.matches("gsp_log_").count() {
        return None;
    }
    let gsp =
        seen.text.contains("GSP") || seen.text.contains("gsp_") || seen.text.contains("nvidia/");
    gsp.then(|| rule("gsp-firmware", "GSP firmware").map(|entity| entity.rank(4)))?
}

fn unsupported(_: &PastedError, _: &'static str) -> Option<Entity> {
    rule("gpu-init-failed", "GPU not supported by this driver")
}

/// nvidia-smi's message if the driver runs and initialized no GPU.
fn no_devices(_: &PastedError, _: &'static str) -> Option<Entity> {
    rule("gpu-init-failed", "no devices").map(|entity| entity.rank(1))
}
