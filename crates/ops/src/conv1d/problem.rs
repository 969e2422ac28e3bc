//! The contract of the op: its table, its problem and the checks of a call.

use super::Conv1dOptions;
use crate::slots::StateSlots;
use crate::spec::tensor;
use crate::{
    DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, Sequences, SettingKind, SettingSpec,
};

pub(super) const ACTIVATIONS: &[&str] = &["none", "silu"];
pub(super) const LAYOUTS: &[&str] = &["channel_last", "channel_first"];

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "conv1d",
    summary: "Depthwise causal convolution over tokens: y_t = bias + sum over w of weight_w x_(t-W+1+w)",
    inputs: &[
        tensor(
            "x",
            "[B, T, C], [total, C], or [B, C, T] with layout=channel_first",
            true,
            "tokens",
        ),
        tensor("weight", "[C, W]", true, "W in 2..4, the newest token last; f32 or x's type"),
        tensor("bias", "[C]", false, "f32 or x's type"),
        tensor(
            "initial_state",
            "[Nseq, C, S]",
            false,
            "the S >= W-1 tokens before, newest last; f32, or for one token x's type",
        ),
        tensor("cu_seqlens", "[Nseq + 1]", false, "i32 offsets of packed sequences"),
        tensor("state_indices", "[Nseq]", false, "i32 slot of each sequence; negative is padding"),
        tensor("state_positions", "[Nseq]", false, "i32 tokens seen so far: the state is a ring"),
    ],
    outputs: &[
        tensor("o", "like x", true, "y, in x's type; 0 for padding"),
        tensor(
            "final_state",
            "like initial_state",
            true,
            "in its type; f32 [Nseq, C, W-1] without one",
        ),
    ],
    settings: &[
        SettingSpec {
            name: "activation",
            kind: SettingKind::Choice(ACTIVATIONS),
            default: "none",
            about: "activation of y",
        },
        SettingSpec {
            name: "layout",
            kind: SettingKind::Choice(LAYOUTS),
            default: "channel_last",
            about: "order of x and o; channel_first is [B, C, T]",
        },
    ],
};

/// Activation of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// x / (1 + e^-x).
    Silu,
}

/// Order of x and o in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// `[B, T, C]` or packed `[total, C]`.
    #[default]
    ChannelLast,
    /// `[B, C, T]`.
    ChannelFirst,
}

/// A checked call of `conv1d`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv1dProblem {
    /// Storage type of x and o.
    pub dtype: DType,
    /// The sequences of the batch.
    pub sequences: Sequences,
    /// Channels, C.
    pub channels: usize,
    /// Taps, W: 2 to 4.
    pub width: usize,
    /// Tokens that a state holds, S: W - 1 or more.
    pub state_len: usize,
    /// Type of the states: f32, or x's.
    pub state_dtype: DType,
    /// State slot of each sequence.
    pub slots: StateSlots,
    /// Whether a bias is given.
    pub has_bias: bool,
    /// Whether an initial state is given; without one the tokens before a sequence are 0.
    pub has_initial_state: bool,
    /// Column of the next token in each sequence's ring buffer, `state_positions[n] mod S`; `None` if states are not ring
    /// buffers: they hold the newest token last.
    pub ring: Option<Vec<usize>>,
    /// Activation of the output.
    pub activation: Activation,
    /// Order of x and o.
    pub layout: Layout,
    /// Bytes of all tensors given.
    input_bytes: f64,
}

impl Conv1dProblem {
    /// Column of a state that holds the token `age` tokens before the sequence's next one (1 is the newest).
    pub fn state_column(&self, sequence: usize, age: usize) -> usize {
        match &self.ring {
            None => self.state_len - age,
            Some(positions) => (positions[sequence] + self.state_len - age) % self.state_len,
        }
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &Conv1dOptions) -> Result<Self, OpError> {
        let Conv1dOptions { activation, layout } = *options;
        let dtype = inputs.storage("x")?;
        let (sequences, channels) = tokens(inputs, layout)?;
        let [_, width] = inputs.dims("weight", [Dim::fixed("C", channels), Dim::free("W")])?;
        if !(2..=4).contains(&width) {
            return Err(inputs.shape_error("weight", "a width W of 2, 3 or 4"));
        }
        if inputs.get("bias").is_some() {
            inputs.dims("bias", [Dim::fixed("C", channels)])?;
        }
        for name in ["weight", "bias"] {
            let given = inputs.get(name).map(|tensor| tensor.dtype());
            if given.is_some_and(|given| given != dtype && given != DType::F32) {
                return Err(inputs.dtype_error(name, &format!("f32 or {dtype} like `x`")));
            }
        }
        let (mut state_len, mut state_dtype) = (width - 1, DType::F32);
        if inputs.get("initial_state").is_some() {
            let dims = [Dim::free("Nseq"), Dim::fixed("C", channels), Dim::free("S")];
            [_, _, state_len] = inputs.dims("initial_state", dims)?;
            if state_len < width - 1 {
                let wanted = format!("S >= {} tokens for a width of {width}", width - 1);
                return Err(inputs.shape_error("initial_state", &wanted));
            }
            state_dtype = inputs.tensor("initial_state").dtype();
            if state_dtype != DType::F32 && state_dtype != dtype {
                let wanted = format!("f32, the storage type of states, or {dtype} like `x`");
                return Err(inputs.dtype_error("initial_state", &wanted));
            }
            if state_dtype != DType::F32 && sequences.longest() > 1 {
                return Err(inputs.dtype_error("initial_state", "f32, the storage type of states"));
            }
            if state_dtype != DType::F32 && inputs.get("state_indices").is_some() {
                return Err(inputs.dtype_error("initial_state", "f32, as the states of a pool"));
            }
        }
        let slots = StateSlots::parse(inputs, &sequences)?;
        let ring = positions(inputs, &sequences, state_len)?;
        Ok(Self {
            dtype,
            sequences,
            channels,
            width,
            state_len,
            state_dtype,
            slots,
            has_bias: inputs.get("bias").is_some(),
            has_initial_state: inputs.get("initial_state").is_some(),
            ring,
            activation,
            layout,
            input_bytes: inputs.bytes(),
        })
    }
}

/// The sequences of x and its channels.
fn tokens(inputs: Inputs<'_>, layout: Layout) -> Result<(Sequences, usize), OpError> {
    match layout {
        Layout::ChannelLast => {
            let sequences = inputs.sequences("x", 3, "cu_seqlens")?;
            let [channels] = inputs.token_dims("x", &sequences, [Dim::free("C")])?;
            Ok((sequences, channels))
        }
        Layout::ChannelFirst => {
            if inputs.get("cu_seqlens").is_some() {
                let what = "needs packed tokens [total, C], which layout=channel_first has not";
                return Err(inputs.value_error("cu_seqlens", what));
            }
            let dims = [Dim::free("B"), Dim::free("C"), Dim::free("T")];
            let [batch, channels, tokens] = inputs.dims("x", dims)?;
            Ok((Sequences::dense(batch, tokens), channels))
        }
    }
}

/// The ring buffer's column of each sequence's next token; `None` without `state_positions`.
fn positions(
    inputs: Inputs<'_>,
    sequences: &Sequences,
    state_len: usize,
) -> Result<Option<Vec<usize>>, OpError> {
    if inputs.get("state_positions").is_none() {
        return Ok(None);
    }
    inputs.dims("state_positions", [Dim::fixed("Nseq", sequences.count())])?;
    if inputs.get("initial_state").is_none() {
        let what = "needs the `initial_state` that it points into";
        return Err(inputs.value_error("state_positions", what));
    }
    let seen = inputs.integers("state_positions")?;
    if let Some(sequence) = seen.iter().position(|seen| *seen < 0) {
        let what = format!("is {} for sequence {sequence}, wanted zero or more", seen[sequence]);
        return Err(inputs.value_error("state_positions", what));
    }
    Ok(Some(seen.iter().map(|seen| *seen as usize % state_len).collect()))
}

impl Problem for Conv1dProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        self.sequences.dims(&[("C", self.channels), ("W", self.width)])
    }

    /// Two per tap; bias and activation are not counted.
    fn flops(&self) -> f64 {
        let tokens = self.slots.tokens(&self.sequences);
        (2 * tokens * self.channels * self.width) as f64
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + self.outputs().iter().map(OutputSpec::bytes).sum::<usize>() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let shape = match (self.layout, self.sequences.batch_and_tokens()) {
            (Layout::ChannelFirst, Some((batch, tokens))) => vec![batch, self.channels, tokens],
            _ => self.sequences.shape(&[self.channels]),
        };
        vec![
            OutputSpec { name: "o", shape, dtype: self.dtype },
            OutputSpec {
                name: "final_state",
                shape: vec![self.slots.count(), self.channels, self.state_len],
                dtype: self.state_dtype,
            },
        ]
    }
}
