//! Sizes and options of kda cases: gates and write strengths of every kind.

use crate::scan_support::Random;
use crate::scan_support::recurrent::{Case, Recurrence};
use ops::kda::KdaOp;
use ops::{DType, Op, Settings, TensorMap};

/// Values of `g` as the log decay.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Decay {
    /// The same for every token and channel.
    Constant(f64),
    /// `-softplus(N(0, 1) + shift)`.
    Soft(f64),
    /// Each element one of these, at random.
    Mixed(&'static [f64]),
    /// `-0.05`, but the given value in every channel of every 37th token.
    Cliff(f64),
}

/// Kind of the values of `g`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gates {
    Decay(Decay),
    /// Logits `N(mean, deviation)` and `dt_bias` drawn from `+-bias`; `gate` and `lower_bound` as settings.
    Logits {
        gate: &'static str,
        lower_bound: Option<f64>,
        mean: f64,
        deviation: f64,
        bias: Option<f64>,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Kda {
    /// H, HV.
    pub(crate) heads: [usize; 2],
    /// K, V.
    pub(crate) dims: [usize; 2],
    pub(crate) gates: Gates,
    /// `None`: uniform in 0..1 (or logits N(0, 2)).
    pub(crate) beta: Option<f64>,
    pub(crate) doubled: bool,
    pub(crate) l2norm: bool,
    pub(crate) scale: Option<f64>,
    pub(crate) gates_in_f32: bool,
}

impl Default for Kda {
    fn default() -> Self {
        Self {
            heads: [2, 2],
            dims: [64, 64],
            gates: Gates::Decay(Decay::Soft(0.0)),
            beta: None,
            doubled: false,
            l2norm: true,
            scale: None,
            gates_in_f32: false,
        }
    }
}

/// A case with an initial state.
pub(crate) fn case(tokens: Vec<usize>, params: Kda) -> Case<Kda> {
    let mut settings = Settings::new();
    if let Gates::Logits { gate, lower_bound, .. } = params.gates {
        settings.set("gate", gate);
        if let Some(bound) = lower_bound {
            settings.set("lower_bound", bound);
        }
        if params.doubled {
            settings.set("allow_neg_eigval", true);
        }
    }
    if params.l2norm {
        settings.set("l2norm", true);
    }
    if let Some(scale) = params.scale {
        settings.set("scale", scale);
    }
    Case { name: "kda", tokens, initial: true, settings, ..Case::with(params) }
}

impl Kda {
    /// The log decay or logit of an element of `g`, by its index.
    fn gate(&self, random: &mut Random, index: usize) -> f64 {
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        match self.gates {
            Gates::Decay(Decay::Constant(value)) => value,
            Gates::Decay(Decay::Soft(shift)) => -softplus(random.normal() + shift),
            Gates::Decay(Decay::Mixed(values)) => {
                values[random.uniform(0.0, values.len() as f64) as usize]
            }
            Gates::Decay(Decay::Cliff(value)) => {
                let token = index / (self.heads[1] * self.dims[0]);
                if token % 37 == 20 { value } else { -0.05 }
            }
            Gates::Logits { mean, deviation, .. } => mean + deviation * random.normal(),
        }
    }
}

impl Recurrence for Kda {
    const OP: &'static dyn Op = &KdaOp;
    const PER_TOKEN_TENSORS: &'static [&'static str] = &["q", "k", "v", "g", "beta"];
    const TOKENS: usize = 64;

    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap {
        let ([h, hv], [k, v]) = (self.heads, self.dims);
        let gate_dtype = if self.gates_in_f32 { DType::F32 } else { dtype };
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        let key_scale = if self.l2norm { 1.0 } else { (k as f64).powf(-0.5) };
        put("q", random.generate(&case.shape(&[h, k]), dtype, Random::normal));
        put(
            "k",
            random.generate(&case.shape(&[h, k]), dtype, |random| random.normal() * key_scale),
        );
        put("v", random.generate(&case.shape(&[hv, v]), dtype, Random::normal));
        let mut index = 0;
        let gates = random.generate(&case.shape(&[hv, k]), gate_dtype, |random| {
            index += 1;
            self.gate(random, index - 1)
        });
        put("g", gates);
        let logits = matches!(self.gates, Gates::Logits { .. });
        let beta = random.generate(&case.shape(&[hv]), gate_dtype, |random| match self.beta {
            Some(beta) => beta,
            None if logits => 2.0 * random.normal(),
            None => random.uniform(0.0, 1.0),
        });
        put("beta", beta);
        if let Gates::Logits { bias, .. } = self.gates {
            put("A_log", random.range(&[hv], DType::F32, -1.0, 1.0));
            if let Some(bias) = bias {
                let sign =
                    |random: &mut Random| if random.uniform(0.0, 1.0) < 0.5 { -bias } else { bias };
                put("dt_bias", random.generate(&[hv * k], dtype, sign));
            }
        }
        tensors
    }

    fn state(&self) -> Vec<usize> {
        let ([_, hv], [k, v]) = (self.heads, self.dims);
        vec![hv, k, v]
    }
}
