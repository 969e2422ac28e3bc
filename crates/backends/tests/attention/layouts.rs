//! Dense, packed and paged batches.

use crate::case::{check_inputs, cpu, run, variants};
use crate::{Case, check};
use ops::{DType, Settings, Tensor, TensorMap};

#[test]
fn packed_sequences_may_be_empty_and_uneven() {
    let self_attention: [&[usize]; 5] =
        [&[15], &[256, 244, 500], &[15, 85, 200], &[0, 7, 0, 33, 1, 0], &[0]];
    for lengths in self_attention {
        let lengths: Vec<_> = lengths.iter().map(|length| (*length, *length)).collect();
        check(&Case::new(1, 0, 2, 64).packed(&lengths).causal());
        check(&Case::new(1, 0, 4, 32).kv_heads(1).packed(&lengths));
    }
    for lengths in [&[(1, 70), (0, 9), (5, 0), (33, 200), (9, 3)][..], &[(1, 500), (1, 1), (1, 64)]]
    {
        check(&Case::new(1, 0, 4, 60).kv_heads(2).packed(lengths).causal());
        check(&Case::new(1, 0, 2, 60).packed(lengths).set("window_left", 10));
    }
}

#[test]
fn packed_and_dense_are_the_same_computation() {
    let dense = Case::new(3, 50, 2, 64).causal();
    let packed = dense.clone().packed(&[(50, 50); 3]);
    let (a, b) = (dense.inputs(DType::F32), packed.inputs(DType::F32));
    let op = ops::op("attention").unwrap();
    let (a, b) = (op.bind(&a, &dense.settings).unwrap(), op.bind(&b, &packed.settings).unwrap());
    let device = cpu();
    for variant in variants(&a, &device) {
        let (a, b) = (run(&a, &device, variant), run(&b, &device, variant));
        assert_eq!(a["o"].view::<f32>(), b["o"].view::<f32>(), "{variant}");
        // [B, H, Tq] against [H, total].
        let (a, b) = (a["lse"].to_f64(), b["lse"].to_f64());
        for sequence in 0..3 {
            for head in 0..2 {
                let dense = &a[(sequence * 2 + head) * 50..][..50];
                assert_eq!(dense, &b[head * 150 + sequence * 50..][..50], "{variant}");
            }
        }
    }
}

#[test]
fn empty_batches_do_not_launch_empty_grids() {
    check(&Case::new(0, 5, 2, 16));
    check(&Case::new(3, 0, 2, 16).keys(5));
    check(&Case::new(1, 0, 2, 16).packed(&[]));
}

/// Moves the keys and values of a dense call into blocks in a scattered order; unused blocks hold 1e30.
fn paged(dense: &TensorMap, block_size: usize, lengths: &[i32]) -> TensorMap {
    let mut inputs = dense.clone();
    let shape = dense["k"].shape().to_vec();
    let (batch, keys) = (shape[0], shape[1]);
    let max_blocks = keys.div_ceil(block_size);
    // A prime number of blocks: multiples of 7 visit every one before they repeat.
    let blocks =
        (batch * max_blocks + 8..).find(|n| (2..*n).all(|d| !n.is_multiple_of(d))).unwrap();
    let block_of = |sequence: usize, at: usize| (sequence * max_blocks + at) * 7 % blocks;
    let mut table = vec![-1; batch * max_blocks];
    for name in ["k", "v"] {
        let row = dense[name].len() / (batch * keys);
        let from = dense[name].to_f64();
        let mut pool = vec![1e30; blocks * block_size * row];
        if dense[name].dtype() == DType::F16 {
            pool.fill(6e4);
        }
        for (sequence, length) in lengths.iter().enumerate() {
            for j in 0..*length as usize {
                let block = block_of(sequence, j / block_size);
                table[sequence * max_blocks + j / block_size] = block as i32;
                let to = (block * block_size + j % block_size) * row;
                pool[to..to + row].copy_from_slice(&from[(sequence * keys + j) * row..][..row]);
            }
        }
        let tail = &dense[name].shape()[2..];
        let shape = [&[blocks, block_size], tail].concat();
        inputs.insert(name.into(), Tensor::new(&shape, pool).cast(dense[name].dtype()));
    }
    inputs.insert("block_table".into(), Tensor::new(&[batch, max_blocks], table));
    inputs.insert("cache_seqlens".into(), Tensor::new(&[batch], lengths.to_vec()));
    inputs
}

#[test]
fn paged_caches_equal_contiguous_ones() {
    let settings = Settings::new().with("causal", true);
    let op = ops::op("attention").unwrap();
    for (block_size, lengths) in
        [(16, [200, 1, 129]), (1, [3, 0, 200]), (256, [200, 77, 200]), (24, [5, 199, 24])]
    {
        for (queries, heads) in [(1, 2), (1, 8), (1, 40), (4, 4), (30, 2)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let case = Case::new(3, queries, heads, 72).kv_heads(2).keys(200);
                let mut dense = case.inputs(dtype);
                let pages = paged(&dense, block_size, &lengths);
                dense.insert("cache_seqlens".into(), Tensor::new(&[3], lengths.to_vec()));
                check_inputs(&format!("blocks of {block_size}, {case:?}"), &pages, &settings);
                let (a, b) =
                    (op.bind(&dense, &settings).unwrap(), op.bind(&pages, &settings).unwrap());
                let device = cpu();
                for variant in variants(&a, &device) {
                    let (a, b) = (run(&a, &device, variant), run(&b, &device, variant));
                    assert_eq!(a, b, "{variant} {dtype} blocks of {block_size} {case:?}");
                }
            }
        }
    }
}
