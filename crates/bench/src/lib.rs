//! Times what verify passed, and nothing else.
//!
//! Ceilings (memory copy, matrix product) are measured first, in the same run and on the same device, so a percentage
//! is never against a datasheet. A kernel is timed only as the [`verify::Verified`] execution that was just checked.

mod ahead;
mod allowance;
mod branches;
mod ceilings;
mod dense;
mod error;
mod fabric;
mod held;
mod peers;
mod run;
mod sustained;
mod sweep;
mod timing;
mod tune;
mod workloads;

pub use ahead::Ahead;
pub use branches::branches;
pub use ceilings::ceilings;
pub use error::BenchError;
pub use fabric::{FabricPlan, fabric};
pub use run::{Plan, Size, Step, budget, count, run};
pub use sustained::sustained;
pub use sweep::Sweep;
pub use timing::{Samples, time, time_steps};
pub use tune::{Tuned, tune};
pub use workloads::{OpWorkloads, WORKLOADS, Workload};
