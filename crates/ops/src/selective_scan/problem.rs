//! The contract of the op: its table, its problem, and the checks between the two.

use super::SelectiveScanOptions;
use crate::slots::StateSlots;
use crate::spec::{setting, tensor};
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, Sequences, SettingKind};

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "selective_scan",
    summary: "Mamba's selective scan: h <- exp(dt A) h + dt u B, y = h C + D u of each channel",
    inputs: &[
        tensor("u", "[B, T, E] or [total, E]", true, "tokens by channel"),
        tensor("delta", "[B, T, E]", true, "raw step sizes, in u's type or f32"),
        tensor("A", "[E, N]", true, "rates of each channel's states, finite, f32 or u's type"),
        tensor("B", "[B, T, G, N]", true, "input projections, E % G == 0"),
        tensor("C", "[B, T, G, N]", true, "output projections"),
        tensor("D", "[E]", false, "skip weight, f32 or u's type"),
        tensor("z", "[B, T, E]", false, "gate: the output is multiplied by silu(z)"),
        tensor("delta_bias", "[E]", false, "added to delta before the softplus, f32 or u's type"),
        tensor("initial_state", "[Nseq, E, N]", false, "f32; [slots, E, N] when indexed"),
        tensor("cu_seqlens", "[Nseq + 1]", false, "i32 offsets of packed sequences"),
        tensor("state_indices", "[Nseq]", false, "i32 slot of each sequence; negative is padding"),
    ],
    outputs: &[
        tensor("o", "like u", true, "y, in u's type; 0 for padding"),
        tensor("final_state", "like initial_state", true, "f32 state after each last token"),
    ],
    settings: &[setting(
        "delta_softplus",
        SettingKind::Bool,
        "true",
        "step size is softplus(delta + delta_bias); false: delta + delta_bias as it is",
    )],
};

/// A checked call of `selective_scan`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectiveScanProblem {
    /// Storage type of u, B, C, z and o.
    pub dtype: DType,
    /// The sequences of the batch.
    pub sequences: Sequences,
    /// Channels, E.
    pub channels: usize,
    /// Groups of channels that share B and C, G.
    pub groups: usize,
    /// Width of a channel's state, N.
    pub state_dim: usize,
    /// State slot of each sequence.
    pub slots: StateSlots,
    /// Whether a skip weight D is given.
    pub has_d: bool,
    /// Whether a gate z is given.
    pub has_z: bool,
    /// Whether an initial state is given; without one it is 0.
    pub has_initial_state: bool,
    /// Whether softplus is applied to step sizes.
    pub delta_softplus: bool,
    /// Bytes of all tensors given.
    input_bytes: f64,
}

impl SelectiveScanProblem {
    /// Channels that share one B and C.
    pub fn channels_per_group(&self) -> usize {
        self.channels / self.groups.max(1)
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(
        inputs: Inputs<'_>,
        options: &SelectiveScanOptions,
    ) -> Result<Self, OpError> {
        let dtype = inputs.storage("u")?;
        let sequences = inputs.sequences("u", 3, "cu_seqlens")?;
        let [channels] = inputs.token_dims("u", &sequences, [Dim::free("E")])?;
        let e = Dim::fixed("E", channels);
        inputs.token_dims("delta", &sequences, [e])?;
        let [_, state_dim] = inputs.dims("A", [e, Dim::free("N")])?;
        let n = Dim::fixed("N", state_dim);
        let [groups, _] = inputs.token_dims("B", &sequences, [Dim::free("G"), n])?;
        if groups == 0 || channels % groups != 0 {
            let wanted = format!("a number of groups that divides the {channels} channels of `u`");
            return Err(inputs.shape_error("B", &wanted));
        }
        inputs.token_dims("C", &sequences, [Dim::fixed("G", groups), n])?;
        if inputs.get("z").is_some() {
            inputs.token_dims("z", &sequences, [e])?;
        }
        for name in ["D", "delta_bias"].into_iter().filter(|name| inputs.get(name).is_some()) {
            inputs.dims(name, [e])?;
        }
        inputs.f32_state([Dim::free("Nseq"), e, n])?;
        inputs.same_storage(&["B", "C", "z"], dtype)?;
        inputs.f32_or_like("u", &["delta", "A", "D", "delta_bias"])?;
        Ok(Self {
            dtype,
            channels,
            groups,
            state_dim,
            slots: StateSlots::parse(inputs, &sequences)?,
            has_d: inputs.get("D").is_some(),
            has_z: inputs.get("z").is_some(),
            has_initial_state: inputs.get("initial_state").is_some(),
            delta_softplus: options.delta_softplus,
            input_bytes: inputs.bytes(),
            sequences,
        })
    }
}

impl Problem for SelectiveScanProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        self.sequences.dims(&[("E", self.channels), ("G", self.groups), ("N", self.state_dim)])
    }

    /// Operations of the recurrence per token: for each state element 2 for the decay (the exponential counts as one), 3 for the
    /// update and 2 for the output; for each channel 1 for `dt u` and 2 for D.
    fn flops(&self) -> f64 {
        let tokens = self.slots.tokens(&self.sequences);
        let skip = if self.has_d { 2 } else { 0 };
        (tokens * self.channels) as f64 * (7 * self.state_dim + 1 + skip) as f64
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + self.outputs().iter().map(OutputSpec::bytes).sum::<usize>() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let state = vec![self.slots.count(), self.channels, self.state_dim];
        vec![
            OutputSpec {
                name: "o",
                shape: self.sequences.shape(&[self.channels]),
                dtype: self.dtype,
            },
            OutputSpec { name: "final_state", shape: state, dtype: DType::F32 },
        ]
    }
}
