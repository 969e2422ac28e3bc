//! The right accelerator stack for a machine: chosen from published facts, written down, and installed whole or not at all.
//!
//! Choosing ([`facts::Plan`]) and writing down are pure. Only applying changes an environment, and it does so by driving uv.

pub mod build;
pub mod conda;
pub mod emit;
pub mod lock;
pub mod profile_yaml;
pub mod uv;
pub mod wheel;
