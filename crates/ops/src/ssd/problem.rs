//! The contract of the op: its table, its problem and the checks of a call.

use super::SsdOptions;
use super::call::STATES;
use crate::settings::refused;
use crate::slots::StateSlots;
use crate::spec::tensor;
use crate::{
    DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, Sequences, SettingKind, SettingSpec,
};

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "ssd",
    summary: "Mamba-2 state space scan: h <- exp(dt A) h + dt x (outer) B, y = h C + D x",
    inputs: &[
        tensor("x", "[B, T, H, P] or [total, H, P]", true, "tokens by head"),
        tensor("dt", "[B, T, H]", true, "raw step sizes, in x's type or f32"),
        tensor("A", "[H]", true, "rate of each head, not positive, f32 or x's type"),
        tensor("B", "[B, T, G, N]", true, "input projections, H % G == 0"),
        tensor("C", "[B, T, G, N]", true, "output projections"),
        tensor("D", "[H] or [H, P]", false, "skip weight, f32 or x's type"),
        tensor("z", "[B, T, H, P]", false, "gate: the output is multiplied by silu(z)"),
        tensor("dt_bias", "[H]", false, "added to dt before the softplus, f32 or x's type"),
        tensor(
            "initial_state",
            "[Nseq, H, P, N]",
            false,
            "f32 or bf16; [slots, H, P, N] when indexed",
        ),
        tensor("cu_seqlens", "[Nseq + 1]", false, "i32 offsets of packed sequences"),
        tensor("state_indices", "[Nseq]", false, "i32 slot of each sequence; negative is padding"),
    ],
    outputs: &[
        tensor("o", "like x", true, "y, in x's type; 0 for padding"),
        tensor("final_state", "like initial_state", true, "state after each last token"),
    ],
    settings: &[
        SettingSpec {
            name: "dt_softplus",
            kind: SettingKind::Bool,
            default: "true",
            about: "step size is softplus(dt + dt_bias); false: dt + dt_bias as it is",
        },
        SettingSpec {
            name: "dt_min",
            kind: SettingKind::Number,
            default: "0",
            about: "lower end of the step sizes (time_step_limit), zero or more",
        },
        SettingSpec {
            name: "dt_max",
            kind: SettingKind::Number,
            default: "no limit",
            about: "upper end of the step sizes (time_step_limit)",
        },
        SettingSpec {
            name: "chunk_size",
            kind: SettingKind::Count,
            default: "the variant's choice",
            about: "tokens per chunk of the chunked variants; changes rounding only",
        },
        SettingSpec {
            name: "state_dtype",
            kind: SettingKind::Choice(&STATES),
            default: "initial_state's, or f32",
            about: "type of the states: f32, or bf16 with 16-bit x; arithmetic is f32 either way",
        },
    ],
};

/// A checked call of `ssd`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct SsdProblem {
    /// Storage type of x, B, C, z and o.
    pub dtype: DType,
    /// The sequences of the batch.
    pub sequences: Sequences,
    /// Heads, H.
    pub heads: usize,
    /// Groups of heads that share B and C, G.
    pub groups: usize,
    /// Width of a head, P.
    pub head_dim: usize,
    /// Width of the state, N.
    pub state_dim: usize,
    /// State slot of each sequence.
    pub slots: StateSlots,
    /// Whether a skip weight D is given.
    pub has_d: bool,
    /// Whether a gate z is given.
    pub has_z: bool,
    /// Whether an initial state is given; without one it is 0.
    pub has_initial_state: bool,
    /// Storage type of the states: float32 or bfloat16.
    pub state_dtype: DType,
    /// Whether softplus is applied to step sizes.
    pub dt_softplus: bool,
    /// Lower end of the step sizes.
    pub dt_min: f64,
    /// Upper end of the step sizes; infinite when there is none.
    pub dt_max: f64,
    /// Whether A, `dt_bias` and D are float32 (or absent), D is `[H]`, and dt has the type of x.
    pub small_f32: bool,
    /// Tokens per chunk, when the caller chose them.
    pub chunk_size: Option<usize>,
    /// Bytes of all tensors given.
    input_bytes: f64,
}

impl SsdProblem {
    /// Heads that share one B and C.
    pub fn heads_per_group(&self) -> usize {
        self.heads / self.groups.max(1)
    }

    /// Elements of one head's state, P * N.
    pub fn state_len(&self) -> usize {
        self.head_dim * self.state_dim
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &SsdOptions) -> Result<Self, OpError> {
        let dtype = inputs.storage("x")?;
        let sequences = inputs.sequences("x", 4, "cu_seqlens")?;
        let [heads, head_dim] =
            inputs.token_dims("x", &sequences, [Dim::free("H"), Dim::free("P")])?;
        let [groups, state_dim] =
            inputs.token_dims("B", &sequences, [Dim::free("G"), Dim::free("N")])?;
        let h = Dim::fixed("H", heads);
        let p = Dim::fixed("P", head_dim);
        let n = Dim::fixed("N", state_dim);
        if groups == 0 || heads % groups != 0 {
            let wanted = format!("a number of groups that divides the {heads} heads of `x`");
            return Err(inputs.shape_error("B", &wanted));
        }
        inputs.token_dims("C", &sequences, [Dim::fixed("G", groups), n])?;
        inputs.token_dims("dt", &sequences, [h])?;
        inputs.dims("A", [h])?;
        if inputs.get("z").is_some() {
            inputs.token_dims("z", &sequences, [h, p])?;
        }
        if inputs.get("dt_bias").is_some() {
            inputs.dims("dt_bias", [h])?;
        }
        if let Some(d) = inputs.get("D") {
            match d.shape().len() {
                2 => drop(inputs.dims("D", [h, p])?),
                _ => drop(inputs.dims("D", [h])?),
            }
        }
        inputs.same_storage(&["B", "C", "z"], dtype)?;
        inputs.f32_or_like("x", &["dt", "A", "D", "dt_bias"])?;
        check_rates(inputs)?;
        let SsdOptions { dt_softplus, dt_min, dt_max, chunk_size, .. } = *options;
        let state_dtype = state_dtype(inputs, [Dim::free("Nseq"), h, p, n], options)?;
        if state_dtype == DType::Bf16 && dtype == DType::F32 {
            // bf16 states would discard the precision of f32 inputs.
            return Err(refused(SPEC.name, "state_dtype", "bf16", "f32 with `x` in f32"));
        }
        if dt_min < 0.0 {
            return Err(refused(SPEC.name, "dt_min", dt_min, "zero or more"));
        }
        if dt_max < dt_min {
            return Err(refused(
                SPEC.name,
                "dt_max",
                dt_max,
                format!("at least dt_min = {dt_min}"),
            ));
        }
        if chunk_size == Some(0) {
            return Err(refused(SPEC.name, "chunk_size", 0, "one token or more"));
        }
        let slots = StateSlots::parse(inputs, &sequences)?;
        let is_f32 = |name| inputs.get(name).is_none_or(|tensor| tensor.dtype() == DType::F32);
        let by_head = inputs.get("D").is_none_or(|d| d.shape().len() == 1);
        let small_f32 = ["A", "D", "dt_bias"].into_iter().all(is_f32)
            && by_head
            && inputs.tensor("dt").dtype() == dtype;
        Ok(Self {
            dtype,
            heads,
            groups,
            head_dim,
            state_dim,
            slots,
            has_d: inputs.get("D").is_some(),
            has_z: inputs.get("z").is_some(),
            has_initial_state: inputs.get("initial_state").is_some(),
            state_dtype,
            dt_softplus,
            dt_min,
            dt_max,
            small_f32,
            chunk_size,
            input_bytes: inputs.bytes(),
            sequences,
        })
    }
}

/// The type of the states: that of `initial_state`, or the setting.
fn state_dtype(inputs: Inputs<'_>, dims: [Dim; 4], options: &SsdOptions) -> Result<DType, OpError> {
    const NAME: &str = "initial_state";
    let asked = options.state_dtype;
    let Some(state) = inputs.get(NAME) else { return Ok(asked.unwrap_or(DType::F32)) };
    inputs.dims(NAME, dims)?;
    match state.dtype() {
        dtype @ (DType::F32 | DType::Bf16) if asked.is_none_or(|asked| asked == dtype) => Ok(dtype),
        dtype @ (DType::F32 | DType::Bf16) => {
            let asked = asked.map_or("", DType::as_str);
            let wanted = format!("{dtype}, the type of `{NAME}`");
            Err(refused(SPEC.name, "state_dtype", asked, wanted))
        }
        _ => Err(inputs.dtype_error(NAME, "f32 or bf16, the storage types of states")),
    }
}

/// A positive rate would let the state grow without bound; every variant relies on decays of at most 1.
fn check_rates(inputs: Inputs<'_>) -> Result<(), OpError> {
    let rates = inputs.tensor("A").to_f64();
    match rates.iter().position(|rate| *rate > 0.0 || rate.is_infinite()) {
        None => Ok(()),
        Some(head) => Err(inputs.value_error(
            "A",
            format!(
                "is {} for head {head}, wanted a finite rate that is not positive (A = -exp(A_log))",
                rates[head]
            ),
        )),
    }
}

impl Problem for SsdProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let rest =
            [("H", self.heads), ("G", self.groups), ("P", self.head_dim), ("N", self.state_dim)];
        self.sequences.dims(&rest)
    }

    /// Operations of the recurrence per token: 3 per state element for the update, 2 for the output, and 2 per output element for
    /// D. The chunk form needs about 4 per state element instead of 5; the count does not depend on the variant.
    fn flops(&self) -> f64 {
        let tokens = self.slots.tokens(&self.sequences);
        let skip = if self.has_d { 2 * self.head_dim } else { 0 };
        (tokens * self.heads) as f64 * (5 * self.state_len() + skip) as f64
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + self.outputs().iter().map(OutputSpec::bytes).sum::<usize>() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![
            OutputSpec {
                name: "o",
                shape: self.sequences.shape(&[self.heads, self.head_dim]),
                dtype: self.dtype,
            },
            OutputSpec {
                name: "final_state",
                shape: vec![self.slots.count(), self.heads, self.head_dim, self.state_dim],
                dtype: self.state_dtype,
            },
        ]
    }
}
