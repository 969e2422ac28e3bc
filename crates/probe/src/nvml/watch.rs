//! Samples the state of GPUs under load.

use super::ask::throttle_reasons;
use crate::Source;
use facts::LoadState;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Queries NVML for the state of every GPU, by its index, immediately and then after each interval `every`, until
/// `told` returns false. Seconds count from the call. Without NVML there are no samples.
pub fn watch(source: &Source, every: Duration, mut told: impl FnMut(&[(u32, LoadState)]) -> bool) {
    let since = Instant::now();
    let own = std::iter::once(PathBuf::from("libnvidia-ml.so.1"));
    let mut libraries = own.chain(source.loader().files(source, "libnvidia-ml.so.1"));
    let start =
        |library: &Path| nvml_wrapper::Nvml::builder().lib_path(OsStr::new(library)).init().ok();
    let Some(nvml) = libraries.find_map(|library| start(&library)) else { return };
    let nvml = std::mem::ManuallyDrop::new(nvml);
    let count = nvml.device_count().unwrap_or(0);
    let devices = (0..count).filter_map(|index| Some((index, nvml.device_by_index(index).ok()?)));
    let devices: Vec<(u32, nvml_wrapper::Device<'_>)> = devices.collect();
    for turn in 1.. {
        let seconds = since.elapsed().as_secs_f64();
        let state = |(index, device): &(u32, nvml_wrapper::Device<'_>)| {
            let reasons = device.current_throttle_reasons().ok();
            let state = LoadState {
                seconds,
                watts: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
                sm_mhz: device.clock_info(Clock::SM).ok(),
                celsius: device.temperature(TemperatureSensor::Gpu).ok(),
                held_down_by: reasons.map(throttle_reasons).unwrap_or_default(),
            };
            (*index, state)
        };
        if !told(&devices.iter().map(state).collect::<Vec<_>>()) {
            return;
        }
        std::thread::sleep((every * turn).saturating_sub(since.elapsed()));
    }
}
