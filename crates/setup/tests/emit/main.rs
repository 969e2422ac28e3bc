//! Plans as files: their contents, reading them back, and their use by the target tools.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod conftest;
mod docker;
mod golden;
mod index;
mod lock;
mod plans;
mod pyproject;
mod registry;
mod round_trip;
mod tools;
