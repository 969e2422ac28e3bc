//! Calls of attention by their shape, with reproducible inputs, and the one check that runs them.

use device::Device;
use facts::BackendKind;
use ops::{Call, DType, Settings, Tensor, TensorMap};

/// A call of attention.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) value_dim: usize,
    /// Offsets of packed queries and keys.
    pub(crate) packed: Option<(Vec<i32>, Vec<i32>)>,
    pub(crate) settings: Settings,
    /// Standard deviation of q.
    pub(crate) spread: f64,
}

impl Case {
    /// `batch` sequences of as many keys as queries.
    pub(crate) fn new(batch: usize, tokens: usize, heads: usize, dim: usize) -> Self {
        Self {
            batch,
            queries: tokens,
            keys: tokens,
            heads,
            kv_heads: heads,
            dim,
            value_dim: dim,
            packed: None,
            settings: Settings::new(),
            spread: 1.0,
        }
    }

    pub(crate) fn keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    pub(crate) fn kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    pub(crate) fn value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    pub(crate) fn spread(self, spread: f64) -> Self {
        Self { spread, ..self }
    }

    /// Packed sequences of these numbers of queries and keys.
    pub(crate) fn packed(self, lengths: &[(usize, usize)]) -> Self {
        let offsets = |of: fn(&(usize, usize)) -> usize| {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += of(length);
                Some(*end as i32)
            });
            std::iter::once(0).chain(ends).collect::<Vec<_>>()
        };
        Self { packed: Some((offsets(|pair| pair.0), offsets(|pair| pair.1))), ..self }
    }

    pub(crate) fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    pub(crate) fn causal(self) -> Self {
        self.set("causal", true)
    }

    /// Inputs of standard normal values (q times `spread`), rounded to `dtype`.
    pub(crate) fn inputs(&self, dtype: DType) -> TensorMap {
        let last = |offsets: &Vec<i32>| vec![offsets[offsets.len() - 1] as usize];
        let (query_rows, key_rows) = match &self.packed {
            None => (vec![self.batch, self.queries], vec![self.batch, self.keys]),
            Some((queries, keys)) => (last(queries), last(keys)),
        };
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut tensor = |rows: &[usize], rest: [usize; 2], spread: f64| {
            let shape = [rows, rest.as_slice()].concat();
            let values: Vec<f64> =
                (0..shape.iter().product()).map(|_| random.normal() * spread).collect();
            Tensor::new(&shape, values).cast(dtype)
        };
        let mut inputs = TensorMap::new();
        inputs.insert("q".into(), tensor(&query_rows, [self.heads, self.dim], self.spread));
        inputs.insert("k".into(), tensor(&key_rows, [self.kv_heads, self.dim], 1.0));
        inputs.insert("v".into(), tensor(&key_rows, [self.kv_heads, self.value_dim], 1.0));
        if let Some((queries, keys)) = &self.packed {
            inputs.insert("cu_seqlens".into(), Tensor::new(&[queries.len()], queries.clone()));
            if queries != keys {
                inputs.insert("cu_seqlens_k".into(), Tensor::new(&[keys.len()], keys.clone()));
            }
        }
        inputs
    }
}

/// Reproducible values: splitmix64, and a normal distribution by the sum of twelve uniform ones.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

pub(crate) fn cpu() -> Device {
    backends::open(BackendKind::Cpu).unwrap()
}

/// Runs one variant over poisoned outputs and returns them, with the launches counted.
pub(crate) fn run(call: &Call<'_>, device: &Device, variant: &str) -> TensorMap {
    let mut execution = call.prepare(device, variant).unwrap();
    let kernel = execution.kernel().to_owned();
    let before = device.launches().of(&kernel);
    execution.poison().unwrap();
    execution.launch().unwrap();
    let after = device.launches().of(&kernel);
    assert_eq!(kernel, format!("attention.{variant}"));
    assert_eq!(after.count, before.count + 1, "{kernel} was not launched");
    execution.outputs().unwrap().clone()
}

/// The variants that can run a call on this machine: at least two.
pub(crate) fn variants(call: &Call<'_>, device: &Device) -> Vec<&'static str> {
    let all = backends::variants("attention");
    let here = all.into_iter().map(|(name, _)| name);
    let here: Vec<_> = here.filter(|name| call.select(device, Some(name)).is_ok()).collect();
    // The portable one and, on the machines this runs on, at least one with vectors.
    assert!(here.len() >= 2, "{here:?}");
    here
}

/// Every variant in every storage type against the reference.
pub(crate) fn check(case: &Case) {
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        check_inputs(&format!("{case:?}"), &case.inputs(dtype), &case.settings);
    }
}

/// Every variant on these inputs against the reference.
pub(crate) fn check_inputs(what: &str, inputs: &TensorMap, settings: &Settings) {
    let call = ops::op("attention").unwrap().bind(inputs, settings).unwrap();
    let reference = call.reference();
    let device = cpu();
    for variant in variants(&call, &device) {
        let outputs = run(&call, &device, variant);
        let dtype = inputs["q"].dtype();
        let what = format!("{variant} {dtype} {what}");
        let tolerance = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 5e-3,
        };
        assert_eq!(outputs["o"].dtype(), dtype);
        assert_eq!(outputs["lse"].dtype(), DType::F32);
        close(&format!("o of {what}"), &outputs["o"], &reference["o"], tolerance);
        // Logits are accumulated in f32 from the rounded inputs, for every storage type.
        close(&format!("lse of {what}"), &outputs["lse"], &reference["lse"], 1e-5);
    }
}

/// Relative error ||out - ref|| / ||ref||; infinities must be the same ones, and NaN never passes.
fn close(what: &str, output: &Tensor, reference: &Tensor, tolerance: f64) {
    assert_eq!(output.shape(), reference.shape(), "shape of {what}");
    let (mut error, mut norm) = (0.0, 0.0);
    for (index, (out, reference)) in output.to_f64().iter().zip(reference.to_f64()).enumerate() {
        if reference.is_infinite() {
            assert_eq!(*out, reference, "element {index} of {what}");
            continue;
        }
        assert!(out.is_finite(), "element {index} of {what} is {out}, wanted {reference}");
        error += (out - reference).powi(2);
        norm += reference.powi(2);
    }
    let relative = if norm == 0.0 { error.sqrt() } else { (error / norm).sqrt() };
    assert!(
        relative <= tolerance,
        "{what}: relative error {relative:.2e}, allowed {tolerance:.0e}"
    );
}
