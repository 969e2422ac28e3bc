//! Building blocks shared by the CPU variants.

pub mod simd;
