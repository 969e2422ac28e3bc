//! NSA: every variant that this machine can run against the float64 reference, and what must hold exactly.

mod case;
mod cases;
mod contract;
mod exact;
mod selection;
