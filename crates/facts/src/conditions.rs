use crate::{BackendKind, CeilingKind, Fact};
use serde::{Deserialize, Serialize};

/// The content of `conditions.json` in a run folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConditionsReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// One entry for each backend that was timed.
    pub backends: Vec<Conditions>,
}

/// The conditions under which a backend's kernels were timed.
///
/// They decide nothing; they let a reader distinguish a quiet run from one that shared its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The backend.
    pub backend: BackendKind,
    /// Before the first ceiling was measured.
    pub before: Moment,
    /// After the last kernel was timed.
    pub after: Moment,
    /// Load and events between the two moments.
    pub meanwhile: ConcurrentLoad,
    /// Each ceiling, measured before the first kernel and after the last one.
    pub ceilings: Vec<CeilingDrift>,
}

/// The state of a machine at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Processes that ran or waited for a core, averaged over the last minute; includes firstlight's own work.
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
    /// SM clock in MHz.
    pub sm_mhz: Option<Fact<u32>>,
    /// Maximum SM clock in MHz.
    pub sm_mhz_most: Option<Fact<u32>>,
    /// Memory clock in MHz.
    pub memory_mhz: Option<Fact<u32>>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<Fact<u32>>,
    /// NVML's reasons for limited clocks: `SW_POWER_CAP`; empty if they are not limited.
    pub held_down_by: Option<Fact<Vec<String>>>,
    /// Visible processes that use memory of this GPU and do not belong to this run.
    pub others: Option<Fact<Vec<String>>>,
}

/// Load and events while kernels were timed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConcurrentLoad {
    /// Seconds between the two moments.
    pub seconds: f64,
    /// Cores available to this process.
    pub cores: u32,
    /// Average number of these cores that other processes kept busy.
    pub others_cores: Option<Fact<f64>>,
    /// Percent of these cores' time that the hypervisor gave to other machines (steal time).
    pub stolen_pct: Option<Fact<f64>>,
}

/// A ceiling before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingDrift {
    /// Which.
    pub ceiling: CeilingKind,
    /// Before the first kernel, in its unit.
    pub before: f64,
    /// After the last one.
    pub after: f64,
}

impl CeilingDrift {
    /// The difference between the two, in percent of the larger.
    pub fn moved_pct(&self) -> f64 {
        let larger = self.before.max(self.after);
        if larger > 0.0 { 100.0 * (self.after - self.before).abs() / larger } else { 0.0 }
    }
}
