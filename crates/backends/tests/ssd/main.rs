//! Every variant of ssd against the float64 recurrence.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod bf16_state;
mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::ssd::SsdOp;
use ops::{DType, Op, Settings, TensorMap};
use scan_support::Random;
use scan_support::recurrent::{ALL, Case, Recurrence};

/// Sizes and options of an ssd case; optional tensors are absent by default.
#[derive(Clone, Copy)]
struct Ssd {
    heads: usize,
    groups: usize,
    p: usize,
    n: usize,
    /// Rank of D, 0 for none.
    d: usize,
    z: bool,
    dt_bias: bool,
    /// Range of the rates A.
    rate: (f64, f64),
    /// Range of the raw step sizes.
    dt: (f64, f64),
}

impl Default for Ssd {
    fn default() -> Self {
        let (rate, dt) = ((-1.5, -0.1), (-4.0, 1.0));
        Self { heads: 2, groups: 1, p: 16, n: 16, d: 0, z: false, dt_bias: false, rate, dt }
    }
}

impl Recurrence for Ssd {
    const OP: &'static dyn Op = &SsdOp;
    const PER_TOKEN_TENSORS: &'static [&'static str] = &["x", "dt", "B", "C"];
    const TOKENS: usize = 100;
    const ALTERNATE_STATES_ARE_ZERO: bool = true;

    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap {
        let Self { heads: h, groups: g, p, n, .. } = *self;
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("x", random.tensor(&case.shape(&[h, p]), dtype));
        put("dt", random.range(&case.shape(&[h]), dtype, self.dt.0, self.dt.1));
        put("A", random.range(&[h], DType::F32, self.rate.0, self.rate.1));
        put("B", random.tensor(&case.shape(&[g, n]), dtype));
        put("C", random.tensor(&case.shape(&[g, n]), dtype));
        match self.d {
            0 => {}
            1 => put("D", random.tensor(&[h], DType::F32)),
            _ => put("D", random.tensor(&[h, p], dtype)),
        }
        if self.z {
            put("z", random.tensor(&case.shape(&[h, p]), dtype));
        }
        if self.dt_bias {
            put("dt_bias", random.range(&[h], DType::F32, -2.0, 1.0));
        }
        tensors
    }

    fn state(&self) -> Vec<usize> {
        vec![self.heads, self.p, self.n]
    }
}

#[test]
fn mamba_selective_state_update() {
    for (dim, n, groups) in
        [(2048, 16, 1), (2048, 32, 2), (2064, 16, 1), (2064, 64, 1), (4096, 64, 4), (4096, 32, 2)]
    {
        let p = if dim == 2064 { 48 } else { 64 };
        let (heads, z) = (dim / p / groups * groups, n != 32);
        let params = Ssd { heads, groups, p, n, d: 2, z, dt_bias: true, ..Ssd::default() };
        let (name, tokens) = ("mamba selective_state_update", vec![1; 3]);
        let case = Case { name, tokens, initial: true, ..Case::with(params) };
        case.check(&ALL);
        let pool = Some((7, vec![5, -1, 0]));
        Case { name: "mamba state indices", initial: false, pool, ..case }.check(&ALL);
    }
}

#[test]
fn mamba_varlen_of_300_sequences() {
    let mut random = Random(300);
    // Mostly short, a few over several chunks, so that the chunked scan is selected.
    let mut tokens: Vec<usize> = (0..300).map(|_| random.uniform(1.0, 12.0) as usize).collect();
    tokens[7] = 150;
    tokens[100] = 64;
    tokens[299] = 131;
    for (heads, groups, chunk) in [(8, 1, 64), (8, 2, 128), (8, 8, 64), (16, 8, 128)] {
        let params = Ssd { heads, groups, n: 32, d: 1, ..Ssd::default() };
        let (tokens, initial) = (tokens.clone(), chunk == 64);
        let settings = Settings::new().with("chunk_size", chunk);
        Case { name: "mamba varlen 300", tokens, initial, settings, ..Case::with(params) }
            .check(&[DType::F32, DType::Bf16]);
    }
}

#[test]
fn lengths_around_the_chunk_size() {
    for tokens in [0, 1, 2, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 300] {
        for initial in [false, true] {
            let params = Ssd { d: usize::from(initial), ..Ssd::default() };
            let case =
                Case { name: "lengths", tokens: vec![tokens; 2], initial, ..Case::with(params) };
            case.check(&ALL);
            // Short sequences use the chunked scan only if a chunk size is set.
            let settings = Settings::new().with("chunk_size", 48);
            Case { name: "lengths in chunks", settings, ..case }.check(&[DType::F32]);
        }
    }
}

/// Decoding and short sequences use the recurrent scan, long sequences the chunked one.
#[test]
fn selection_follows_the_number_of_tokens() {
    for (tokens, scheme) in [(1, "recurrent."), (31, "recurrent."), (32, "chunk."), (100, "chunk.")]
    {
        Case::<Ssd> { tokens: vec![tokens, 1], ..Case::default() }.check_selection(scheme);
    }
}

#[test]
fn matches_the_reference_at_a_published_shape() {
    let params = Ssd { heads: 4, p: 64, n: 128, d: 1, z: true, dt_bias: true, ..Ssd::default() };
    Case { name: "B1 T512 H4 P64 N128", tokens: vec![512], initial: true, ..Case::with(params) }
        .check(&ALL);
}

#[test]
fn packed_batches_with_empty_sequences_and_odd_sizes() {
    for (p, n, groups) in [(16, 16, 1), (20, 24, 2), (1, 1, 4), (33, 7, 1), (60, 100, 2)] {
        for initial in [false, true] {
            let params = Ssd { heads: 4, groups, p, n, d: 2, z: true, ..Ssd::default() };
            let tokens = vec![0, 70, 1, 0, 129, 3, 0];
            Case { name: "packed", tokens, initial, ..Case::with(params) }.check(&ALL);
        }
    }
}

#[test]
fn unused_slots_are_unchanged_and_padding_gives_zero() {
    let params = Ssd { heads: 3, groups: 3, d: 1, ..Ssd::default() };
    let (tokens, pool) = (vec![5, 0, 90, 33], Some((9, vec![8, 2, -1, 4])));
    let case = Case { name: "pool", tokens, pool, ..Case::with(params) };
    case.check(&ALL);
    case.check_padding();
}

#[test]
fn slow_and_fast_decays_stay_exact() {
    // Fast decays: exp(sum dt A) underflows within a chunk, and a naive exp(-sum dt A) overflows. Slow ones: the state hardly
    // decays.
    for (name, rate) in
        [("very fast", (-400.0, -100.0)), ("very slow", (-1e-6, 0.0)), ("mixed", (-40.0, 0.0))]
    {
        let params = Ssd { heads: 4, rate, ..Ssd::default() };
        Case { name, tokens: vec![200, 300], initial: true, ..Case::with(params) }.check(&ALL);
    }
}

#[test]
fn step_sizes_follow_softplus_bias_and_limits() {
    let params = Ssd { dt_bias: true, d: 1, ..Ssd::default() };
    let case =
        |name, params, settings| Case { name, tokens: vec![80], settings, ..Case::with(params) };
    let limited = Settings::new().with("dt_min", 0.05).with("dt_max", 0.4);
    case("dt clamped", params, limited).check(&ALL);
    let large = Ssd { dt: (15.0, 30.0), rate: (-0.05, -0.01), ..params };
    case("dt above 20", large, Settings::new()).check(&ALL);
    let raw = Settings::new().with("dt_softplus", false);
    case("dt as given", Ssd { dt: (-0.5, 0.9), ..params }, raw).check(&ALL);
}

#[test]
fn any_chunk_size_gives_the_same_answer() {
    for chunk in [1, 16, 50, 64, 128, 1000] {
        let settings = Settings::new().with("chunk_size", chunk);
        let (tokens, initial) = (vec![260], true);
        Case::<Ssd> { name: "chunk size", tokens, settings, initial, ..Case::default() }
            .check(&ALL);
    }
}

#[test]
fn consecutive_calls_with_a_state_equal_one_long_call() {
    let params = Ssd { heads: 4, groups: 2, p: 20, n: 40, ..Ssd::default() };
    Case { tokens: vec![203], initial: true, ..Case::with(params) }.check_parts(&[64, 37, 102]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for tokens in [vec![1; 3], vec![150; 2], vec![70, 1, 140, 0]] {
        let params = Ssd { heads: 4, p: 64, n: 48, z: true, ..Ssd::default() };
        Case { tokens, ..Case::with(params) }.check_threads(&ALL);
    }
}

#[test]
fn large_states_match_with_non_temporal_stores() {
    // 24 MiB of state: above the limit for non-temporal stores. Odd sizes leave rows unaligned, which are stored through a
    // buffer; rows of whole cache lines are stored from registers. For a pool the limit is 1 MiB.
    for (sequences, heads, p, n, slots) in [
        (6, 17, 63, 1000, None),
        (24, 32, 64, 128, None),
        (1, 17, 63, 100, Some(3)),
        (1, 32, 64, 128, Some(2)),
    ] {
        let (tokens, pool) = (vec![1; sequences], slots.map(|slots| (slots, vec![1])));
        let params = Ssd { heads, p, n, ..Ssd::default() };
        Case { name: "streamed", tokens, initial: true, pool, ..Case::with(params) }
            .check(&[DType::F32, DType::Bf16]);
    }
}
