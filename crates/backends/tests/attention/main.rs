//! Attention: every variant that this machine can run against the float64 reference, with poisoned outputs and counted
//! launches.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod case;
mod contract;
mod edges;
mod layouts;
mod repeat;
mod shapes;

use case::{Case, check};
