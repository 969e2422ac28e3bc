//! `kda`: every variant this machine has against the float64 recurrence.

#![allow(clippy::unwrap_used)] // Test helpers panic as tests do.

mod case;
mod contract;
mod identities;
mod parity;
#[path = "../scan_support/mod.rs"]
mod scan_support;
mod states;
