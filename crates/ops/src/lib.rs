//! The ops, one folder each, with their contracts and float64 references. Backends implement them ([`Backend`]).
//!
//! A typed call has a field for each tensor and option of its op: [`attention::AttentionCall`] and the others ([`Typed`]).
//!
//! A call by names takes four steps: [`Op::bind`] checks tensors and settings and yields a [`Call`];
//! [`Call::reference`] computes the outputs in float64 from the formulas; [`Call::select`] chooses a variant for a
//! device and returns why each other one was refused; [`Call::prepare`] makes an [`Execution`], which fills its
//! outputs with NaN, launches, and reads them.

mod dtype;
mod error;
mod gradient;
mod inputs;
mod list;
mod op;
mod part;
mod random;
mod settings;
mod slots;
mod spec;
mod tensor;
mod views;

pub mod attention;
pub mod conv1d;
pub mod gated_delta;
pub mod kda;
pub mod linear;
pub mod moe;
pub mod nsa;
pub mod rmsnorm;
pub mod sampling;
pub mod selective_scan;
pub mod ssd;

pub use dtype::DType;
pub use error::{OpError, Refusal};
pub use gradient::{Differentiable, Gradient, GradientProblem};
pub use inputs::{Dim, Inputs, MAX_TENSORS, Sequences, Slots};
pub use list::{OPS, Visitor, op, visit_ops};
pub use op::{
    Backend, Backends, Call, CallTensors, ChoiceTable, Execution, Family, Implementations, Key, Op,
    Options, Preference, Problem, RecurrentCall, SelectedVariant, Selection, States,
    TokenRangeCall, Typed, choose, problem_of,
};
pub use random::SplitMix64;
pub use settings::Settings;
pub use slots::StateSlots;
pub use spec::{OpSpec, OutputSpec, SettingKind, SettingSpec, TensorSpec};
pub use tensor::{E4m3, Element, Tensor, TensorMap, U4Pair};
pub use views::{elements, elements_mut, floats};
