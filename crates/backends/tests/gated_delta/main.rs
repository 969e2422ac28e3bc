//! `gated_delta`: every variant this machine has against the float64 recurrence, and against `kda` with equal channels.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::gated_delta::GatedDeltaOp;
use ops::kda::KdaOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::recurrent::{ALL, Case, Recurrence};
use scan_support::{Random, check, launch_all, relative};

/// Sizes and options of a gated_delta case.
#[derive(Clone, Copy)]
struct Delta {
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
}

impl Default for Delta {
    fn default() -> Self {
        let (decay, beta) = ((-1.0, 0.0), (0.0, 1.0));
        Self { heads: [2, 4], dims: [32, 40], decay, beta, logits: None }
    }
}

impl Recurrence for Delta {
    const OP: &'static dyn Op = &GatedDeltaOp;
    const PER_TOKEN_TENSORS: &'static [&'static str] = &["q", "k", "v", "g", "beta"];
    const TOKENS: usize = 70;

    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap {
        let ([h, hv], [k, v]) = (self.heads, self.dims);
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("q", random.tensor(&case.shape(&[h, k]), dtype));
        put("k", random.tensor(&case.shape(&[h, k]), dtype));
        put("v", random.tensor(&case.shape(&[hv, v]), dtype));
        let (mut gates, mut strengths) = (self.decay, self.beta);
        if let Some(bias) = self.logits {
            (gates, strengths) = ((-4.0, 4.0), (-4.0, 4.0));
            put("A_log", random.range(&[hv], DType::F32, -1.0, 2.0));
            put("dt_bias", random.range(&[hv], DType::F32, -bias, bias));
        }
        // Slow gates would all round to the same value in a type narrower than float32.
        put("g", random.range(&case.shape(&[hv]), DType::F32, gates.0, gates.1));
        put("beta", random.range(&case.shape(&[hv]), dtype, strengths.0, strengths.1));
        tensors
    }

    fn state(&self) -> Vec<usize> {
        let ([_, hv], [k, v]) = (self.heads, self.dims);
        vec![hv, k, v]
    }
}

/// A case with L2-normalised keys and an initial state.
fn case(name: &'static str, tokens: Vec<usize>, params: Delta) -> Case<Delta> {
    let settings = Settings::new().with("l2norm", true);
    Case { name, tokens, initial: true, settings, ..Case::with(params) }
}

#[test]
fn every_length_around_the_blocks() {
    for tokens in [0, 1, 2, 8, 9, 16, 17, 31, 33, 65] {
        for initial in [false, true] {
            let case = case("lengths", vec![tokens; 2], Delta::default());
            Case { initial, ..case }.check(&ALL);
        }
    }
    case("no sequence", vec![], Delta::default()).check(&ALL);
}

#[test]
fn odd_and_unequal_sizes() {
    for dims in [[1, 1], [3, 17], [60, 60], [64, 128], [40, 8], [16, 0]] {
        for (tokens, heads) in [(1, [1, 3]), (40, [3, 3]), (40, [1, 1])] {
            case("sizes", vec![tokens], Delta { heads, dims, ..Delta::default() }).check(&ALL);
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
                let params = Delta { decay, beta, ..Delta::default() };
                case("extremes", vec![tokens], params).check(&ALL);
            }
        }
    }
    let wiped = f64::NEG_INFINITY;
    let case = case("wiped heads", vec![70], Delta::default());
    let mut tensors = case.tensors(DType::F32);
    let mut g = tensors["g"].to_f64();
    g.iter_mut().step_by(23).for_each(|g| *g = wiped);
    tensors.insert("g".into(), Tensor::new(tensors["g"].shape(), g).cast(DType::F32));
    check(case.name, &GatedDeltaOp, &tensors, &case.settings);
}

#[test]
fn the_slowest_gate_over_a_long_sequence() {
    // The rounding error of an f32 decay is the same at every token, so over 1500 tokens it would accumulate.
    let (heads, decay, beta) = ([1, 1], (-1e-4, -1e-4), (0.0, 0.02));
    case("slow", vec![1500], Delta { heads, decay, beta, ..Delta::default() }).check(&ALL);
}

#[test]
fn logits_of_gates_and_strengths() {
    for bias in [0.0, 8.0] {
        for tokens in [vec![1; 5], vec![70]] {
            let case = case("logits", tokens, Delta { logits: Some(bias), ..Delta::default() });
            case.check(&ALL);
            let settings = case.settings.clone().with("allow_neg_eigval", true);
            Case { name: "doubled", settings, ..case }.check(&ALL);
        }
    }
}

#[test]
fn packed_sequences_and_pools() {
    let case = |name, tokens| case(name, tokens, Delta::default());
    for tokens in [vec![15], vec![0, 7, 0, 73, 0], vec![1, 1, 1, 57], vec![]] {
        Case { packed: true, ..case("packed", tokens) }.check(&ALL);
    }
    let pool = |slots, indices| Some((slots, indices));
    Case { pool: pool(9, vec![8, -1, 0, 3, 4]), ..case("decode", vec![1; 5]) }.check(&ALL);
    Case { pool: pool(6, vec![5, 0, -7, 2]), ..case("pool", vec![20, 0, 40, 1]) }.check(&ALL);
}

#[test]
fn scale_and_raw_keys() {
    let settings = Settings::new().with("scale", -0.5);
    let params = Delta { dims: [8, 24], beta: (0.0, 0.1), ..Delta::default() };
    Case { settings, ..case("raw", vec![20], params) }.check(&ALL);
}

/// With the gate repeated over the channels, `kda` computes this op, as the README states.
#[test]
fn kda_with_equal_channels_gives_the_same_bits() {
    for tokens in [1, 70] {
        for logits in [None, Some(1.0)] {
            let case = case("equal channels", vec![tokens], Delta { logits, ..Delta::default() });
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
