//! Every variant of selective_scan against the float64 recurrence.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::selective_scan::SelectiveScanOp;
use ops::{DType, Op, Settings, TensorMap};
use scan_support::Random;
use scan_support::recurrent::{ALL, Case, Recurrence};

/// Sizes and options of a selective_scan case; D and the bias are always present.
#[derive(Clone, Copy)]
struct Scan {
    channels: usize,
    groups: usize,
    n: usize,
    gate: bool,
    /// Range of the rates A.
    rate: (f64, f64),
    /// Range of the raw step sizes.
    delta: (f64, f64),
}

impl Default for Scan {
    fn default() -> Self {
        let (rate, delta) = ((-16.0, -0.5), (-4.0, 1.0));
        Self { channels: 24, groups: 1, n: 16, gate: false, rate, delta }
    }
}

impl Recurrence for Scan {
    const OP: &'static dyn Op = &SelectiveScanOp;
    const PER_TOKEN_TENSORS: &'static [&'static str] = &["u", "delta", "B", "C"];
    const TOKENS: usize = 40;

    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap {
        let Self { channels: e, groups: g, n, .. } = *self;
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("u", random.tensor(&case.shape(&[e]), dtype));
        put("delta", random.range(&case.shape(&[e]), dtype, self.delta.0, self.delta.1));
        put("A", random.range(&[e, n], DType::F32, self.rate.0, self.rate.1));
        put("B", random.tensor(&case.shape(&[g, n]), dtype));
        put("C", random.tensor(&case.shape(&[g, n]), dtype));
        put("D", random.tensor(&[e], DType::F32));
        put("delta_bias", random.range(&[e], DType::F32, -2.0, 1.0));
        if self.gate {
            put("z", random.tensor(&case.shape(&[e]), dtype));
        }
        tensors
    }

    fn state(&self) -> Vec<usize> {
        vec![self.channels, self.n]
    }
}

#[test]
fn channels_and_states_of_any_number() {
    for (channels, n, groups) in
        [(1, 1, 1), (7, 1, 7), (16, 16, 1), (33, 17, 1), (48, 16, 3), (130, 5, 2), (20, 256, 1)]
    {
        for tokens in [vec![1; 3], vec![9; 2]] {
            let params = Scan { channels, n, groups, ..Scan::default() };
            Case { name: "sizes", tokens: tokens.clone(), ..Case::with(params) }.check(&ALL);
            let params = Scan { gate: true, ..params };
            Case { name: "every part", tokens, initial: true, ..Case::with(params) }.check(&ALL);
        }
    }
}

#[test]
fn packed_batches_with_empty_sequences_and_pools() {
    let params = Scan { channels: 40, groups: 2, gate: true, ..Scan::default() };
    let case = Case { name: "packed", tokens: vec![0, 30, 1, 0, 65, 3, 0], ..Case::with(params) };
    case.check(&ALL);
    Case { initial: true, ..case.clone() }.check(&ALL);
    let case = Case { name: "pool", pool: Some((9, vec![8, 2, -1, 4, -1, 0, 7])), ..case };
    case.check(&ALL);
    case.check_padding();
    for tokens in [vec![0; 2], vec![]] {
        Case::<Scan> { name: "empty", tokens, ..Case::default() }.check(&ALL);
    }
}

#[test]
fn slow_and_fast_decays_stay_exact() {
    for (name, rate) in [
        ("very fast", (-400.0, -100.0)),
        ("very slow", (-1e-6, 0.0)),
        ("none", (0.0, 0.0)),
        ("mixed", (-40.0, 0.0)),
    ] {
        let params = Scan { rate, ..Scan::default() };
        Case { name, tokens: vec![200, 300], initial: true, ..Case::with(params) }.check(&ALL);
    }
}

#[test]
fn step_sizes_follow_softplus_and_bias() {
    let case = |name, delta, rate, tokens, settings| {
        let params = Scan { delta, rate, ..Scan::default() };
        Case { name, tokens: vec![tokens], settings, ..Case::with(params) }.check(&ALL);
    };
    let rate = Scan::default().rate;
    case("above 20", (15.0, 30.0), (-0.05, -0.01), 60, Settings::new());
    case("far below 0", (-30.0, -10.0), rate, 60, Settings::new());
    let raw = Settings::new().with("delta_softplus", false);
    // With the bias from 0 on.
    case("as given", (2.0, 2.9), rate, 60, raw.clone());
    // A step below 0 lets the state grow.
    case("below 0", (-0.5, 0.5), (-0.2, 0.0), 12, raw);
}

/// Decode steps must not use `channels`, which transposes, and prompts must not use `states`.
#[test]
fn selection_follows_the_number_of_tokens() {
    for (tokens, scheme) in [(1, "states."), (7, "states."), (8, "channels."), (100, "channels.")] {
        Case::<Scan> { tokens: vec![tokens, 1], ..Case::default() }.check_selection(scheme);
    }
}

#[test]
fn consecutive_calls_with_a_state_equal_one_long_call() {
    let params = Scan { channels: 36, groups: 2, n: 11, ..Scan::default() };
    Case { tokens: vec![103], initial: true, ..Case::with(params) }.check_parts(&[64, 9, 30]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for tokens in [vec![1; 3], vec![50; 2], vec![70, 1, 14, 0]] {
        let params = Scan { channels: 200, gate: true, ..Scan::default() };
        Case { tokens, ..Case::with(params) }.check_threads(&[DType::Bf16]);
    }
}
