//! Every variant of conv1d against the float64 definition.
#![allow(clippy::unwrap_used)] // In the helpers too: what cannot be unwrapped is the failure.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use kernels::conv1d::Conv1dOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, cpu, ints, launch, launch_all};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A case in sizes; everything optional is off.
#[derive(Clone)]
struct Case {
    name: &'static str,
    /// Tokens of each sequence; packed when they differ.
    tokens: Vec<usize>,
    channels: usize,
    width: usize,
    bias: bool,
    silu: bool,
    channel_first: bool,
    /// Tokens that the initial state holds, when one is given.
    state_len: Option<usize>,
    /// Slots of the pool, and the slot of each sequence.
    pool: Option<(usize, Vec<i32>)>,
    /// Tokens each sequence has seen, when states are rings.
    seen: Option<Vec<i32>>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "plain",
            tokens: vec![40],
            channels: 20,
            width: 4,
            bias: true,
            silu: false,
            channel_first: false,
            state_len: None,
            pool: None,
            seen: None,
        }
    }
}

impl Case {
    fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        if self.silu {
            settings.set("activation", "silu");
        }
        if self.channel_first {
            settings.set("layout", "channel_first");
        }
        settings
    }

    fn tensors(&self, dtype: DType) -> TensorMap {
        let mut random = Random(self.tokens.len() as u64 * 1000 + self.channels as u64);
        let (c, count) = (self.channels, self.tokens.len());
        let packed = self.tokens.iter().any(|tokens| *tokens != self.tokens[0]);
        let shape = match (packed, self.channel_first) {
            (true, _) => vec![self.tokens.iter().sum(), c],
            (_, false) => vec![count, self.tokens[0], c],
            (_, true) => vec![count, c, self.tokens[0]],
        };
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("x", random.tensor(&shape, dtype));
        put("weight", random.tensor(&[c, self.width], dtype));
        if self.bias {
            put("bias", random.tensor(&[c], DType::F32));
        }
        if let Some(state_len) = self.state_len {
            let slots = self.pool.as_ref().map_or(count, |(slots, _)| *slots);
            let mut state = random.tensor(&[slots, c, state_len], DType::F32);
            if let Some((_, indices)) = &self.pool {
                // Slots that nobody uses hold a value that shows when it is touched.
                let values = state.view_mut::<f32>().unwrap();
                for slot in (0..slots).filter(|slot| !indices.contains(&(*slot as i32))) {
                    values[slot * c * state_len..(slot + 1) * c * state_len].fill(1e30);
                }
                put("state_indices", ints(indices));
            }
            put("initial_state", state);
        }
        if let Some(seen) = &self.seen {
            put("state_positions", ints(seen));
        }
        if packed {
            let mut offsets = vec![0i32];
            for tokens in &self.tokens {
                offsets.push(offsets[offsets.len() - 1] + *tokens as i32);
            }
            put("cu_seqlens", ints(&offsets));
        }
        tensors
    }

    fn check(&self, dtypes: &[DType]) {
        for dtype in dtypes {
            check(self.name, &Conv1dOp, &self.tensors(*dtype), &self.settings());
        }
    }
}

#[test]
fn causal_conv1d_lengths_and_widths() {
    for tokens in [1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 129, 151, 256, 257, 512, 784, 1134, 4096] {
        for width in [2, 3, 4] {
            for channel_first in [false, true] {
                let case = Case {
                    name: "causal_conv1d",
                    tokens: vec![tokens; 2],
                    channels: 64,
                    width,
                    channel_first,
                    silu: tokens % 2 == 1,
                    bias: width != 3,
                    ..Case::default()
                };
                case.check(if tokens > 1000 { &[DType::Bf16] } else { &ALL });
                Case { state_len: Some(width - 1), ..case }.check(&[DType::F32]);
            }
        }
    }
}

#[test]
fn causal_conv1d_wide() {
    for channel_first in [false, true] {
        for tokens in [1, 3, 130] {
            Case {
                name: "4128 channels",
                tokens: vec![tokens; 2],
                channels: 4128,
                channel_first,
                silu: true,
                state_len: Some(3),
                ..Case::default()
            }
            .check(&ALL);
        }
    }
}

#[test]
fn packed_sequences_shorter_than_the_taps_carry_the_older_state() {
    let mut random = Random(9);
    let many: Vec<usize> = (0..200).map(|_| random.uniform(0.0, 9.0) as usize).collect();
    for tokens in [vec![0, 1, 2, 3, 0, 4, 300, 0], many] {
        for width in [2, 3, 4] {
            for state_len in [None, Some(width - 1), Some(width), Some(7)] {
                let tokens = tokens.clone();
                let silu = width == 3;
                Case { name: "packed", tokens, width, state_len, silu, ..Case::default() }
                    .check(&ALL);
            }
        }
    }
}

#[test]
fn empty_batches_and_sequences_leave_states_alone() {
    for channel_first in [false, true] {
        for state_len in [None, Some(3), Some(5)] {
            let case = Case { name: "T 0", channel_first, state_len, ..Case::default() };
            Case { tokens: vec![0; 3], ..case.clone() }.check(&ALL);
            Case { channels: 0, ..case }.check(&ALL);
        }
    }
}

#[test]
fn update_reads_and_writes_a_pool_and_skips_padding() {
    for width in [2, 3, 4] {
        for state_len in [width - 1, width + 2] {
            for channel_first in [false, true] {
                let case = Case {
                    name: "update",
                    tokens: vec![1; 5],
                    channels: 1000,
                    width,
                    silu: true,
                    channel_first,
                    state_len: Some(state_len),
                    pool: Some((9, vec![8, -1, 0, 3, -1])),
                    ..Case::default()
                };
                case.check(&ALL);
                Case { name: "pooled prefill", tokens: vec![50; 5], ..case.clone() }.check(&ALL);
                let settings = case.settings();
                for (variant, outputs) in
                    launch_all(&Conv1dOp, &case.tensors(DType::F32), &settings)
                {
                    let o = outputs["o"].to_f64();
                    assert!(o[1000..2000].iter().all(|x| *x == 0.0), "{variant}");
                }
            }
        }
    }
    let pool = Some((6, vec![2, -1, 5, 0]));
    Case { tokens: vec![0, 7, 2, 30], state_len: Some(4), pool, ..Case::default() }.check(&ALL);
}

#[test]
fn states_may_be_rings() {
    for state_len in [3, 4, 7] {
        for tokens in [vec![1; 4], vec![0; 4], vec![2, 0, 1, 40], vec![9; 4]] {
            for channel_first in [false, true] {
                if channel_first && tokens[0] == 2 {
                    continue;
                }
                let case = Case {
                    name: "ring",
                    tokens: tokens.clone(),
                    channel_first,
                    state_len: Some(state_len),
                    seen: Some(vec![0, 1, 1000, 6]),
                    ..Case::default()
                };
                case.check(&ALL);
                let pool = Some((7, vec![3, -1, 6, 0]));
                Case { name: "ring in a pool", pool, ..case }.check(&[DType::F32]);
            }
        }
    }
}

/// The reference itself, by hand: taps [1, 10, 100, 1000], the newest last.
#[test]
fn the_newest_token_meets_the_last_tap() {
    let mut tensors = TensorMap::new();
    let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
    put("x", Tensor::new(&[1, 3, 1], vec![4f32, 5.0, 6.0]));
    put("weight", Tensor::new(&[1, 4], vec![1f32, 10.0, 100.0, 1000.0]));
    put("bias", Tensor::new(&[1], vec![0.5f32]));
    // Five tokens of state, of which the convolution sees the last three.
    put("initial_state", Tensor::new(&[1, 1, 5], vec![8f32, 9.0, 1.0, 2.0, 3.0]));
    let expect = [4321.5, 5432.5, 6543.5];
    for (positions, state) in
        [(None, [2.0, 3.0, 4.0, 5.0, 6.0]), (Some(5), [4.0, 5.0, 6.0, 2.0, 3.0])]
    {
        if let Some(seen) = positions {
            tensors.insert("state_positions".to_owned(), ints(&[seen]));
        }
        let reference = Conv1dOp.bind(&tensors, &Settings::new()).unwrap().reference();
        assert_eq!(reference["o"].to_f64(), expect);
        assert_eq!(reference["final_state"].to_f64(), state);
        check("by hand", &Conv1dOp, &tensors, &Settings::new());
    }
}

#[test]
fn updates_one_by_one_equal_one_long_call() {
    for seen in [None, Some(2)] {
        let case =
            Case { state_len: Some(5), seen: seen.map(|seen| vec![seen]), ..Case::default() };
        let whole = case.tensors(DType::F32);
        let want = Conv1dOp.bind(&whole, &case.settings()).unwrap().reference();
        let device = cpu();
        for (variant, _) in launch_all(&Conv1dOp, &whole, &case.settings()) {
            let mut part = whole.clone();
            let x = whole["x"].view::<f32>().unwrap();
            let mut o = Vec::new();
            for (token, row) in x.chunks_exact(20).enumerate() {
                part.insert("x".to_owned(), Tensor::new(&[1, 1, 20], row.to_vec()));
                if let Some(seen) = seen {
                    part.insert("state_positions".to_owned(), ints(&[seen + token as i32]));
                }
                let got = launch(&Conv1dOp, &part, &case.settings(), &device, variant);
                o.extend(got["o"].to_f64());
                part.insert("initial_state".to_owned(), got["final_state"].clone());
            }
            let error = scan_support::relative(&o, &want["o"].to_f64());
            assert!(error < 1e-6, "{variant}: {error:.1e}");
            // States are copies of inputs: equal to the bit.
            assert_eq!(part["initial_state"].to_f64(), want["final_state"].to_f64(), "{variant}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (tokens, channel_first) in
        [(vec![1; 3], false), (vec![700; 2], true), (vec![300, 0, 600], false)]
    {
        let case = Case { tokens, channels: 1100, channel_first, silu: true, ..Case::default() };
        for dtype in ALL {
            let tensors = case.tensors(dtype);
            for (variant, want) in launch_all(&Conv1dOp, &tensors, &case.settings()) {
                for threads in [1, 2, 5] {
                    let device = cpu().with_threads(threads);
                    let got = launch(&Conv1dOp, &tensors, &case.settings(), &device, variant);
                    assert!(got == want, "{dtype} {variant} on {threads} threads");
                }
            }
        }
    }
}

#[test]
fn large_outputs_are_written_past_the_caches() {
    // Over the 20 MiB from which stores are streamed; an odd number of channels leaves rows unaligned.
    for channel_first in [false, true] {
        let (tokens, channels) = (vec![2603], 2101);
        let case = Case { name: "streamed", tokens, channels, channel_first, ..Case::default() };
        case.check(&[DType::F32]);
        Case { tokens: vec![5203], ..case }.check(&[DType::Bf16]);
    }
}

#[test]
fn large_decode_steps_are_written_past_the_caches() {
    // One token of many sequences: the states alone, then o as well, are over the 20 MiB from which stores are streamed.
    for (sequences, dtype) in [(600, DType::Bf16), (1300, DType::F32)] {
        let (tokens, state_len) = (vec![1; sequences], Some(3));
        Case { name: "steps", tokens, channels: 4352, state_len, silu: true, ..Case::default() }
            .check(&[dtype]);
    }
}
