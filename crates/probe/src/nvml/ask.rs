//! The calls themselves.

use super::{Device, Nvml, Process, Snapshot};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{cuda_driver_version_major, cuda_driver_version_minor};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Starts NVML and asks it everything. `files` are places where the library lies outside the loader's own search.
pub(crate) fn live(files: &[PathBuf]) -> Nvml {
    let mut refused = None;
    // The loader's own choice goes first, since that is the library CUDA programs get.
    for library in
        std::iter::once(Path::new("libnvidia-ml.so.1")).chain(files.iter().map(PathBuf::as_path))
    {
        let name = library.display().to_string();
        match nvml_wrapper::Nvml::builder().lib_path(OsStr::new(library)).init() {
            Ok(nvml) => return Nvml::Answered(snapshot(&nvml, name)),
            Err(NvmlError::LibloadingError(_)) => {}
            Err(error) => {
                refused.get_or_insert(Nvml::Failed { library: name, words: words(&error) });
            }
        }
    }
    refused.unwrap_or(Nvml::Absent)
}

fn snapshot(nvml: &nvml_wrapper::Nvml, library: String) -> Snapshot {
    let part = |number: i32| u32::try_from(number).unwrap_or(0);
    Snapshot {
        library,
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok().map(|version| {
            (part(cuda_driver_version_major(version)), part(cuda_driver_version_minor(version)))
        }),
        gpus: (0..nvml.device_count().unwrap_or(0)).map(|index| device(nvml, index)).collect(),
    }
}

fn device(nvml: &nvml_wrapper::Nvml, index: u32) -> Device {
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => return Device { error: Some(words(&error)), ..Device::default() },
    };
    let (processes, processes_error) = processes(&device);
    let capability = device.cuda_compute_capability().ok();
    let memory = device.memory_info();
    Device {
        error: None,
        name: device.name().ok(),
        uuid: device.uuid().ok(),
        compute_capability: capability
            .and_then(|c| Some((u32::try_from(c.major).ok()?, u32::try_from(c.minor).ok()?))),
        memory_total: memory.as_ref().ok().map(|memory| memory.total),
        memory_used: memory.as_ref().ok().map(|memory| memory.used),
        memory_error: memory.err().map(|error| words(&error)),
        pci_bus: device.pci_info().ok().map(|pci| pci.bus_id),
        mig: device.mig_mode().ok().map(|mode| mode.current == 1),
        processes,
        processes_error,
    }
}

/// Programs that compute and programs that draw; one that does both is in both lists and has its memory once.
fn processes(device: &nvml_wrapper::Device) -> (Vec<Process>, Option<String>) {
    let process = |kind: &str, info: ProcessInfo| Process {
        pid: info.pid,
        bytes: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        kind: kind.to_string(),
    };
    let compute = match device.running_compute_processes() {
        Ok(list) => list,
        Err(error) => return (Vec::new(), Some(words(&error))),
    };
    let mut all: Vec<Process> = compute.into_iter().map(|info| process("compute", info)).collect();
    for info in device.running_graphics_processes().unwrap_or_default() {
        if !all.iter().any(|known| known.pid == info.pid) {
            all.push(process("graphics", info));
        }
    }
    (all, None)
}

/// NVML's own words for its errors (nvmlErrorString), since those are what people paste and search for; the wrapper
/// words them differently.
fn words(error: &NvmlError) -> String {
    let words = match error {
        NvmlError::Uninitialized => "Uninitialized",
        NvmlError::InvalidArg => "Invalid Argument",
        NvmlError::NotSupported => "Not Supported",
        NvmlError::NoPermission => "Insufficient Permissions",
        NvmlError::NotFound => "Not Found",
        NvmlError::InsufficientSize(_) => "Insufficient Size",
        NvmlError::InsufficientPower => "Insufficient External Power",
        NvmlError::DriverNotLoaded => "Driver Not Loaded",
        NvmlError::Timeout => "Timeout",
        NvmlError::IrqIssue => "Interrupt Request Issue",
        NvmlError::LibraryNotFound => "NVML Shared Library Not Found",
        NvmlError::FunctionNotFound => "Function Not Found",
        NvmlError::CorruptedInfoROM => "Corrupted infoROM",
        NvmlError::GpuLost => "GPU is lost",
        NvmlError::ResetRequired => "GPU requires reset",
        NvmlError::OperatingSystem => "The operating system has blocked the request",
        NvmlError::LibRmVersionMismatch => "Driver/library version mismatch",
        NvmlError::InUse => "In use by another client",
        NvmlError::InsufficientMemory => "Insufficient Memory",
        NvmlError::NoData => "No Data",
        NvmlError::Unknown => "Unknown Error",
        other => return other.to_string(),
    };
    words.to_string()
}
