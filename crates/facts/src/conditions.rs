use crate::{BackendKind, CeilingKind, Fact};
use serde::{Deserialize, Serialize};

/// What `conditions.json` of a run folder holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConditionsReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// One entry for each backend that was timed.
    pub backends: Vec<Conditions>,
}

/// Under which conditions a backend's kernels were timed.
///
/// What is in it decides nothing; it lets a reader tell a quiet run from one that shared its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Whose kernels were timed.
    pub backend: BackendKind,
    /// Before the first ceiling was measured.
    pub before: Moment,
    /// After the last kernel was timed.
    pub after: Moment,
    /// What happened between the two.
    pub meanwhile: Meanwhile,
    /// Each ceiling, measured before the first kernel and after the last one.
    pub ceilings: Vec<CeilingTwice>,
}

/// The state of a machine at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Processes that ran or waited for a core, as a mean of the last minute; firstlight's own work counts.
    pub load: Option<Fact<f64>>,
    /// Mean clock of the cores in MHz.
    pub cpu_mhz: Option<Fact<f64>>,
    /// Each NVIDIA GPU by the driver's index.
    pub gpus: Vec<GpuMoment>,
}

/// The state of a GPU at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMoment {
    /// The driver's index.
    pub gpu: u32,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<Fact<u32>>,
    /// The highest clock that they have, in MHz.
    pub sm_mhz_most: Option<Fact<u32>>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<Fact<u32>>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<Fact<u32>>,
    /// What holds the clocks down, in NVML's names: `SW_POWER_CAP`; empty where nothing does.
    pub held_down_by: Option<Fact<Vec<String>>>,
    /// Processes that have memory of this GPU and belong to no part of this run, as far as they can be seen.
    pub others: Option<Fact<Vec<String>>>,
}

/// What happened while kernels were timed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Meanwhile {
    /// Seconds between the two moments.
    pub seconds: f64,
    /// Cores that this process may use.
    pub cores: u32,
    /// How many of these cores other processes kept busy, on average.
    pub others_cores: Option<Fact<f64>>,
    /// Percent of these cores' time that the hypervisor gave to other machines.
    pub stolen_pct: Option<Fact<f64>>,
}

/// A ceiling before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingTwice {
    /// Which.
    pub ceiling: CeilingKind,
    /// Before the first kernel, in its unit.
    pub before: f64,
    /// After the last one.
    pub after: f64,
}

impl CeilingTwice {
    /// How far the later one is from the earlier one, in percent of the larger.
    pub fn moved_pct(&self) -> f64 {
        let larger = self.before.max(self.after);
        if larger > 0.0 { 100.0 * (self.after - self.before).abs() / larger } else { 0.0 }
    }
}
