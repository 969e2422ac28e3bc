//! The records that every crate of firstlight uses.
//!
//! Data only: this crate imports no other, reads nothing and decides nothing. These records are the project's only
//! serialized schema, so renaming a field breaks readers of the JSON.

mod access;
mod apply;
mod baseline;
mod bench;
mod branches;
mod comparison;
mod conditions;
mod fabric;
mod fact;
mod finding;
mod fleet;
mod gpu_health;
mod gpus;
mod interconnect;
mod machine;
mod matrix;
mod model;
mod model_speed;
mod native;
mod parity;
mod plan;
mod process;
mod pyenv;
mod remedy;
mod run;
mod sort;
mod sustained;
mod units;

pub use access::{DeviceNode, GpuAccess, PciGpu};
pub use apply::{AppliedBuild, AppliedPackage, ApplyOutcome, ApplyReport, ApplyStep};
pub use baseline::{BaselineReport, BaselineRow, ReportedFigure};
pub use bench::{
    BenchReport, BenchRow, CeilingKind, Ceilings, GemmCeilings, RaisedCeiling, RooflineBound,
    SkippedTiming,
};
pub use branches::{BranchReport, BranchRow, PerBranch};
pub use comparison::{
    CeilingChange, Change, Comparison, Difference, FindingChange, GateOutcome, GateReport,
    ParityChange, SpeedChange, TimingSpread,
};
pub use conditions::{
    CeilingDrift, ConcurrentLoad, Conditions, ConditionsReport, GpuMoment, Moment,
};
pub use fabric::{
    Collective, CollectiveKind, FabricReport, LinkLimit, PeerCopy, RecordedSum, UnmeasuredFabric,
};
pub use fact::Fact;
pub use finding::{Confidence, DoctorReport, Evidence, Finding, Severity};
pub use fleet::{
    FleetDevice, FleetReport, RankFinding, RankPart, StackDifference, StackFile, StackForm,
    StackReport,
};
pub use gpu_health::{EccCounts, GpuHealth, NvLink, PcieLink, RemappedRows};
pub use gpus::{
    BitDifference, CeilingRatio, GpuKind, GpuPart, GpuSpeed, GpusReport, MemoryError, MemoryTest,
    RowRatio,
};
pub use interconnect::{DriverLine, DriverTrouble, GpuPath, Interconnect, PciePath, RdmaPort, Xid};
pub use machine::{
    AcceleratorLibrary, BackendKind, CpuCache, CpuFacts, CudaToolkit, Driver, Gpu, GpuVendor,
    Machine, MachineKind, Os, Platform, SystemMemory, Virtualisation,
};
pub use matrix::{Support, SupportCell, SupportMatrix, SupportRow};
pub use model::{KernelNeed, KernelStatus, LayerGroup, ModelMemory, ModelReport};
pub use model_speed::{DecodeLimit, FirstToken, ModelSpeed, ModelSpeedReport};
pub use native::{
    Elf, Exported, FoundBy, GpuCode, GpuImage, GpuImageKind, GpuReach, MissingSymbol,
    MissingVersion, NativeFile, Needed, NumpyApi,
};
pub use parity::{ParityReport, ParityRow, Status};
pub use plan::{
    BuildRecipe, InstallPlan, NearestPlan, PackageOrigin, PlanIndex, PlanRefusal, PlanRequirement,
    PlanTarget, PlannedFile, PlannedPackage, RejectedCandidate,
};
pub use process::{GpuMemory, GpuProcess, GpuUse, ProcessReport};
pub use pyenv::{
    Alteration, AlteredFile, Companion, Dist, EnvKind, EnvManager, Interpreter, MissingKind,
    MissingName, PathFolder, PathModule, Ptxas, PyEnv, Torch, UnmetImport,
};
pub use remedy::{Install, PackageTarget, PackageTool, RemedyStep, quote};
pub use run::{
    Artefact, Coverage, GpuCoverage, OUT_OF_TIME, RunManifest, RunState, SkippedStage, SourceTree,
    Stage,
};
pub use sort::{CompactCollect, CompactSort};
pub use sustained::{GpuLoad, LoadRate, LoadState, SustainedReport};
pub use units::byte_count;

/// Version of every JSON document firstlight writes; raised when a field changes meaning or goes away.
pub const SCHEMA: u32 = 1;

#[cfg(test)]
mod tests {
    /// Objects built by hand keep the order of their keys, as records do, also if this crate is built without its
    /// dependents' features.
    #[test]
    fn a_document_keeps_the_order_of_its_keys() {
        let written = r#"{"version":"1","answers":[{"text":"a","index":0}],"model":"m"}"#;
        let read: serde_json::Value = serde_json::from_str(written).unwrap();
        assert_eq!(read.to_string(), written);
        let made = serde_json::json!({ "second": 2, "first": 1 });
        assert_eq!(made.to_string(), r#"{"second":2,"first":1}"#);
    }
}
