//! Compares every variant of conv1d with the float64 definition.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

mod contract;
#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::conv1d::Conv1dOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::recurrent::{ALL, Case, Recurrence};
use scan_support::{Random, check, cpu, ints, launch, launch_all};

/// Sizes and options of a conv1d case; optional tensors are absent by default.
#[derive(Clone)]
struct Conv {
    channels: usize,
    width: usize,
    bias: bool,
    silu: bool,
    channel_first: bool,
    /// Tokens in the initial state, if there is one.
    state_len: Option<usize>,
    /// Tokens that each sequence has seen, if states are ring buffers.
    seen: Option<Vec<i32>>,
}

impl Default for Conv {
    fn default() -> Self {
        let (silu, channel_first) = (false, false);
        let (state_len, seen) = (None, None);
        Self { channels: 20, width: 4, bias: true, silu, channel_first, state_len, seen }
    }
}

impl Recurrence for Conv {
    const OP: &'static dyn Op = &Conv1dOp;
    const PER_TOKEN_TENSORS: &'static [&'static str] = &["x"];
    const TOKENS: usize = 40;

    fn generate(&self, case: &Case<Self>, random: &mut Random, dtype: DType) -> TensorMap {
        let c = self.channels;
        let shape = match self.channel_first && !case.is_packed() {
            true => vec![case.tokens.len(), c, case.tokens[0]],
            false => case.shape(&[c]),
        };
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| drop(tensors.insert(name.to_owned(), tensor));
        put("x", random.tensor(&shape, dtype));
        put("weight", random.tensor(&[c, self.width], dtype));
        if self.bias {
            put("bias", random.tensor(&[c], DType::F32));
        }
        if let Some(seen) = &self.seen {
            put("state_positions", ints(seen));
        }
        tensors
    }

    fn state(&self) -> Vec<usize> {
        vec![self.channels, self.state_len.unwrap_or(0)]
    }
}

fn case(name: &'static str, tokens: Vec<usize>, params: Conv) -> Case<Conv> {
    let mut settings = Settings::new();
    if params.silu {
        settings.set("activation", "silu");
    }
    if params.channel_first {
        settings.set("layout", "channel_first");
    }
    Case { name, tokens, initial: params.state_len.is_some(), settings, ..Case::with(params) }
}

#[test]
fn lengths_and_widths_match_the_reference() {
    for tokens in [1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 129, 151, 256, 257, 512, 784, 1134, 4096] {
        for width in [2, 3, 4] {
            for channel_first in [false, true] {
                let (silu, bias) = (tokens % 2 == 1, width != 3);
                let params =
                    Conv { channels: 64, width, channel_first, silu, bias, ..Conv::default() };
                let dtypes = if tokens > 1000 { &[DType::Bf16] } else { &ALL[..] };
                case("causal_conv1d", vec![tokens; 2], params.clone()).check(dtypes);
                let params = Conv { state_len: Some(width - 1), ..params };
                case("causal_conv1d", vec![tokens; 2], params).check(&[DType::F32]);
            }
        }
    }
}

#[test]
fn many_channels_match_the_reference() {
    for channel_first in [false, true] {
        for tokens in [1, 3, 130] {
            let (silu, state_len) = (true, Some(3));
            let params = Conv { channels: 4128, channel_first, silu, state_len, ..Conv::default() };
            case("4128 channels", vec![tokens; 2], params).check(&ALL);
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
                let params = Conv { width, state_len, silu: width == 3, ..Conv::default() };
                case("packed", tokens.clone(), params).check(&ALL);
            }
        }
    }
}

#[test]
fn empty_batches_and_sequences_keep_their_states() {
    for channel_first in [false, true] {
        for state_len in [None, Some(3), Some(5)] {
            let params = Conv { channel_first, state_len, ..Conv::default() };
            case("T 0", vec![0; 3], params.clone()).check(&ALL);
            case("no channel", vec![40], Conv { channels: 0, ..params }).check(&ALL);
        }
    }
}

#[test]
fn update_reads_and_writes_a_pool_and_skips_padding() {
    for width in [2, 3, 4] {
        for state_len in [width - 1, width + 2] {
            for channel_first in [false, true] {
                let (channels, silu, state_len) = (1000, true, Some(state_len));
                let params =
                    Conv { channels, width, silu, channel_first, state_len, ..Conv::default() };
                let pool = Some((9, vec![8, -1, 0, 3, -1]));
                let case = Case { pool, ..case("update", vec![1; 5], params) };
                case.check(&ALL);
                case.check_padding();
                Case { name: "pooled prefill", tokens: vec![50; 5], ..case }.check(&ALL);
            }
        }
    }
    let pool = Some((6, vec![2, -1, 5, 0]));
    let params = Conv { state_len: Some(4), ..Conv::default() };
    Case { pool, ..case("packed pool", vec![0, 7, 2, 30], params) }.check(&ALL);
}

#[test]
fn ring_buffer_states_match_the_reference() {
    for state_len in [3, 4, 7] {
        for tokens in [vec![1; 4], vec![0; 4], vec![2, 0, 1, 40], vec![9; 4]] {
            for channel_first in [false, true] {
                if channel_first && tokens[0] == 2 {
                    continue;
                }
                let (state_len, seen) = (Some(state_len), Some(vec![0, 1, 1000, 6]));
                let params = Conv { channel_first, state_len, seen, ..Conv::default() };
                let case = case("ring", tokens.clone(), params);
                case.check(&ALL);
                let pool = Some((7, vec![3, -1, 6, 0]));
                Case { name: "ring in a pool", pool, ..case }.check(&[DType::F32]);
            }
        }
    }
}

/// The reference compared with values computed by hand: taps [1, 10, 100, 1000], the newest last.
#[test]
fn the_last_tap_multiplies_the_newest_token() {
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
fn single_token_updates_equal_one_long_call() {
    for seen in [None, Some(2)] {
        let seen_by_all = seen.map(|seen| vec![seen]);
        let params = Conv { state_len: Some(5), seen: seen_by_all, ..Conv::default() };
        let case = case("one by one", vec![40], params);
        let whole = case.tensors(DType::F32);
        let want = Conv1dOp.bind(&whole, &case.settings).unwrap().reference();
        let device = cpu();
        for (variant, _) in launch_all(&Conv1dOp, &whole, &case.settings) {
            let mut part = whole.clone();
            let x = whole["x"].view::<f32>().unwrap();
            let mut o = Vec::new();
            for (token, row) in x.chunks_exact(20).enumerate() {
                part.insert("x".to_owned(), Tensor::new(&[1, 1, 20], row.to_vec()));
                if let Some(seen) = seen {
                    part.insert("state_positions".to_owned(), ints(&[seen + token as i32]));
                }
                let got = launch(&Conv1dOp, &part, &case.settings, &device, variant);
                o.extend(got["o"].to_f64());
                part.insert("initial_state".to_owned(), got["final_state"].clone());
            }
            let error = scan_support::relative(&o, &want["o"].to_f64());
            assert!(error < 1e-6, "{variant}: {error:.1e}");
            // States are copies of inputs: bit-equal.
            assert_eq!(part["initial_state"].to_f64(), want["final_state"].to_f64(), "{variant}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (tokens, channel_first) in
        [(vec![1; 3], false), (vec![700; 2], true), (vec![300, 0, 600], false)]
    {
        let params = Conv { channels: 1100, channel_first, silu: true, ..Conv::default() };
        case("threads", tokens, params).check_threads(&ALL);
    }
}

#[test]
fn large_outputs_match_with_non_temporal_stores() {
    // Above 20 MiB, where stores become non-temporal; an odd number of channels leaves rows unaligned.
    for channel_first in [false, true] {
        let params = Conv { channels: 2101, channel_first, ..Conv::default() };
        case("streamed", vec![2603], params.clone()).check(&[DType::F32]);
        case("streamed", vec![5203], params).check(&[DType::Bf16]);
    }
}

#[test]
fn large_decode_steps_match_with_non_temporal_stores() {
    // One token of many sequences: the states alone, then o as well, are above 20 MiB, where stores become non-temporal.
    for (sequences, dtype) in [(600, DType::Bf16), (1300, DType::F32)] {
        let params = Conv { channels: 4352, state_len: Some(3), silu: true, ..Conv::default() };
        case("steps", vec![1; sequences], params).check(&[dtype]);
    }
}
