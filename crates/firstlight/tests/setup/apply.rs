//! `firstlight apply` replaces an environment completely or not at all.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod built;
mod faults;
mod installed;
mod interrupted;
mod mislabeled;
mod overhead;
mod preconditions;
mod registry;
mod replaced;
pub(crate) mod world;

pub(crate) use world::said;
