//! Test cases, their tensors, and the check of every variant.

use device::Device;
use facts::BackendKind;
use ops::nsa::NsaOp;
use ops::{Call, DType, Op, Settings, Tensor, TensorMap};

pub(crate) const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// Values from a fixed sequence, so that failures are reproducible.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Approximately normal values with standard deviation `scale`, rounded to `dtype`.
    pub(crate) fn tensor(&mut self, shape: &[usize], scale: f64, dtype: DType) -> Tensor {
        let values = (0..shape.iter().product()).map(|_| {
            ((0..6).map(|_| self.unit()).sum::<f64>() - 3.0) * std::f64::consts::SQRT_2 * scale
        });
        Tensor::new(shape, values.collect::<Vec<f64>>()).cast(dtype)
    }
}

/// Sizes and options of one call.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Numbers of queries and of keys (Tq, Tk) of each sequence.
    pub(crate) sequences: Vec<(usize, usize)>,
    pub(crate) packed: bool,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) d: usize,
    pub(crate) dv: usize,
    /// Branches present, one character each: `c` compressed, `s` selected, `w` window.
    pub(crate) branches: &'static str,
    /// Whether compressed keys and values are a learned projection of a block instead of its mean.
    pub(crate) learned: bool,
    /// Whether the projection adds positions.
    pub(crate) positions: bool,
    pub(crate) settings: Settings,
}

impl Case {
    /// `batch` sequences of `tq` queries at the end of `tk` keys.
    pub(crate) fn dense(name: &'static str, batch: usize, tq: usize, tk: usize) -> Self {
        Self {
            name,
            sequences: vec![(tq, tk); batch],
            packed: false,
            heads: 2,
            kv_heads: 1,
            d: 16,
            dv: 16,
            branches: "csw",
            learned: false,
            positions: false,
            settings: Settings::new(),
        }
    }

    pub(crate) fn packed(name: &'static str, sequences: &[(usize, usize)]) -> Self {
        Self { sequences: sequences.to_vec(), packed: true, ..Self::dense(name, 0, 0, 0) }
    }

    pub(crate) fn heads(self, heads: usize, kv_heads: usize) -> Self {
        Self { heads, kv_heads, ..self }
    }

    pub(crate) fn sizes(self, d: usize, dv: usize) -> Self {
        Self { d, dv, ..self }
    }

    pub(crate) fn branches(self, branches: &'static str) -> Self {
        Self { branches, ..self }
    }

    pub(crate) fn learned(self, positions: bool) -> Self {
        Self { learned: true, positions, ..self }.set("pooling", "learned")
    }

    pub(crate) fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    /// Compressed and selected blocks of `block` tokens without overlap, as in fla (flash-linear-attention).
    pub(crate) fn aligned(self, block: usize) -> Self {
        let block = |case: Self, name| case.set(name, block);
        ["compress_block", "compress_stride", "select_block"]
            .into_iter()
            .fold(self, block)
            .set("overlap", false)
    }

    /// The paper's sizes: compressed blocks of `l` tokens with stride `d`, and `count` selected blocks of `select` tokens.
    pub(crate) fn blocks(self, l: usize, d: usize, select: usize, count: usize) -> Self {
        self.set("compress_block", l)
            .set("compress_stride", d)
            .set("select_block", select)
            .set("select_count", count)
    }

    /// Tokens of a compressed block.
    fn block(&self) -> usize {
        let set = self.settings.iter().find(|(name, _)| *name == "compress_block");
        set.map_or(32, |(_, value)| value.parse().unwrap())
    }

    pub(crate) fn tensors(&self, dtype: DType) -> TensorMap {
        let mut random = Random(7);
        let total =
            |side: fn(&(usize, usize)) -> usize| self.sequences.iter().map(side).sum::<usize>();
        let (queries, keys) = (total(|s| s.0), total(|s| s.1));
        let shape = |tokens: usize, rest: &[usize]| {
            let batch = self.sequences.len();
            let lead = if self.packed { vec![tokens] } else { vec![batch, tokens / batch.max(1)] };
            [lead, rest.to_vec()].concat()
        };
        let mut tensors = TensorMap::new();
        let mut add = |name: &str, shape: Vec<usize>, scale: f64| {
            tensors.insert(name.to_owned(), random.tensor(&shape, scale, dtype));
        };
        // Queries are large, so that the softmax is not nearly uniform.
        add("q", shape(queries, &[self.heads, self.d]), 2.0);
        add("k", shape(keys, &[self.kv_heads, self.d]), 1.0);
        add("v", shape(keys, &[self.kv_heads, self.dv]), 1.0);
        for (letter, gate) in [('c', "g_cmp"), ('s', "g_slc"), ('w', "g_swa")] {
            if self.branches.contains(letter) {
                add(gate, shape(queries, &[self.heads]), 1.0);
            }
        }
        if self.learned {
            let l = self.block();
            for (side, size) in [("k", self.d), ("v", self.dv)] {
                let weight = vec![self.kv_heads, l * size, size];
                add(&format!("cmp_{side}_weight"), weight, 1.0 / ((l * size) as f64).sqrt());
                if self.positions {
                    add(&format!("cmp_{side}_pos"), vec![self.kv_heads, l, size], 0.5);
                }
            }
        }
        if self.packed {
            let mut offsets = |name: &str, side: fn(&(usize, usize)) -> usize| {
                let mut offsets = vec![0i32];
                for sequence in &self.sequences {
                    offsets.push(offsets[offsets.len() - 1] + side(sequence) as i32);
                }
                tensors.insert(name.into(), Tensor::new(&[offsets.len()], offsets));
            };
            offsets("cu_seqlens", |s| s.0);
            if self.sequences.iter().any(|(tq, tk)| tq != tk) {
                offsets("cu_seqlens_k", |s| s.1);
            }
        }
        tensors
    }
}

pub(crate) fn cpu() -> Device {
    backends::open(BackendKind::Cpu).unwrap()
}

/// Variants that this machine can run for a call.
pub(crate) fn variants(call: &Call<'_>, device: &Device) -> Vec<&'static str> {
    let names = backends::variants("nsa").into_iter().map(|(name, _)| name);
    let here: Vec<_> = names.filter(|name| call.select(device, Some(name)).is_ok()).collect();
    assert!(!here.is_empty(), "no variant runs here");
    here
}

/// The outputs of one launch, poisoned before it; the launch must have been counted.
pub(crate) fn launch(call: &Call<'_>, device: &Device, variant: &str) -> TensorMap {
    let mut execution = call.prepare(device, variant).unwrap();
    execution.poison().unwrap();
    let kernel = execution.kernel().to_owned();
    let before = device.launches().of(&kernel).count;
    execution.launch().unwrap();
    assert_eq!(device.launches().of(&kernel).count, before + 1, "{kernel}");
    execution.outputs().unwrap().clone()
}

/// `||got - want|| / ||want||`; NaN if a value is NaN.
pub(crate) fn relative(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    assert_eq!(got.len(), want.len());
    let difference: f64 = got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = want.iter().map(|b| b * b).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

pub(crate) fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 5e-3,
        DType::F16 => 2e-3,
        _ => 1e-5,
    }
}

/// Compares every variant with the reference, which checks the variant's selected blocks and then attends to them.
#[track_caller]
pub(crate) fn check_tensors(name: &str, tensors: &TensorMap, settings: &Settings) {
    let device = cpu();
    let call = NsaOp.bind(tensors, settings).unwrap();
    let dtype = call.problem().dtype();
    for variant in variants(&call, &device) {
        let name = format!("{name} {dtype} {variant}");
        let got = launch(&call, &device, variant);
        let want = call.reference_for(&got).unwrap_or_else(|broken| panic!("{name}: {broken}"));
        assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{name}");
        for (output, want) in &want {
            assert_eq!(got[output].shape(), want.shape(), "{name} {output}");
            let error = relative(&got[output], want);
            let limit = if output == "o" { limit(dtype) } else { 0.0 };
            assert!(error <= limit, "{name} {output}: {error:e} > {limit:e}");
        }
    }
}

#[track_caller]
pub(crate) fn check(case: Case, dtypes: &[DType]) {
    for dtype in dtypes {
        check_tensors(case.name, &case.tensors(*dtype), &case.settings);
    }
}
