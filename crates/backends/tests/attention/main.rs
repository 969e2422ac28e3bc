//! Attention: every variant this machine has against the float64 reference, on poisoned outputs, with counted launches.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod case;
mod contract;
mod edges;
mod layouts;
mod repeat;
mod shapes;

use case::{Case, check};
