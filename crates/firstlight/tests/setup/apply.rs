//! `firstlight apply`: whole or not at all, whatever goes wrong.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod built;
mod faults;
mod installed;
mod interrupted;
mod mislabeled_wheels;
mod overhead;
mod preconditions;
mod registry;
mod replaced;
pub(crate) mod world;

pub(crate) use world::said;
