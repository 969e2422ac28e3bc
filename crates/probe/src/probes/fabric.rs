//! NVSwitches, and the service that configures them before CUDA starts.

use super::driver_of;
use crate::Source;
use facts::{Fact, Machine};

/// The driver has a folder here for each switch, and an empty folder on machines without switches.
const SWITCHES: &str = "/proc/driver/nvidia-nvswitch/devices";
/// The kernel truncates process names to 15 characters: this is nv-fabricmanager.
const SERVICE: &str = "nv-fabricmanage";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let count = u32::try_from(source.list(SWITCHES).len()).unwrap_or(u32::MAX);
    if count == 0 {
        return;
    }
    let driver = driver_of(machine);
    driver.nvswitches = Some(Fact::new(count, SWITCHES));
    let numbers = source.list("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    driver.fabric_manager = numbers
        .map(|pid| Fact::new(pid, format!("/proc/{pid}/comm")))
        .find(|fact| source.word(&fact.source).as_deref() == Some(SERVICE));
}
