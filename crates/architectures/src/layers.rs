//! Layers shared by families, as data: shapes, parameters and settings, one kind per file.

mod attention;
mod expert_layout;
mod experts;
mod gated_delta;
mod kda;
mod latent_attention;
mod mamba1;
mod mamba2;
mod mlp;
mod short_conv;

pub use attention::Attention;
pub(crate) use attention::{AttentionShape, Gate};
pub(crate) use expert_layout::{ExpertLayout, ExpertsShape};
pub(crate) use experts::stacked;
pub use experts::{ClampedExperts, Expert, ExpertGroups, Experts, RouterScore};
pub(crate) use gated_delta::GatedDeltaNames;
pub use gated_delta::{GatedDelta, GatedDeltaShape};
pub use kda::Kda;
pub use latent_attention::{LatentAttention, LatentShape};
pub use mamba1::{Mamba1, Mamba1Shape, Norms};
pub(crate) use mamba2::UNLIMITED_DT;
pub use mamba2::{Mamba2, Mamba2Shape, MambaMultipliers, Parallel};
pub use mlp::GatedMlp;
pub use short_conv::ShortConv;
