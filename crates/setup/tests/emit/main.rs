//! Plans as files: what they say, that they are read back, and that the tools they are for take them.

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
