//! The selected blocks, and the tokens that are read.

use crate::case::{ALL, Case, check, check_tensors, cpu, launch, variants};
use ops::nsa::NsaOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};

/// The case's tensors with `n` block indices for each query and key head, computed from their position.
fn with_block_indices(
    case: &Case,
    dtype: DType,
    n: usize,
    blocks: impl Fn(usize) -> i32,
) -> TensorMap {
    let mut tensors = case.tensors(dtype);
    let rows = case.sequences.iter().map(|s| s.0).sum::<usize>() * case.kv_heads;
    let values: Vec<i32> = (0..rows * n).map(blocks).collect();
    let shape = [case.sequences.len(), case.sequences[0].0, case.kv_heads, n];
    tensors.insert("block_indices".into(), Tensor::new(&shape, values));
    tensors
}

/// A test case of the repository nsa-vibe: the key ranges [16, 40), [64, 96), [120, 160) of 192, as blocks of 8, compared
/// with dense attention over exactly those keys.
#[test]
fn attends_only_to_the_given_blocks() {
    let blocks: Vec<i32> = (2..5).chain(8..12).chain(15..20).collect();
    let tokens: Vec<usize> = (16..40).chain(64..96).chain(120..160).collect();
    let case = Case::dense("vibe", 1, 1, 192).heads(2, 2).sizes(64, 64).branches("s");
    let case = case.set("select_block", 8);
    let mut tensors = with_block_indices(&case, DType::F32, 12, |at| blocks[at % 12]);
    tensors.insert("g_slc".into(), Tensor::new(&[1, 1, 2], vec![1f32, 1.0]));
    let [q, k, v] = ["q", "k", "v"].map(|name| tensors[name].to_f64());
    let mut want = Vec::new();
    for head in 0..2 {
        let at = |from: &[f64], token: usize, x: usize| from[(token * 2 + head) * 64 + x];
        let dot = |token: usize| (0..64).map(|x| q[head * 64 + x] * at(&k, token, x)).sum::<f64>();
        let weights: Vec<f64> = tokens.iter().map(|token| (dot(*token) / 8.0).exp()).collect();
        let sum: f64 = weights.iter().sum();
        want.extend((0..64).map(|x| {
            weights.iter().zip(&tokens).map(|(w, token)| w * at(&v, *token, x)).sum::<f64>() / sum
        }));
    }
    let call = NsaOp.bind(&tensors, &case.settings).unwrap();
    for variant in variants(&call, &cpu()) {
        let got = launch(&call, &cpu(), variant);
        let error: f64 = got["o"].to_f64().iter().zip(&want).map(|(a, b)| (a - b).abs()).sum();
        assert!(error / 128.0 < 1e-6, "{variant}: mean absolute error {}", error / 128.0);
        assert_eq!(got["indices"].view::<i32>().unwrap(), blocks.repeat(2), "{variant}");
        assert_eq!(got["reads"].view::<i32>().unwrap(), [0, 96, 0, 0, 96, 0], "{variant}");
    }
    check_tensors("vibe", &tensors, &case.settings);
}

#[test]
fn block_indices_are_a_set_of_visible_blocks() {
    // Indices may be unordered, repeated, after the query, past the end, or -1.
    let case = Case::dense("given", 2, 50, 60).heads(6, 2).blocks(8, 4, 8, 5).set("window", 9);
    for dtype in ALL {
        for branches in ["s", "csw"] {
            let case = case.clone().branches(branches);
            let tensors =
                with_block_indices(&case, dtype, 5, |at| [3, 7, 3, -1, 90, 0, 0, 6, 5][at % 9]);
            check_tensors("given", &tensors, &case.settings);
            let none = with_block_indices(&case, dtype, 5, |_| -1);
            check_tensors("none given", &none, &case.settings);
        }
    }
    let tensors = with_block_indices(&case, DType::F32, 0, |_| unreachable!());
    let mut settings = case.settings.clone();
    settings.set("select_count", 0);
    check_tensors("n = 0", &tensors, &settings);
}

/// Identical keys give every whole block the same importance.
#[test]
fn ties_select_the_lower_blocks() {
    for dtype in ALL {
        for (heads, d, learned) in [(2, 16, false), (16, 64, false), (5, 33, false), (16, 24, true)]
        {
            let mut case =
                Case::dense("ties", 1, 900, 900).heads(heads, 1).sizes(d, 8).branches("s");
            if learned {
                case = case.learned(true);
            }
            let case = case.blocks(8, 4, 16, 7);
            let mut tensors = case.tensors(dtype);
            let row = tensors["k"].to_f64()[..d].repeat(900);
            tensors.insert("k".into(), Tensor::new(&[1, 900, 1, d], row).cast(dtype));
            let call = NsaOp.bind(&tensors, &case.settings).unwrap();
            for variant in variants(&call, &cpu()) {
                let got = launch(&call, &cpu(), variant);
                let indices = got["indices"].view::<i32>().unwrap();
                for (t, chosen) in indices.chunks_exact(7).enumerate() {
                    let own = t as i32 / 16;
                    let mut want: Vec<i32> = (0..5.min(own + 1)).collect();
                    want.extend([own - 1, own].into_iter().filter(|j| *j >= 5));
                    // If the two local blocks are among the first five, other blocks fill the selection.
                    for next in 5..own - 1 {
                        if want.len() < 7 {
                            want.push(next);
                        }
                    }
                    want.sort_unstable();
                    want.resize(7, -1);
                    assert_eq!(chosen, want, "{variant} {dtype} D{d} query {t}");
                }
            }
        }
    }
}

/// Numbers of tokens that the last query reads, counted by hand for the paper's sizes. With
/// 2048 tokens it reads (2048 - 32) / 16 + 1 compressed tokens, sixteen selected blocks of 64, and a window of 512.
#[test]
fn read_counts_match_the_paper() {
    for (tokens, want) in [
        (2048, [127, 1024, 512]),
        (2047, [126, 1023, 512]),
        (1985, [123, 961, 512]),
        (512, [31, 512, 512]),
        (31, [0, 31, 31]),
        (1, [0, 1, 1]),
    ] {
        let case = Case::dense("reads", 1, 1, tokens).heads(4, 2);
        let tensors = case.tensors(DType::Bf16);
        let call = NsaOp.bind(&tensors, &Settings::new()).unwrap();
        for variant in variants(&call, &cpu()) {
            let got = launch(&call, &cpu(), variant);
            let reads = got["reads"].view::<i32>().unwrap();
            assert_eq!(reads, [want, want].concat(), "{variant} {tokens}");
        }
    }
}

/// A block that is a thousand times as important as the rest must be selected at any position.
#[test]
fn an_important_block_is_selected() {
    for wanted in [1, 5, 11] {
        let case =
            Case::dense("needle", 1, 1, 16 * 64).heads(4, 1).branches("s").set("select_count", 4);
        let mut tensors = case.tensors(DType::F32);
        let q = vec![1f32; 4 * 16];
        let mut k = vec![0f32; 16 * 64 * 16];
        k[wanted * 64 * 16..(wanted + 1) * 64 * 16].fill(2.0);
        tensors.insert("q".into(), Tensor::new(&[1, 1, 4, 16], q));
        tensors.insert("k".into(), Tensor::new(&[1, 16 * 64, 1, 16], k));
        let call = NsaOp.bind(&tensors, &case.settings).unwrap();
        for variant in variants(&call, &cpu()) {
            let got = launch(&call, &cpu(), variant);
            let want = [0, wanted as i32, 14, 15];
            assert_eq!(got["indices"].view::<i32>().unwrap(), want, "{variant}");
        }
    }
}

/// The reference attends to the blocks that the kernel selected, so it must check them first.
#[test]
fn the_reference_refuses_a_wrong_selection() {
    let case = Case::dense("wrong", 1, 200, 200).heads(4, 1).sizes(32, 32).blocks(8, 4, 16, 4);
    let tensors = case.tensors(DType::F32);
    let call = NsaOp.bind(&tensors, &case.settings).unwrap();
    let right = launch(&call, &cpu(), "blocked.portable");
    call.reference_for(&right).unwrap();
    let row = 180 * 4;
    let chosen: [i32; 4] =
        right["indices"].view::<i32>().unwrap()[row..row + 4].try_into().unwrap();
    assert_eq!([chosen[0], chosen[2], chosen[3]], [0, 10, 11]);
    let off_by_one = if chosen[1] == 9 { 8 } else { chosen[1] + 1 };
    for (wrong, words) in [
        ([0, off_by_one, 10, 11], "query 180, key head 0: block "),
        ([chosen[1], 9, 10, 11], "query 180, key head 0: block"),
        ([0, 10, 11, -1], "query 180, key head 0: 3 blocks were selected, wanted 4"),
        ([0, 10, 11, 12], "query 180, key head 0: block 12 is not one of the 12"),
        ([i32::MIN; 4], "query 180, key head 0: blocks do not ascend"),
    ] {
        let mut outputs = right.clone();
        let indices = outputs.get_mut("indices").unwrap().view_mut::<i32>().unwrap();
        indices[row..row + 4].copy_from_slice(&wrong);
        let error = call.reference_for(&outputs).unwrap_err();
        assert!(error.starts_with(words), "{wrong:?}: {error}");
    }
}

/// The problem's FLOPs count the tokens that the kernel reports as read.
#[test]
fn flops_count_the_tokens_that_are_read() {
    let case = Case::packed("count", &[(40, 100), (77, 77)]).heads(4, 2).blocks(8, 4, 16, 4);
    let tensors = case.tensors(DType::F32);
    let call = NsaOp.bind(&tensors, &case.settings.clone().with("window", 19)).unwrap();
    let got = launch(&call, &cpu(), "blocked.portable");
    let mut flops = 0.0;
    for reads in got["reads"].view::<i32>().unwrap().chunks_exact(3) {
        flops += f64::from(reads.iter().sum::<i32>()) * 2.0 * 2.0 * (16.0 + 16.0);
    }
    // Plus the means of compressed blocks: 24 + 18 blocks of 8 tokens for each of 2 key heads, of keys and of values.
    flops += ((24 + 18) * 8 * 2 * (16 + 16)) as f64;
    assert_eq!(call.problem().flops(), flops);
    check(case, &[DType::F32]);
}
