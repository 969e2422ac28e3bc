//! Building blocks shared by the CPU variants.

pub mod copy;
pub mod gate;
pub mod gemm;
pub mod linear;
pub mod read;
pub mod simd;
pub(crate) mod variants;
pub(crate) mod vectors;
