//! What a config.json describes, for whoever diagnoses, plans or runs a model.
//!
//! A family reads a [`Config`] into an [`Architecture`]: layers as data, every parameter with its name and shape, what each
//! layer keeps of a sequence. It knows no backend and reads no file.
//!
//! # Adding a model family
//!
//! 1. Write `families/<name>.rs` with a `pub(super) const FAMILY: Family`: the names it goes by in config.json, and a
//!    function from the config to its layers, made of those in `layers`.
//! 2. Name it in `families.rs`: the `mod` line and the row in [`FAMILIES`].

mod architecture;
mod class_defaults;
mod config;
mod draft;
mod each_kind;
mod error;
mod families;
mod footprint;
pub mod layers;
pub mod params;
mod python_json;
mod quantisation;
mod rope;
mod scan_states;
mod shapes;
mod shard;
mod stage;
mod tensor_names;
#[cfg(test)]
mod tests;
mod traffic;

pub use architecture::{Architecture, Layer, Mixer, States};
pub use config::Config;
pub use error::ConfigError;
pub use families::{FAMILIES, Family};
pub use footprint::{Capacity, DoesNotFit, Footprint, Holding, Keeps, LargestStep};
pub use python_json::{NonFinite, strict_json};
pub use quantisation::{
    BLOCK, Block, Fp8, Fp8Scales, Int, Packing, Quantised, SCALE, SCALE_INV, Stored, in_fp8,
    in_integers,
};
pub use rope::Rope;
pub use scan_states::{OtherStates, StateType};
pub use shapes::{SHAPES, Shape, shape};
pub use shard::{CannotSplit, Place};
pub use tensor_names::TensorShapes;
