//! The accelerator stack for a machine: selected from published facts, written to files, and installed completely or
//! not at all.
//!
//! Selecting ([`facts::InstallPlan`]) and writing are pure. Only applying changes an environment, by driving uv.

pub mod apply;
pub mod build;
pub mod conda;
pub mod emit;
pub mod fetch;
pub mod fix;
pub mod index;
pub mod lock;
mod plan;
pub mod profile_yaml;
pub mod python;
pub mod request;
mod target;
pub mod uv;
pub mod wheel;

pub use knowledge::profiles::{Profile, ProfileOption, profiles};
pub use plan::{cuda_of_torch_on_pypi, differences, known_packages, plan, plan_with, unlisted};
pub use request::{PlanRequest, RequestError, RequestedPackage};
pub use target::{gpu_memory, machine, machines, target_of, with_gpu};

pub use knowledge::{Arch, WheelCode};
