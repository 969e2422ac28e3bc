//! Building blocks shared by the CPU variants.

pub mod gemm;
pub mod simd;
