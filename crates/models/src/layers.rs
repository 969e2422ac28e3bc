//! The layers that families share, as data: shapes, parameters and settings, one kind a file.

mod attention;
mod experts;
mod kda;
mod latent_attention;
mod mamba2;
mod mlp;

pub use attention::Attention;
pub(crate) use attention::AttentionShape;
pub use experts::{Expert, Experts, Score};
pub use kda::Kda;
pub use latent_attention::{LatentAttention, LatentShape};
pub use mamba2::{Mamba2, Mamba2Shape};
pub use mlp::GatedMlp;
