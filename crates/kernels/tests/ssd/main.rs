//! Every variant of ssd against the float64 recurrence.
#![allow(clippy::unwrap_used)] // In the helpers too: what cannot be unwrapped is the failure.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use kernels::ssd::SsdOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, cpu, ints, launch, launch_all, limits, relative};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A case in sizes; everything optional is off.
#[derive(Clone)]
struct Case {
    name: &'static str,
    /// Tokens of each sequence; packed when they differ.
    tokens: Vec<usize>,
    heads: usize,
    groups: usize,
    p: usize,
    n: usize,
    /// Rank of D, 0 for none.
    d: usize,
    z: bool,
    dt_bias: bool,
    initial: bool,
    /// Slots of the pool, and the slot of each sequence.
    pool: Option<(usize, Vec<i32>)>,
    /// Range of the rates A.
    rate: (f64, f64),
    /// Range of the raw step sizes.
    dt: (f64, f64),
    settings: Settings,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "plain",
            tokens: vec![100],
            heads: 2,
            groups: 1,
            p: 16,
            n: 16,
            d: 0,
            z: false,
            dt_bias: false,
            initial: false,
            pool: None,
            rate: (-1.5, -0.1),
            dt: (-4.0, 1.0),
            settings: Settings::new(),
        }
    }
}

impl Case {
    fn tensors(&self, dtype: DType) -> TensorMap {
        let mut random = Random(self.tokens.len() as u64 * 1000 + self.n as u64);
        let lead = match self.tokens.iter().all(|tokens| *tokens == self.tokens[0]) {
            true => vec![self.tokens.len(), self.tokens[0]],
            false => vec![self.tokens.iter().sum()],
        };
        let shape = |rest: &[usize]| [&lead[..], rest].concat();
        let (h, g, p, n) = (self.heads, self.groups, self.p, self.n);
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("x", random.tensor(&shape(&[h, p]), dtype));
        put("dt", random.range(&shape(&[h]), dtype, self.dt.0, self.dt.1));
        put("A", random.range(&[h], DType::F32, self.rate.0, self.rate.1));
        put("B", random.tensor(&shape(&[g, n]), dtype));
        put("C", random.tensor(&shape(&[g, n]), dtype));
        match self.d {
            0 => {}
            1 => put("D", random.tensor(&[h], DType::F32)),
            _ => put("D", random.tensor(&[h, p], dtype)),
        }
        if self.z {
            put("z", random.tensor(&shape(&[h, p]), dtype));
        }
        if self.dt_bias {
            put("dt_bias", random.range(&[h], DType::F32, -2.0, 1.0));
        }
        let slots = self.pool.as_ref().map_or(self.tokens.len(), |(slots, _)| *slots);
        if self.initial || self.pool.is_some() {
            put("initial_state", random.tensor(&[slots, h, p, n], DType::F32));
        }
        if self.initial
            && let Some(state) = tensors.get_mut("initial_state").and_then(Tensor::view_mut::<f32>)
        {
            // Of many sequences every other one begins, in a pool where others went before it.
            state.chunks_mut(h * p * n).skip(1).step_by(2).for_each(|state| state.fill(0.0));
        }
        let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
        if let Some((_, indices)) = &self.pool {
            put("state_indices", ints(indices));
        }
        if lead.len() == 1 {
            let mut offsets = vec![0i32];
            for tokens in &self.tokens {
                offsets.push(offsets[offsets.len() - 1] + *tokens as i32);
            }
            put("cu_seqlens", ints(&offsets));
        }
        if let (Some((slots, indices)), Some(state)) =
            (&self.pool, tensors.get_mut("initial_state"))
        {
            // Slots that nobody uses hold a value that shows when it is touched.
            let len = h * p * n;
            let values = state.view_mut::<f32>().unwrap();
            for slot in (0..*slots).filter(|slot| !indices.contains(&(*slot as i32))) {
                values[slot * len..(slot + 1) * len].fill(1e30);
            }
        }
        tensors
    }

    fn check(&self, dtypes: &[DType]) {
        for dtype in dtypes {
            check(self.name, &SsdOp, &self.tensors(*dtype), &self.settings);
        }
    }
}

#[test]
fn mamba_selective_state_update() {
    for (dim, n, groups) in
        [(2048, 16, 1), (2048, 32, 2), (2064, 16, 1), (2064, 64, 1), (4096, 64, 4), (4096, 32, 2)]
    {
        let p = if dim == 2064 { 48 } else { 64 };
        let case = Case {
            name: "mamba selective_state_update",
            tokens: vec![1; 3],
            heads: dim / p / groups * groups,
            groups,
            p,
            n,
            d: 2,
            z: n != 32,
            dt_bias: true,
            initial: true,
            ..Case::default()
        };
        case.check(&ALL);
        let pool = Some((7, vec![5, -1, 0]));
        Case { name: "mamba state indices", initial: false, pool, ..case }.check(&ALL);
    }
}

#[test]
fn mamba_varlen_of_300_sequences() {
    let mut random = Random(300);
    // Mostly short, a few over several chunks, so that the chunk form takes part.
    let mut tokens: Vec<usize> = (0..300).map(|_| random.uniform(1.0, 12.0) as usize).collect();
    tokens[7] = 150;
    tokens[100] = 64;
    tokens[299] = 131;
    for (heads, groups, chunk) in [(8, 1, 64), (8, 2, 128), (8, 8, 64), (16, 8, 128)] {
        Case {
            name: "mamba varlen 300",
            tokens: tokens.clone(),
            heads,
            groups,
            p: 16,
            n: 32,
            d: 1,
            initial: chunk == 64,
            settings: Settings::new().with("chunk_size", chunk),
            ..Case::default()
        }
        .check(&[DType::F32, DType::Bf16]);
    }
}

#[test]
fn lengths_around_the_chunk_size() {
    for tokens in [0, 1, 2, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 300] {
        for initial in [false, true] {
            let case = Case {
                name: "lengths",
                tokens: vec![tokens; 2],
                initial,
                d: usize::from(initial),
                ..Case::default()
            };
            case.check(&ALL);
            // Short sequences take the chunk form only when a chunk size is asked for.
            let settings = Settings::new().with("chunk_size", 48);
            Case { name: "lengths in chunks", settings, ..case }.check(&[DType::F32]);
        }
    }
}

/// Decode must not be given to the chunk form, nor a long sequence to anything else.
#[test]
fn selection_follows_the_number_of_tokens() {
    for (tokens, scheme) in [(1, "recurrent."), (31, "recurrent."), (32, "chunk."), (100, "chunk.")]
    {
        let case = Case { tokens: vec![tokens, 1], ..Case::default() };
        let tensors = case.tensors(DType::F32);
        let chosen = SsdOp.bind(&tensors, &case.settings).unwrap().select(&cpu(), None).unwrap();
        assert!(chosen.chosen.starts_with(scheme), "{tokens} tokens: {chosen:?}");
    }
}

#[test]
fn a_long_call_of_realistic_shape() {
    Case {
        name: "B1 T512 H4 P64 N128",
        tokens: vec![512],
        heads: 4,
        p: 64,
        n: 128,
        d: 1,
        z: true,
        dt_bias: true,
        initial: true,
        ..Case::default()
    }
    .check(&ALL);
}

#[test]
fn packed_batches_with_empty_sequences_and_odd_sizes() {
    for (p, n, groups) in [(16, 16, 1), (20, 24, 2), (1, 1, 4), (33, 7, 1), (60, 100, 2)] {
        for initial in [false, true] {
            Case {
                name: "packed",
                tokens: vec![0, 70, 1, 0, 129, 3, 0],
                heads: 4,
                groups,
                p,
                n,
                d: 2,
                z: true,
                initial,
                ..Case::default()
            }
            .check(&ALL);
        }
    }
}

#[test]
fn pools_keep_what_nobody_uses_and_padding_gives_zero() {
    let case = Case {
        name: "pool",
        tokens: vec![5, 0, 90, 33],
        heads: 3,
        groups: 3,
        pool: Some((9, vec![8, 2, -1, 4])),
        d: 1,
        ..Case::default()
    };
    case.check(&ALL);
    for (variant, outputs) in launch_all(&SsdOp, &case.tensors(DType::F32), &case.settings) {
        let row = 3 * 16;
        let padding = &outputs["o"].to_f64()[5 * row..95 * row];
        assert!(padding.iter().all(|x| *x == 0.0), "{variant}");
    }
}

#[test]
fn slow_and_fast_decays_stay_exact() {
    // exp(sum dt A) underflows within a chunk, and a naive e^-a overflows; then a state that hardly decays at all.
    for (name, rate) in
        [("very fast", (-400.0, -100.0)), ("very slow", (-1e-6, 0.0)), ("mixed", (-40.0, 0.0))]
    {
        Case { name, tokens: vec![200, 300], rate, initial: true, heads: 4, ..Case::default() }
            .check(&ALL);
    }
}

#[test]
fn step_sizes_follow_softplus_bias_and_limits() {
    let base = Case { tokens: vec![80], dt_bias: true, d: 1, ..Case::default() };
    let limited = Settings::new().with("dt_min", 0.05).with("dt_max", 0.4);
    Case { name: "dt clamped", settings: limited, ..base.clone() }.check(&ALL);
    Case { name: "dt above 20", dt: (15.0, 30.0), rate: (-0.05, -0.01), ..base.clone() }
        .check(&ALL);
    let raw = Settings::new().with("dt_softplus", false);
    Case { name: "dt as given", dt: (-0.5, 0.9), settings: raw, ..base }.check(&ALL);
}

#[test]
fn any_chunk_size_gives_the_same_answer() {
    for chunk in [1, 16, 50, 64, 128, 1000] {
        let settings = Settings::new().with("chunk_size", chunk);
        Case { name: "chunk size", tokens: vec![260], settings, initial: true, ..Case::default() }
            .check(&ALL);
    }
}

#[test]
fn calls_that_carry_the_state_equal_one_long_call() {
    let case = Case {
        tokens: vec![203],
        heads: 4,
        groups: 2,
        p: 20,
        n: 40,
        initial: true,
        ..Case::default()
    };
    let whole = case.tensors(DType::F32);
    let want = SsdOp.bind(&whole, &case.settings).unwrap().reference();
    for (variant, _) in launch_all(&SsdOp, &whole, &case.settings) {
        let device = cpu();
        let mut state = whole["initial_state"].clone();
        let mut o = Vec::new();
        for (from, to) in [(0, 64), (64, 101), (101, 203)] {
            let mut part = whole.clone();
            for name in ["x", "dt", "B", "C"] {
                let tensor = &whole[name];
                let row: usize = tensor.shape()[2..].iter().product();
                let values = tensor.view::<f32>().unwrap()[from * row..to * row].to_vec();
                let shape = [&[1, to - from], &tensor.shape()[2..]].concat();
                part.insert(name.to_owned(), Tensor::new(&shape, values));
            }
            part.insert("initial_state".to_owned(), state);
            let got = launch(&SsdOp, &part, &case.settings, &device, variant);
            o.extend(got["o"].to_f64());
            state = got["final_state"].clone();
        }
        let limits = limits(DType::F32);
        assert!(relative(&o, &want["o"].to_f64()) <= limits.o, "{variant}");
        assert!(
            relative(&state.to_f64(), &want["final_state"].to_f64()) <= limits.state,
            "{variant}"
        );
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for tokens in [vec![1; 3], vec![150; 2], vec![70, 1, 140, 0]] {
        let case = Case { tokens, heads: 4, p: 64, n: 48, z: true, ..Case::default() };
        for dtype in ALL {
            let tensors = case.tensors(dtype);
            for (variant, want) in launch_all(&SsdOp, &tensors, &case.settings) {
                for threads in [1, 2, 5] {
                    let device = cpu().with_threads(threads);
                    let got = launch(&SsdOp, &tensors, &case.settings, &device, variant);
                    assert!(got == want, "{dtype} {variant} on {threads} threads");
                }
            }
        }
    }
}

#[test]
fn large_states_are_written_past_the_caches() {
    // 24 MiB of state: over the limit from which stores are streamed. Odd sizes leave rows unaligned and go through a
    // copy; rows of whole cache lines go there from registers. Of a pool 1 MiB is enough.
    for (sequences, heads, p, n, slots) in [
        (6, 17, 63, 1000, None),
        (24, 32, 64, 128, None),
        (1, 17, 63, 100, Some(3)),
        (1, 32, 64, 128, Some(2)),
    ] {
        let (tokens, pool) = (vec![1; sequences], slots.map(|slots| (slots, vec![1])));
        let of = Case { name: "streamed", tokens, heads, p, n, initial: true, ..Case::default() };
        Case { pool, ..of }.check(&[DType::F32, DType::Bf16]);
    }
}
