//! The operators: one folder each, with its contract, its float64 reference and its variants.
//!
//! An op is called in its own words: [`attention::AttentionCall`] and its like name each tensor and option ([`Typed`]). On
//! the processor such a call runs at once; on a GPU [`cuda::Plans`] keeps what was planned for like calls.
//!
//! Where tensors come by name, an op is used in four steps: [`Op::bind`] checks them and settings and yields a [`Call`];
//! [`Call::reference`] computes the answer in float64 from the formulas; [`Call::select`] chooses a variant for a
//! device and says why it refused each other one; [`Call::prepare`] makes an [`Execution`] that can be poisoned,
//! launched and read.

mod aligned;
mod error;
mod floats;
mod inputs;
mod op;
mod part;
mod quick;
mod settings;
mod slots;
mod stream;
mod tensor;
mod transpose;

pub mod attention;
pub mod conv1d;
pub mod cpu;
pub mod cuda;
pub mod decoder;
pub mod gated_delta;
pub mod kda;
pub mod linear;
pub mod moe;
pub mod nsa;
pub mod persistent;
pub mod rmsnorm;
pub mod sampling;
pub mod selective_scan;
pub mod ssd;

pub use error::OpError;
pub use inputs::{Dim, Inputs, Sequences, Slots};
pub use op::{
    Call, ChoiceTable, Execution, Family, Given, Key, OPS, Op, OpSpec, Opened, Options, OutputSpec,
    Over, PartOf, Place, Preference, Problem, Refusal, Selection, States, TensorSpec, Typed,
    Variant, Visitor, op, visit_ops,
};
pub use settings::{SettingKind, SettingSpec, Settings};
pub use slots::StateSlots;
pub use tensor::{DType, E4m3, Element, Tensor, TensorMap, U4Pair};
