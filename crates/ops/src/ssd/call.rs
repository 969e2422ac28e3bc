//! The typed call of `ssd`: a field for each tensor and option.

use super::SsdOp;
use crate::op::call_tensors;
use crate::{CallTensors, DType, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "ssd";

/// State types.
pub(super) const STATES: [&str; 2] = ["f32", "bf16"];

/// Options of an `ssd` call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SsdOptions {
    /// Whether softplus is applied to step sizes.
    pub dt_softplus: bool,
    /// Lower end of the step sizes, zero or more.
    pub dt_min: f64,
    /// Upper end of the step sizes; infinite when there is none.
    pub dt_max: f64,
    /// Tokens per chunk of the chunked variants.
    pub chunk_size: Option<usize>,
    /// Type of the states: f32, or bf16 if x has 16 bits. If `None`, that of `initial_state`, or f32.
    pub state_dtype: Option<DType>,
}

impl Default for SsdOptions {
    fn default() -> Self {
        let (dt_min, dt_max) = (0.0, f64::INFINITY);
        Self { dt_softplus: true, dt_min, dt_max, chunk_size: None, state_dtype: None }
    }
}

impl Options for SsdOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        let default = Self::default();
        Ok(Self {
            dt_softplus: settings.bool(OP, "dt_softplus")?.unwrap_or(default.dt_softplus),
            dt_min: settings.number(OP, "dt_min")?.unwrap_or(default.dt_min),
            dt_max: settings.number(OP, "dt_max")?.unwrap_or(default.dt_max),
            chunk_size: settings.count(OP, "chunk_size")?,
            state_dtype: settings.choice(OP, "state_dtype", &STATES)?.map(|word| match word {
                "bf16" => DType::Bf16,
                _ => DType::F32,
            }),
        })
    }

    fn key(&self, key: &mut Key) {
        key.word(u64::from(self.dt_softplus));
        key.number(self.dt_min);
        key.number(self.dt_max);
        key.count(self.chunk_size);
        key.dtype(self.state_dtype);
    }
}

/// `h <- exp(dt A) h + dt x (outer) B, y = h C + D x`.
#[derive(Debug, Clone, Copy)]
pub struct SsdCall<'a> {
    /// Tokens by head `[B, T, H, P]` or packed `[total, H, P]`.
    pub x: &'a Tensor,
    /// Raw step sizes `[B, T, H]`.
    pub dt: &'a Tensor,
    /// Rate of each head `[H]`, not positive.
    pub a: &'a Tensor,
    /// Input projections `[B, T, G, N]`.
    pub b: &'a Tensor,
    /// Output projections `[B, T, G, N]`.
    pub c: &'a Tensor,
    /// Skip weight `[H]` or `[H, P]`.
    pub d: Option<&'a Tensor>,
    /// Gate `[B, T, H, P]`.
    pub z: Option<&'a Tensor>,
    /// Added to dt before the softplus `[H]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Offsets of packed sequences `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// States `[sequences, H, P, N]`, or a pool `[slots, H, P, N]`.
    pub states: States<'a>,
    /// Options.
    pub options: SsdOptions,
    /// Output y on a GPU, shaped like x.
    pub o: Option<&'a Tensor>,
}

impl Typed for SsdCall<'_> {
    type Family = SsdOp;

    fn call_tensors(&self) -> CallTensors<'_, SsdOp> {
        let mut given = call_tensors!(SsdOp, self.options, {
            "x": self.x,
            "dt": self.dt,
            "A": self.a,
            "B": self.b,
            "C": self.c,
            "D": self.d,
            "z": self.z,
            "dt_bias": self.dt_bias,
            "cu_seqlens": self.offsets,
        } -> { "o": self.o });
        given.states(&self.states);
        given
    }
}
