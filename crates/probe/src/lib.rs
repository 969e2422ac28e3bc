//! Reads a machine and its Python environments into [`facts`], each fact with the place it was read from.
//!
//! [`machine`] never fails: what cannot be read becomes a note. [`environments`] fails only for an environment that the
//! user named. Both read through a [`Source`], which is either the live machine or a recorded one (a folder of its
//! files, environment variables and command outputs), so that the code tested on recorded machines is the code that
//! reads yours. Nothing is imported and no package is run; a Python interpreter is started, isolated and without its
//! packages, only where no file tells where its packages are.

mod cgroup;
mod conditions;
mod env;
mod error;
mod loader;
mod machine;
mod names;
mod native;
pub mod nvml;
mod probes;
mod source;
mod text;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod recorded;

pub use conditions::{Ticks, meanwhile, moment};
pub use env::{EnvOptions, environments, first_import};
pub use error::ProbeError;
pub use machine::{Options, Report, machine, read, read_one};
pub use names::missing_names;
pub use probes::gpu_nodes::names as gpu_names;
pub use probes::memory::read as memory;
pub use probes::{PROBES, Probe};
pub use source::Source;
