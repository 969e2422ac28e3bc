//! The contract of `kda`: tensors, settings and the checked call.

use super::{GateKind, KdaOptions};
use crate::settings::refused;
use crate::{
    DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, Sequences, SettingKind, SettingSpec,
    StateSlots, TensorSpec,
};

pub(crate) const fn required(
    name: &'static str,
    shape: &'static str,
    about: &'static str,
) -> TensorSpec {
    TensorSpec { name, shape, required: true, about }
}

pub(crate) const fn optional(
    name: &'static str,
    shape: &'static str,
    about: &'static str,
) -> TensorSpec {
    TensorSpec { name, shape, required: false, about }
}

/// The tensors and settings that `kda` and `gated_delta` share.
pub(crate) mod shared {
    use super::{SettingKind, SettingSpec, TensorSpec, optional, required};
    use crate::spec::setting;

    pub(crate) const Q: TensorSpec = required("q", "[B, T, H, K]", "queries");
    pub(crate) const K: TensorSpec = required("k", "[B, T, H, K]", "keys");
    pub(crate) const V: TensorSpec =
        required("v", "[B, T, HV, V]", "values; value head hv uses query/key head hv / (HV / H)");
    pub(crate) const BETA: TensorSpec =
        required("beta", "[B, T, HV]", "write strength, or its logits when A_log is given");
    pub(crate) const A_LOG: TensorSpec =
        optional("A_log", "[HV]", "log of the gate's rate; its presence makes g and beta logits");
    pub(crate) const INITIAL_STATE: TensorSpec = optional(
        "initial_state",
        "[N, HV, K, V]",
        "state before the first token; zero when absent",
    );
    pub(crate) const CU_SEQLENS: TensorSpec = optional(
        "cu_seqlens",
        "[N + 1]",
        "offsets of packed sequences; tensors are then [total, ..]",
    );
    pub(crate) const STATE_INDICES: TensorSpec = optional(
        "state_indices",
        "[N]",
        "slot of each sequence in initial_state, which is then a pool [slots, HV, K, V]; negative: skip",
    );
    pub(crate) const OUTPUTS: &[TensorSpec] = &[
        required("o", "[B, T, HV, V]", "outputs"),
        required(
            "final_state",
            "[N, HV, K, V]",
            "state after the last token, f32; shaped like the pool",
        ),
    ];
    pub(crate) const DO: TensorSpec = required("do", "[B, T, HV, V]", "gradient of o, in its type");
    pub(crate) const DFINAL_STATE: TensorSpec =
        optional("dfinal_state", "[N, HV, K, V]", "gradient of final_state, in its type");
    pub(crate) const GRADIENTS: &[TensorSpec] = &[
        required("dq", "like q", "gradient of q, in its type"),
        required("dk", "like k", "gradient of k, in its type"),
        required("dv", "like v", "gradient of v, in its type"),
        required("dg", "like g", "gradient of g as given, in its type"),
        required("dbeta", "like beta", "gradient of beta as given, in its type"),
        optional("dA_log", "[HV]", "gradient of A_log, in its type"),
        optional("ddt_bias", "like dt_bias", "gradient of dt_bias, in its type"),
        optional("dinitial_state", "like initial_state", "gradient of it, in its type"),
    ];
    pub(crate) const SCALE: SettingSpec =
        setting("scale", SettingKind::Number, "K^-1/2", "factor on the queries");
    pub(crate) const L2NORM: SettingSpec = setting(
        "l2norm",
        SettingKind::Bool,
        "false",
        "divide each query and key by sqrt(sum of squares + 1e-6)",
    );
    pub(crate) const ALLOW_NEG_EIGVAL: SettingSpec = setting(
        "allow_neg_eigval",
        SettingKind::Bool,
        "false",
        "beta = 2 sigmoid(logit), so that I - beta k k^T may have negative eigenvalues",
    );
}
use shared::{
    A_LOG, ALLOW_NEG_EIGVAL, BETA, CU_SEQLENS, INITIAL_STATE, K, L2NORM, OUTPUTS, Q, SCALE,
    STATE_INDICES, V,
};

pub(super) const SPEC: OpSpec = OpSpec {
    name: "kda",
    summary: "Kimi Delta Attention: delta rule with one decay per key channel",
    inputs: &[
        Q,
        K,
        V,
        required("g", "[B, T, HV, K]", "log decay (<= 0), or gate logits when A_log is given"),
        BETA,
        A_LOG,
        optional("dt_bias", "[HV, K]", "added to the gate logits; also taken as [HV*K]"),
        INITIAL_STATE,
        CU_SEQLENS,
        STATE_INDICES,
    ],
    outputs: OUTPUTS,
    settings: &[
        SettingSpec {
            name: "gate",
            kind: SettingKind::Choice(&GATES),
            default: "plain",
            about: "plain: -exp(A_log) softplus(g + dt_bias); safe: lower_bound sigmoid(exp(A_log) (g + dt_bias))",
        },
        SettingSpec {
            name: "lower_bound",
            kind: SettingKind::Number,
            default: "-5",
            about: "smallest log decay of the safe gate, below 0",
        },
        SCALE,
        L2NORM,
        ALLOW_NEG_EIGVAL,
    ],
};

pub(super) const GATES: [&str; 2] = ["plain", "safe"];

/// How the log decay comes from `g`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `g` is the log decay itself.
    LogDecay,
    /// `-exp(A_log) * softplus(g + dt_bias)`.
    Plain,
    /// `lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`.
    Safe {
        /// The smallest log decay, below 0.
        lower_bound: f64,
    },
}

/// How the write strength comes from `beta`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Beta {
    /// `beta` is the write strength itself.
    AsGiven,
    /// `factor * sigmoid(beta)`.
    Sigmoid {
        /// 1, or 2 where negative eigenvalues are allowed.
        factor: f64,
    },
}

/// How many decays a value head has at a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decays {
    /// One for each key channel: `kda`.
    PerChannel,
    /// One that all key channels share: `gated_delta`.
    PerHead,
}

/// A checked call of the delta rule: of `kda`, or of `gated_delta`, which differs in its [`Decays`] alone.
#[derive(Debug, Clone, PartialEq)]
pub struct KdaProblem {
    /// Tokens of each sequence.
    pub sequences: Sequences,
    /// Query and key heads, H.
    pub heads: usize,
    /// Value heads, HV, a multiple of H.
    pub value_heads: usize,
    /// Channels of a query or key, K.
    pub key_dim: usize,
    /// Channels of a value, V.
    pub value_dim: usize,
    /// Storage type of q, k, v and o.
    pub dtype: DType,
    /// How many decays a value head has.
    pub decays: Decays,
    /// Storage type of g: that of q, or f32.
    pub gate_dtype: DType,
    /// How the log decay comes from `g`.
    pub gate: Gate,
    /// How the write strength comes from `beta`.
    pub beta: Beta,
    /// Factor of the queries.
    pub scale: f64,
    /// Whether queries and keys are L2-normalised.
    pub l2norm: bool,
    /// Whether there is an `initial_state`.
    pub has_initial_state: bool,
    /// Storage type of `initial_state`; f32 without one.
    pub state_dtype: DType,
    /// Rows of the states that each sequence uses.
    pub slots: StateSlots,
}

impl KdaProblem {
    /// The query/key head that a value head uses.
    pub fn head_of(&self, value_head: usize) -> usize {
        value_head / (self.value_heads / self.heads)
    }

    /// Gates of a value head at a token: K, or 1.
    pub fn gate_dim(&self) -> usize {
        match self.decays {
            Decays::PerChannel => self.key_dim,
            Decays::PerHead => 1,
        }
    }

    /// Elements of one head's state, K * V.
    pub fn state_len(&self) -> usize {
        self.key_dim * self.value_dim
    }
}

impl Problem for KdaProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let (batch, tokens) = match self.sequences.batch_and_tokens() {
            Some((batch, tokens)) => (("B", batch), ("T", tokens)),
            None => (("N", self.sequences.count()), ("total", self.sequences.total())),
        };
        [
            batch,
            tokens,
            ("H", self.heads),
            ("HV", self.value_heads),
            ("K", self.key_dim),
            ("V", self.value_dim),
        ]
        .map(|(name, size)| (name, size as u64))
        .to_vec()
    }

    /// Operations of the recurrence, not of the chunk form: per token and value head, for each state element, one
    /// multiplication for the decay and one multiply-add each for the read `k^T S`, the write and the output.
    fn flops(&self) -> f64 {
        let tokens = self.slots.tokens(&self.sequences);
        7.0 * tokens as f64 * self.value_heads as f64 * self.state_len() as f64
    }

    fn bytes(&self) -> f64 {
        let tokens = self.sequences.total() as f64;
        let value_heads = self.value_heads as f64;
        let q_and_k = 2.0 * tokens * (self.heads * self.key_dim) as f64;
        let v_and_o = 2.0 * tokens * value_heads * self.value_dim as f64;
        let gates = tokens * value_heads * (self.gate_dim() as f64 + 1.0);
        let states = (self.slots.count() * self.value_heads * self.state_len()) as f64
            * if self.has_initial_state { 2.0 } else { 1.0 };
        (q_and_k + v_and_o) * self.dtype.bytes() as f64
            + gates * self.gate_dtype.bytes() as f64
            + states * DType::F32.bytes() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let o = self.sequences.shape(&[self.value_heads, self.value_dim]);
        let state = vec![self.slots.count(), self.value_heads, self.key_dim, self.value_dim];
        vec![
            OutputSpec { name: "o", shape: o, dtype: self.dtype },
            OutputSpec { name: "final_state", shape: state, dtype: DType::F32 },
        ]
    }
}

/// Checks a call of `kda` or `gated_delta`, according to `decays`.
pub(crate) fn parse(
    inputs: Inputs<'_>,
    options: &KdaOptions,
    decays: Decays,
) -> Result<KdaProblem, OpError> {
    let sequences = inputs.sequences("q", 4, "cu_seqlens")?;
    let [heads, key_dim] = inputs.token_dims("q", &sequences, [Dim::free("H"), Dim::free("K")])?;
    if heads == 0 || key_dim == 0 {
        return Err(inputs.shape_error("q", "at least one head and one channel"));
    }
    inputs.token_dims("k", &sequences, [Dim::fixed("H", heads), Dim::fixed("K", key_dim)])?;
    let [value_heads, value_dim] =
        inputs.token_dims("v", &sequences, [Dim::free("HV"), Dim::free("V")])?;
    if value_heads == 0 || value_heads % heads != 0 {
        return Err(inputs.shape_error("v", &format!("HV to be a multiple of H={heads}")));
    }
    let hv = Dim::fixed("HV", value_heads);
    match decays {
        Decays::PerChannel => {
            inputs.token_dims("g", &sequences, [hv, Dim::fixed("K", key_dim)])?;
        }
        Decays::PerHead => {
            inputs.token_dims("g", &sequences, [hv])?;
        }
    }
    inputs.token_dims("beta", &sequences, [hv])?;

    let dtype = inputs.storage("q")?;
    inputs.same_storage(&["k", "v"], dtype)?;
    // Gates are more sensitive to rounding than values, so models keep them in f32 even if values are bf16.
    for name in ["g", "beta", "A_log", "dt_bias"] {
        one_of(inputs, name, &[dtype, DType::F32])?;
    }
    one_of(inputs, "initial_state", &[DType::F32, DType::Bf16])?;

    let (gate, beta) = gate_and_beta(inputs, options)?;
    if gate != Gate::LogDecay {
        inputs.dims("A_log", [hv])?;
        match (decays, inputs.get("dt_bias")) {
            (Decays::PerHead, Some(_)) => {
                inputs.dims("dt_bias", [hv])?;
            }
            (Decays::PerChannel, Some(bias)) if bias.shape() != [value_heads * key_dim] => {
                inputs.dims("dt_bias", [hv, Dim::fixed("K", key_dim)])?;
            }
            _ => {}
        }
    }
    let slots = StateSlots::parse(inputs, &sequences)?;
    if inputs.get("initial_state").is_some() {
        let count = if inputs.get("state_indices").is_some() { "slots" } else { "N" };
        let state = [
            Dim::fixed(count, slots.count()),
            hv,
            Dim::fixed("K", key_dim),
            Dim::fixed("V", value_dim),
        ];
        inputs.dims("initial_state", state)?;
    }
    Ok(KdaProblem {
        heads,
        value_heads,
        key_dim,
        value_dim,
        dtype,
        decays,
        gate_dtype: inputs.tensor("g").dtype(),
        gate,
        beta,
        scale: options.scale.unwrap_or((key_dim as f64).powf(-0.5)),
        l2norm: options.l2norm,
        has_initial_state: inputs.get("initial_state").is_some(),
        state_dtype: inputs.get("initial_state").map_or(DType::F32, |state| state.dtype()),
        slots,
        sequences,
    })
}

fn one_of(inputs: Inputs<'_>, name: &str, accepted: &[DType]) -> Result<(), OpError> {
    match inputs.get(name) {
        Some(tensor) if !accepted.contains(&tensor.dtype()) => {
            let mut names: Vec<&str> = accepted.iter().map(|dtype| dtype.as_str()).collect();
            names.dedup();
            Err(inputs.dtype_error(name, &names.join(" or ")))
        }
        _ => Ok(()),
    }
}

fn gate_and_beta(inputs: Inputs<'_>, options: &KdaOptions) -> Result<(Gate, Beta), OpError> {
    let wrong = |setting: &str, value: String, wanted: &str| {
        Err(refused(inputs.op(), setting, value, wanted))
    };
    let KdaOptions { gate: kind, lower_bound, allow_neg_eigval: doubled, .. } = *options;
    if inputs.get("A_log").is_none() {
        // Without A_log these options have no effect, so passing one is an error.
        if inputs.get("dt_bias").is_some() {
            return Err(
                inputs.value_error("dt_bias", "is for gate logits and needs tensor `A_log`")
            );
        }
        let given = [
            ("gate", kind.map(|kind| kind.as_str().to_owned())),
            ("lower_bound", lower_bound.map(|bound| bound.to_string())),
            ("allow_neg_eigval", doubled.map(|doubled| doubled.to_string())),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                let wanted = "nothing without tensor `A_log` (g and beta are used as given)";
                return wrong(name, value, wanted);
            }
        }
        return Ok((Gate::LogDecay, Beta::AsGiven));
    }
    let gate = match (kind.unwrap_or_default(), lower_bound) {
        (GateKind::Plain, Some(bound)) => {
            return wrong("lower_bound", bound.to_string(), "nothing unless `gate` is safe");
        }
        (GateKind::Plain, None) => Gate::Plain,
        (GateKind::Safe, bound) => Gate::Safe { lower_bound: bound.unwrap_or(-5.0) },
    };
    if let Gate::Safe { lower_bound } = gate
        && lower_bound >= 0.0
    {
        return wrong("lower_bound", lower_bound.to_string(), "a number below 0");
    }
    let factor = if doubled == Some(true) { 2.0 } else { 1.0 };
    Ok((gate, Beta::Sigmoid { factor }))
}
