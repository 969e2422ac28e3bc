//! The right accelerator stack for a machine: chosen from published facts, written down, and installed whole or not at all.
//!
//! Choosing ([`facts::Plan`]) and writing down are pure. Only applying changes an environment, and it does so by driving uv.

pub mod apply;
pub mod build;
pub mod conda;
pub mod emit;
pub mod fetch;
pub mod index;
pub mod lock;
pub mod mend;
mod plan;
pub mod profile_yaml;
pub mod python;
pub mod request;
mod target;
pub mod uv;
pub mod wheel;

pub use knowledge::profiles::{Profile, ProfileOption, profiles};
pub use plan::{differences, plan, plan_with, unlisted};
pub use request::{Request, RequestError, Wanted};
pub use target::{gpu_memory, machine, machines, target_of, with_gpu};

pub use knowledge::{Arch, WheelCode};
