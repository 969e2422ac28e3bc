//! Bitwise equality under repetition, other numbers of threads, decode and prefill, and zero gates.

use crate::case::{ALL, Case, cpu, launch, variants};
use ops::nsa::NsaOp;
use ops::{Element, Op, Tensor, TensorMap};

fn rows<E: Element>(tensor: &Tensor, from: usize, count: usize) -> Tensor {
    let width: usize = tensor.shape()[2..].iter().product();
    let shape = [&[1, count], &tensor.shape()[2..]].concat();
    Tensor::new(&shape, tensor.view::<E>().unwrap()[from * width..(from + count) * width].to_vec())
}

#[test]
fn results_do_not_depend_on_threads_or_repetition() {
    let case = Case::dense("threads", 2, 130, 200).heads(12, 2).blocks(8, 4, 16, 4);
    for dtype in ALL {
        let tensors = case.tensors(dtype);
        let call = NsaOp.bind(&tensors, &case.settings).unwrap();
        for variant in variants(&call, &cpu()) {
            let first = launch(&call, &cpu().with_threads(1), variant);
            for threads in [1, 2, 5] {
                let again = launch(&call, &cpu().with_threads(threads), variant);
                assert!(first == again, "{variant} {dtype} on {threads} threads");
            }
        }
    }
}

#[test]
fn prefill_and_decode_equal_one_prefill_bitwise() {
    let tokens = 150;
    let case = Case::dense("grow", 1, tokens, tokens).heads(6, 2).sizes(20, 12).blocks(8, 4, 16, 4);
    let case = case.set("window", 30);
    let all = case.tensors(ops::DType::F32);
    let part = |first: usize, end: usize| -> TensorMap {
        let cut = |(name, tensor): (&String, &Tensor)| {
            let first = if name == "k" || name == "v" { 0 } else { first };
            (name.clone(), rows::<f32>(tensor, first, end - first))
        };
        all.iter().map(cut).collect()
    };
    let device = cpu();
    let whole_call = NsaOp.bind(&all, &case.settings).unwrap();
    for variant in variants(&whole_call, &device) {
        let whole = launch(&whole_call, &device, variant);
        // A prefill, a chunk, then single tokens: past block, stride and window edges.
        let cuts = [0, 77, 90].into_iter().chain(91..=tokens).collect::<Vec<_>>();
        for pair in cuts.windows(2) {
            let tensors = part(pair[0], pair[1]);
            let call = NsaOp.bind(&tensors, &case.settings).unwrap();
            let step = launch(&call, &device, variant);
            let count = pair[1] - pair[0];
            let name = format!("{variant}, queries {pair:?}");
            assert!(step["o"] == rows::<f32>(&whole["o"], pair[0], count), "{name}");
            assert!(step["indices"] == rows::<i32>(&whole["indices"], pair[0], count), "{name}");
            assert!(step["reads"] == rows::<i32>(&whole["reads"], pair[0], count), "{name}");
        }
    }
}

/// Row R4-06: gates are per query and query head; with more than one key head and more than one head in a group a
/// gate that is broadcast wrongly applies to another head.
#[test]
fn gate_affects_only_its_own_head_and_query() {
    for (tq, tk) in [(40, 40), (1, 40)] {
        for gate in ["g_cmp", "g_slc", "g_swa"] {
            for (query, head) in [(tq - 1, 0), (tq - 1, 2), (tq - 1, 5), (tq / 2, 4)] {
                let case = Case::dense("gate", 1, tq, tk).heads(6, 2).blocks(8, 4, 8, 4);
                let mut tensors = case.tensors(ops::DType::F32);
                for name in ["g_cmp", "g_slc", "g_swa"] {
                    let mut gates = vec![0f32; tq * 6];
                    if name == gate {
                        gates[query * 6 + head] = 1.0;
                    }
                    tensors.insert(name.into(), Tensor::new(&[1, tq, 6], gates));
                }
                let call = NsaOp.bind(&tensors, &case.settings).unwrap();
                for variant in variants(&call, &cpu()) {
                    let o = launch(&call, &cpu(), variant)["o"].to_f64();
                    for (row, o) in o.chunks_exact(case.dv).enumerate() {
                        let open = row == query * 6 + head;
                        let name = format!("{variant} {gate} query {query} head {head} row {row}");
                        assert_eq!(o.iter().any(|x| *x != 0.0), open, "{name}");
                    }
                }
            }
        }
    }
}

/// Mean pooling equals learned pooling with the matrix I / l.
#[test]
fn learned_pooling_with_mean_weights_equals_mean_pooling() {
    let case = Case::dense("mean", 1, 60, 90).heads(4, 2).sizes(6, 6).blocks(8, 4, 16, 4);
    let plain = case.tensors(ops::DType::F32);
    let mut learned = plain.clone();
    let weight: Vec<f32> =
        (0..2 * 8 * 6 * 6).map(|at| if at / 6 % 6 == at % 6 { 1.0 / 8.0 } else { 0.0 }).collect();
    for name in ["cmp_k_weight", "cmp_v_weight"] {
        learned.insert(name.into(), Tensor::new(&[2, 48, 6], weight.clone()));
    }
    let plain_call = NsaOp.bind(&plain, &case.settings).unwrap();
    let settings = case.settings.clone().with("pooling", "learned");
    let learned_call = NsaOp.bind(&learned, &settings).unwrap();
    let (mean, same) = (plain_call.reference(), learned_call.reference());
    assert!(crate::case::relative(&same["o"], &mean["o"]) < 1e-14);
    assert_eq!(same["indices"], mean["indices"]);
    for variant in variants(&plain_call, &cpu()) {
        let got = launch(&learned_call, &cpu(), variant);
        assert!(crate::case::relative(&got["o"], &mean["o"]) < 1e-5, "{variant}");
    }
}
