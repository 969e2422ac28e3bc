//! `kda`: every variant this machine has against the float64 recurrence.

mod case;
mod contract;
mod identities;
mod parity;
mod states;
