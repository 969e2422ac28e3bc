//! Describes the model of a config.json, for diagnosis, planning and execution.
//!
//! A family turns a [`Config`] into an [`Architecture`]: layers as data, the name and shape of every parameter, and
//! each layer's state per sequence. This crate knows no backend and reads no file.
//!
//! # Adding a model family
//!
//! 1. Write `families/<name>.rs` with a `pub(super) const FAMILY: ModelFamily`: its names in config.json, and a function
//!    from the config to its layers, made of those in `layers`.
//! 2. Add it to `families.rs`: the `mod` line and the row in [`FAMILIES`].

mod architecture;
mod builder;
mod class_defaults;
mod config;
mod each_kind;
mod error;
mod families;
mod footprint;
pub mod layers;
pub mod params;
mod python_json;
mod quantization;
mod rope;
mod scan_states;
mod shapes;
mod shard;
mod stage;
mod tensor_names;
#[cfg(test)]
mod tests;
mod traffic;

pub use architecture::{Architecture, Layer, Mixer, NormPosition, RecurrentStateSize};
pub use config::Config;
pub use error::ConfigError;
pub use families::{FAMILIES, ModelFamily};
pub use footprint::{
    Capacity, Footprint, LargestStep, ModelTooLarge, UnexpandedWeights, WeightStorage,
};
pub use python_json::{NonFinite, strict_json};
pub use quantization::{
    BLOCK, BitPlane, BlockScales, Fp8, Fp8Scales, GgmlType, GroupQuantization, IntegerCode,
    Packing, Quantization, SCALE, SCALE_INV, StorageFormat, with_fp8_weights, with_int_weights,
};
pub use rope::Rope;
pub use scan_states::{StateType, UnsupportedStateType};
pub use shapes::{SHAPES, Shape, shape};
pub use shard::{ShardRank, SplitError};
pub use tensor_names::TensorShapes;
