//! Reads a machine and its Python environments into [`facts`], each fact with its source.
//!
//! [`machine`] never fails: unreadable facts become notes. [`environments`] fails only for an environment selected by
//! the user. Both read through a [`Source`], which is either the live machine or a recorded one (a folder of its files,
//! environment variables and command outputs), so that tests with recorded machines run the code that reads live ones.
//! No package is imported or run; a Python interpreter is started, isolated and without its packages, only if no file
//! has the location of its packages.

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
pub use env::{EnvOptions, ImportSearch, environments};
pub use error::ProbeError;
pub use machine::{ProbeOptions, Report, machine, read, read_one};
pub use names::missing_names;
pub use probes::gpu_nodes::names as gpu_names;
pub use probes::memory::read as memory;
pub use probes::{PROBES, Probe};
pub use source::Source;
