//! Native sparse attention (NSA): every variant that this machine can run against the float64 reference, and properties
//! that hold bitwise.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod case;
mod cases;
mod contract;
mod exact;
mod selection;
