//! One helper for all parity tests: a described call, and [`Case::check`], which runs every variant against the
//! float64 recurrence.

use device::Device;
use facts::BackendKind;
use kernels::kda::KdaOp;
use kernels::{Call, DType, Op, OpError, Settings, Tensor, TensorMap};

/// Values of `g` where it is the log decay itself.
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

/// Where `g` comes from.
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

#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Dense `[B, T]`, or packed offsets.
    pub(crate) lengths: Result<[usize; 2], Vec<i32>>,
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
    pub(crate) initial: bool,
    /// Slots of the pool and the slot of each sequence.
    pub(crate) pool: Option<(usize, Vec<i32>)>,
    pub(crate) gates_in_f32: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            lengths: Ok([1, 64]),
            heads: [2, 2],
            dims: [64, 64],
            gates: Gates::Decay(Decay::Soft(0.0)),
            beta: None,
            doubled: false,
            l2norm: true,
            scale: None,
            initial: true,
            pool: None,
            gates_in_f32: false,
        }
    }
}

/// splitmix64 with Box and Muller's normal numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }
}

pub(crate) const SLOT_POISON: f32 = 1e30;

impl Case {
    pub(crate) fn tokens(&self) -> usize {
        match &self.lengths {
            Ok([batch, tokens]) => batch * tokens,
            Err(offsets) => *offsets.last().unwrap() as usize,
        }
    }

    pub(crate) fn sequences(&self) -> usize {
        match &self.lengths {
            Ok([batch, _]) => *batch,
            Err(offsets) => offsets.len() - 1,
        }
    }

    fn token_shape(&self, rest: &[usize]) -> Vec<usize> {
        let mut shape = match &self.lengths {
            Ok(dense) => dense.to_vec(),
            Err(_) => vec![self.tokens()],
        };
        shape.extend(rest);
        shape
    }

    fn gate_values(&self, random: &mut Random) -> Vec<f64> {
        let [_, hv] = self.heads;
        let per_token = hv * self.dims[0];
        let count = self.tokens() * per_token;
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        match self.gates {
            Gates::Decay(Decay::Constant(value)) => vec![value; count],
            Gates::Decay(Decay::Soft(shift)) => {
                random.normals(count).iter().map(|x| -softplus(x + shift)).collect()
            }
            Gates::Decay(Decay::Mixed(values)) => {
                let pick =
                    |random: &mut Random| values[(random.uniform() * values.len() as f64) as usize];
                (0..count).map(|_| pick(random)).collect()
            }
            Gates::Decay(Decay::Cliff(value)) => {
                (0..count).map(|i| if i / per_token % 37 == 20 { value } else { -0.05 }).collect()
            }
            Gates::Logits { mean, deviation, .. } => {
                random.normals(count).iter().map(|x| mean + deviation * x).collect()
            }
        }
    }

    /// Tensors in the given storage, and settings.
    pub(crate) fn inputs(&self, dtype: DType, seed: u64) -> (TensorMap, Settings) {
        let random = &mut Random(seed);
        let ([h, hv], [k, v]) = (self.heads, self.dims);
        let tokens = self.tokens();
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, shape: Vec<usize>, values: Vec<f64>, dtype: DType| {
            tensors.insert(name.to_owned(), Tensor::new(&shape, values).cast(dtype));
        };
        let key_scale = if self.l2norm { 1.0 } else { (k as f64).powf(-0.5) };
        put("q", self.token_shape(&[h, k]), random.normals(tokens * h * k), dtype);
        let keys = random.normals(tokens * h * k).iter().map(|x| x * key_scale).collect();
        put("k", self.token_shape(&[h, k]), keys, dtype);
        put("v", self.token_shape(&[hv, v]), random.normals(tokens * hv * v), dtype);
        let gate_dtype = if self.gates_in_f32 { DType::F32 } else { dtype };
        put("g", self.token_shape(&[hv, k]), self.gate_values(random), gate_dtype);
        let mut settings = Settings::new();
        let beta = match (self.beta, self.gates) {
            (Some(beta), _) => vec![beta; tokens * hv],
            (None, Gates::Decay(_)) => (0..tokens * hv).map(|_| random.uniform()).collect(),
            (None, Gates::Logits { .. }) => {
                random.normals(tokens * hv).iter().map(|x| 2.0 * x).collect()
            }
        };
        put("beta", self.token_shape(&[hv]), beta, gate_dtype);
        if let Gates::Logits { gate, lower_bound, bias, .. } = self.gates {
            let a_log = (0..hv).map(|_| random.uniform() * 2.0 - 1.0).collect();
            put("A_log", vec![hv], a_log, DType::F32);
            settings.set("gate", gate);
            if let Some(bound) = lower_bound {
                settings.set("lower_bound", bound);
            }
            if let Some(bias) = bias {
                let sign = |random: &mut Random| if random.uniform() < 0.5 { -bias } else { bias };
                put("dt_bias", vec![hv * k], (0..hv * k).map(|_| sign(random)).collect(), dtype);
            }
            if self.doubled {
                settings.set("allow_neg_eigval", true);
            }
        }
        if self.l2norm {
            settings.set("l2norm", true);
        }
        if let Some(scale) = self.scale {
            settings.set("scale", scale);
        }
        let slots = self.pool.as_ref().map_or(self.sequences(), |(slots, _)| *slots);
        if self.initial {
            let mut states = random.normals(slots * hv * k * v);
            if let Some((_, indices)) = &self.pool {
                for slot in (0..slots).filter(|slot| !indices.contains(&(*slot as i32))) {
                    states[slot * hv * k * v..][..hv * k * v].fill(f64::from(SLOT_POISON));
                }
            }
            put("initial_state", vec![slots, hv, k, v], states, DType::F32);
        }
        if let Err(offsets) = &self.lengths {
            tensors.insert("cu_seqlens".into(), Tensor::new(&[offsets.len()], offsets.clone()));
        }
        if let Some((_, indices)) = &self.pool {
            tensors.insert("state_indices".into(), Tensor::new(&[indices.len()], indices.clone()));
        }
        (tensors, settings)
    }

    /// Every variant that can run this, in every storage type, against the recurrence.
    pub(crate) fn check(&self) {
        for (seed, dtype) in [(1, DType::F32), (2, DType::Bf16), (3, DType::F16)] {
            self.check_stored(dtype, seed);
        }
    }

    pub(crate) fn check_stored(&self, dtype: DType, seed: u64) {
        let (tensors, settings) = self.inputs(dtype, seed);
        let call = bind(&tensors, &settings).unwrap();
        let reference = call.reference();
        let device = cpu();
        let mut ran = 0;
        for (variant, _) in KdaOp.variants() {
            let Some(outputs) = run(call.as_ref(), &device, variant) else { continue };
            ran += 1;
            for (name, expected) in &reference {
                let limit = tolerance(variant, name, dtype);
                let what = format!("{variant} {dtype} {name} of {self:?}");
                compare(&outputs[name].to_f64(), &expected.to_f64(), limit, &what);
            }
        }
        // The token loops run anything, so every instruction set of this machine gave at least one result.
        assert!(ran >= device.capabilities().isas.len().min(3), "{ran} variants ran {self:?}");
    }
}

/// Limits on `||out - ref|| / ||ref||`, with the inputs rounded alike on both sides. The state is computed and
/// stored in f32 whatever the storage of the inputs, so only products in bfloat16 widen its limit.
pub(crate) fn tolerance(variant: &str, output: &str, dtype: DType) -> f64 {
    match (output, dtype) {
        _ if variant.ends_with("bf16") => 5e-3,
        ("final_state", _) | (_, DType::F32) => 1e-5,
        (_, DType::F16) => 2e-3,
        _ => 5e-3,
    }
}

pub(crate) fn cpu() -> Device {
    device::open(BackendKind::Cpu).unwrap()
}

pub(crate) fn bind<'a>(
    tensors: &'a TensorMap,
    settings: &Settings,
) -> Result<Box<dyn Call + 'a>, OpError> {
    KdaOp.bind(tensors, settings)
}

/// Outputs of one variant, poisoned before and seen launched; `None` when the variant refuses the call.
pub(crate) fn run(call: &dyn Call, device: &Device, variant: &str) -> Option<TensorMap> {
    let mut execution = match call.prepare(device, variant) {
        Ok(execution) => execution,
        Err(OpError::Refused { reason, .. }) => {
            assert!(!reason.is_empty());
            return None;
        }
        Err(error) => panic!("{variant}: {error}"),
    };
    execution.poison().unwrap();
    let before = device.launches().of(execution.kernel()).count;
    execution.launch().unwrap();
    assert_eq!(execution.kernel(), format!("kda.{variant}"));
    assert!(device.launches().of(execution.kernel()).count > before, "{variant} was not launched");
    Some(execution.outputs().unwrap().clone())
}

pub(crate) fn relative_error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let difference: f64 = out.iter().zip(reference).map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = reference.iter().map(|x| x * x).sum();
    // A state that only decays leaves the range of f32: below this norm only its smallness is checked.
    difference.sqrt() / norm.sqrt().max(1e-32)
}

pub(crate) fn compare(out: &[f64], reference: &[f64], limit: f64, what: &str) {
    let error = relative_error(out, reference);
    // Written so that NaN fails.
    assert!(error <= limit, "relative error {error:.2e} > {limit:.0e}: {what}");
}
