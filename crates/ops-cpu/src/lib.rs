//! The CPU backend: the variants of each op, and the building blocks that variants and models share.

mod aligned;
mod backend;
mod execution;
mod fast_math;
mod floats;
mod stored;
mod stream;
mod table;
mod transpose;
mod variants;
mod vectors;

mod attention;
mod conv1d;
mod gated_delta;
mod kda;
mod linear;
mod moe;
mod nsa;
mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

pub mod copy;
pub mod gate;
pub mod gemm;
pub mod packed_linear;
pub mod read;
pub mod simd;

pub use backend::Cpu;
pub(crate) use table::CpuTable;
pub(crate) use variants::CpuVariant;
