//! Attention on NVIDIA GPUs: one file a variant beside its kernel, and the table that chooses among them.

mod choice;
mod decode;
mod hopper;
mod operands;
mod wide;

pub(super) use choice::{choice_tables, preferred};

use super::AttentionProblem;
use crate::cuda::CudaVariant;

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
pub(super) const VARIANTS: &[CudaVariant<AttentionProblem>] =
    &[hopper::VARIANT, wide::WIDE, wide::CLUSTER, decode::VARIANT];
