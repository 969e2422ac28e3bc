//! One decode step of a depthwise causal convolution over columns of the product, between a recurrent layer's input projection and
//! its scan.

use super::LinearOptions;
use crate::settings::refused;
use crate::slots::StateSlots;
use crate::{DType, Dim, Inputs, OpError, OutputSpec, Sequences};

pub(super) const ACTIVATIONS: &[&str] = &["none", "silu"];

/// The convolved columns. Each row of x is the next token of a different sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// First of the convolved columns.
    pub first: usize,
    /// Number of convolved columns, C.
    pub channels: usize,
    /// Taps, W: 2 to 4. A state holds the W - 1 previous tokens, the newest last.
    pub width: usize,
    /// Whether SiLU is applied to the result.
    pub silu: bool,
    /// Whether weights and biases are in f32.
    pub f32: bool,
    /// State slot of each row.
    pub slots: StateSlots,
}

impl Convolution {
    /// Checks the tensors and settings of the convolution; `None` without a `conv_weight`.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(
        inputs: Inputs<'_>,
        options: &LinearOptions,
        dtype: DType,
        [tokens, columns]: [usize; 2],
    ) -> Result<Option<Self>, OpError> {
        if inputs.get("conv_weight").is_none() {
            for name in ["conv_bias", "initial_state", "state_indices"] {
                if inputs.get(name).is_some() {
                    return Err(inputs.value_error(name, "requires `conv_weight`"));
                }
            }
            return Ok(None);
        }
        let [channels, width] = inputs.dims("conv_weight", [Dim::free("C"), Dim::free("W")])?;
        if !(2..=4).contains(&width) {
            return Err(inputs.shape_error("conv_weight", "a width W of 2, 3 or 4"));
        }
        let first = options.conv_first;
        if first + channels > columns {
            let wanted = format!("at most M - C = {}", columns.saturating_sub(channels));
            return Err(refused(super::problem::SPEC.name, "conv_first", first, wanted));
        }
        if inputs.get("conv_bias").is_some() {
            inputs.dims("conv_bias", [Dim::fixed("C", channels)])?;
        }
        for name in ["conv_weight", "conv_bias"] {
            let given = inputs.get(name).map(|tensor| tensor.dtype());
            if given.is_some_and(|given| given != dtype && given != DType::F32) {
                return Err(inputs.dtype_error(name, &format!("f32 or {dtype} like `w`")));
            }
        }
        let state = [Dim::free("slots"), Dim::fixed("C", channels), Dim::fixed("W - 1", width - 1)];
        inputs.dims("initial_state", state)?;
        if inputs.tensor("initial_state").dtype() != DType::F32 {
            return Err(inputs.dtype_error("initial_state", "f32, the storage type of states"));
        }
        let slots = StateSlots::parse(inputs, &Sequences::dense(tokens, 1))?;
        let is_f32 = |name| inputs.get(name).is_none_or(|tensor| tensor.dtype() == DType::F32);
        let f32 = is_f32("conv_weight") && is_f32("conv_bias");
        Ok(Some(Self { first, channels, width, silu: options.conv_silu, f32, slots }))
    }

    /// The states after the step.
    pub(super) fn final_state(&self) -> OutputSpec {
        let shape = vec![self.slots.count(), self.channels, self.width - 1];
        OutputSpec { name: "final_state", shape, dtype: DType::F32 }
    }
}
