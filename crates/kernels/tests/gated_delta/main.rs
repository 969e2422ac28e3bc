//! `gated_delta`: every variant this machine has against the float64 recurrence, and against `kda` with equal channels.
#![allow(clippy::unwrap_used)] // In the helpers too: what cannot be unwrapped is the failure.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use kernels::gated_delta::GatedDeltaOp;
use kernels::kda::KdaOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, ints, launch_all, relative};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A call in sizes.
#[derive(Clone)]
struct Case {
    name: &'static str,
    batch: usize,
    tokens: usize,
    /// Offsets of packed sequences, in place of batch and tokens.
    packed: Option<Vec<i32>>,
    /// H and HV.
    heads: [usize; 2],
    /// K and V.
    dims: [usize; 2],
    /// Range of the log decays.
    decay: (f64, f64),
    /// Range of the write strengths.
    beta: (f64, f64),
    /// Gates and strengths as logits, with this deviation of the biases.
    logits: Option<f64>,
    initial: bool,
    /// Slots of the pool, and the slot of each sequence.
    pool: Option<(usize, Vec<i32>)>,
    settings: Settings,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "plain",
            batch: 1,
            tokens: 70,
            packed: None,
            heads: [2, 4],
            dims: [32, 40],
            decay: (-1.0, 0.0),
            beta: (0.0, 1.0),
            logits: None,
            initial: true,
            pool: None,
            settings: Settings::new().with("l2norm", true),
        }
    }
}

impl Case {
    fn tensors(&self, dtype: DType) -> TensorMap {
        let random = &mut Random(self.name.len() as u64 + self.tokens as u64);
        let ([h, hv], [k, v]) = (self.heads, self.dims);
        let rows = match &self.packed {
            Some(offsets) => vec![*offsets.last().unwrap() as usize],
            None => vec![self.batch, self.tokens],
        };
        let shape = |rest: &[usize]| [&rows, rest].concat();
        let sequences = self.packed.as_ref().map_or(self.batch, |offsets| offsets.len() - 1);
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("q", random.tensor(&shape(&[h, k]), dtype));
        put("k", random.tensor(&shape(&[h, k]), dtype));
        put("v", random.tensor(&shape(&[hv, v]), dtype));
        let (mut gates, mut strengths) = (self.decay, self.beta);
        if let Some(bias) = self.logits {
            (gates, strengths) = ((-4.0, 4.0), (-4.0, 4.0));
            put("A_log", random.range(&[hv], DType::F32, -1.0, 2.0));
            put("dt_bias", random.range(&[hv], DType::F32, -bias, bias));
        }
        // Slow gates in a narrower type than float32 would all be the same.
        put("g", random.range(&shape(&[hv]), DType::F32, gates.0, gates.1));
        put("beta", random.range(&shape(&[hv]), dtype, strengths.0, strengths.1));
        if self.initial {
            let slots = self.pool.as_ref().map_or(sequences, |(slots, _)| *slots);
            put("initial_state", random.tensor(&[slots, hv, k, v], DType::F32));
        }
        if let Some(offsets) = &self.packed {
            put("cu_seqlens", ints(offsets));
        }
        if let Some((_, indices)) = &self.pool {
            put("state_indices", ints(indices));
        }
        tensors
    }

    fn check(&self) {
        for dtype in ALL {
            check(self.name, &GatedDeltaOp, &self.tensors(dtype), &self.settings);
        }
    }
}

#[test]
fn every_length_around_the_blocks() {
    for tokens in [0, 1, 2, 8, 9, 16, 17, 31, 33, 65] {
        for initial in [false, true] {
            Case { name: "lengths", batch: 2, tokens, initial, ..Case::default() }.check();
        }
    }
    Case { name: "no sequence", batch: 0, tokens: 5, ..Case::default() }.check();
}

#[test]
fn odd_and_unequal_sizes() {
    for dims in [[1, 1], [3, 17], [60, 60], [64, 128], [40, 8], [16, 0]] {
        for (tokens, heads) in [(1, [1, 3]), (40, [3, 3]), (40, [1, 1])] {
            Case { name: "sizes", tokens, heads, dims, ..Case::default() }.check();
        }
    }
}

#[test]
fn decays_from_none_to_all_and_strengths_up_to_reflections() {
    let decays =
        [(0.0, 0.0), (-1e-6, 0.0), (-20.0, -20.0), (-20.0, 0.0), (-1e4, 0.0), (-5.0, -5.0)];
    for decay in decays {
        for beta in [(0.0, 1e-3), (0.999, 1.0), (2.0, 2.0)] {
            for tokens in [3, 90] {
                Case { name: "extremes", tokens, decay, beta, ..Case::default() }.check();
            }
        }
    }
    let wiped = f64::NEG_INFINITY;
    let mut tensors = Case::default().tensors(DType::F32);
    let mut g = tensors["g"].to_f64();
    g.iter_mut().step_by(23).for_each(|g| *g = wiped);
    tensors.insert("g".into(), Tensor::new(tensors["g"].shape(), g).cast(DType::F32));
    check("wiped heads", &GatedDeltaOp, &tensors, &Settings::new().with("l2norm", true));
}

#[test]
fn the_slowest_gate_over_a_long_sequence() {
    // A decay rounded to f32 is wrong the same way at every token; over 1500 tokens that would show.
    let decay = (-1e-4, -1e-4);
    let (heads, beta) = ([1, 1], (0.0, 0.02));
    Case { name: "slow", tokens: 1500, heads, decay, beta, ..Case::default() }.check();
}

#[test]
fn logits_of_gates_and_strengths() {
    for bias in [0.0, 8.0] {
        for (tokens, batch) in [(1, 5), (70, 1)] {
            let case =
                Case { name: "logits", batch, tokens, logits: Some(bias), ..Case::default() };
            case.check();
            let settings = case.settings.clone().with("allow_neg_eigval", true);
            Case { name: "doubled", settings, ..case }.check();
        }
    }
}

#[test]
fn packed_sequences_and_pools() {
    for offsets in [vec![0, 15], vec![0, 0, 7, 7, 80, 80], vec![0, 1, 2, 3, 60], vec![0]] {
        Case { name: "packed", packed: Some(offsets), ..Case::default() }.check();
    }
    let pool = |slots, indices| Case { pool: Some((slots, indices)), ..Case::default() };
    Case { name: "decode", batch: 5, tokens: 1, ..pool(9, vec![8, -1, 0, 3, 4]) }.check();
    let packed = Some(vec![0, 20, 20, 60, 61]);
    Case { name: "pool", packed, ..pool(6, vec![5, 0, -7, 2]) }.check();
}

#[test]
fn scale_and_raw_keys() {
    let settings = Settings::new().with("scale", -0.5);
    let dims = [8, 24];
    Case { name: "raw", tokens: 20, dims, beta: (0.0, 0.1), settings, ..Case::default() }.check();
}

/// What the README rests on: with a channel's gate repeated, `kda` computes this op.
#[test]
fn kda_with_equal_channels_gives_the_same_bits() {
    for tokens in [1, 70] {
        for logits in [None, Some(1.0)] {
            let case = Case { tokens, logits, ..Case::default() };
            for dtype in ALL {
                let own = case.tensors(dtype);
                let mut wide = own.clone();
                for name in ["g", "dt_bias"] {
                    let Some(tensor) = own.get(name) else { continue };
                    let repeated = tensor.to_f64().iter().flat_map(|x| [*x; 32]).collect();
                    let shape = [tensor.shape(), &[32]].concat();
                    wide.insert(name.into(), Tensor::new(&shape, repeated).cast(tensor.dtype()));
                }
                let ours = launch_all(&GatedDeltaOp, &own, &case.settings);
                assert_eq!(ours, launch_all(&KdaOp, &wide, &case.settings), "{tokens} {dtype}");
                let ours = GatedDeltaOp.bind(&own, &case.settings).unwrap().reference();
                let wide = KdaOp.bind(&wide, &case.settings).unwrap().reference();
                for (name, ours) in ours {
                    assert!(relative(&ours.to_f64(), &wide[&name].to_f64()) < 1e-12, "{name}");
                }
            }
        }
    }
}
