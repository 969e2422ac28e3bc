//! States carried between calls, and pools of them.

use crate::case::{Case, Decay, Gates, SLOT_POISON, bind, compare, cpu, run, tolerance};
use kernels::kda::KdaOp;
use kernels::{DType, Element, Op, Tensor, TensorMap};

/// Tokens `range` of a dense batch of one.
fn tokens(tensors: &TensorMap, range: std::ops::Range<usize>) -> TensorMap {
    let mut part = tensors.clone();
    for name in ["q", "k", "v", "g", "beta"] {
        let tensor = &tensors[name];
        let mut shape = tensor.shape().to_vec();
        let row: usize = shape[2..].iter().product();
        shape[1] = range.len();
        let values = tensor.view::<f32>().unwrap()[range.start * row..range.end * row].to_vec();
        part.insert(name.to_owned(), Tensor::new(&shape, values));
    }
    part
}

#[test]
fn a_second_call_continues_the_first() {
    let case = Case { lengths: Ok([1, 500]), dims: [64, 96], ..Case::default() };
    let (whole, settings) = case.inputs(DType::F32, 11);
    let device = cpu();
    let reference = bind(&whole, &settings).unwrap().reference();
    for (variant, _) in KdaOp.variants() {
        for cut in [499, 256, 37] {
            let first = tokens(&whole, 0..cut);
            let call = bind(&first, &settings).unwrap();
            let Some(before) = run(call.as_ref(), &device, variant) else { continue };
            let mut second = tokens(&whole, cut..500);
            second.insert("initial_state".into(), before["final_state"].clone());
            let call = bind(&second, &settings).unwrap();
            // A chunk variant leaves the last token to the token loop.
            let after = KdaOp.variants().iter().find_map(|(other, _)| {
                if *other == variant || cut == 499 {
                    run(call.as_ref(), &device, other)
                } else {
                    None
                }
            });
            let after = after.unwrap();
            let o = [before["o"].to_f64(), after["o"].to_f64()].concat();
            let what = format!("{variant} cut at {cut}");
            compare(&o, &reference["o"].to_f64(), 1e-5, &what);
            compare(
                &after["final_state"].to_f64(),
                &reference["final_state"].to_f64(),
                1e-5,
                &what,
            );
        }
    }
}

#[test]
fn a_pool_keeps_untouched_slots_and_skips_padding() {
    for (lengths, slots, indices) in [
        (Ok([7, 1]), 16, vec![3, 15, -1, 0, 8, 9, 1]),
        (Ok([16, 1]), 17, (0..16).rev().collect()),
        (Ok([32, 1]), 40, (0..32).map(|i| if i % 5 == 2 { -1 } else { i + 8 }).collect()),
        (Ok([3, 70]), 5, vec![4, -1, 2]),
        (Err(vec![0, 20, 20, 150, 151]), 6, vec![5, 0, -7, 2]),
        (Ok([2, 0]), 3, vec![-1, 2]),
    ] {
        let case = Case {
            lengths,
            heads: [2, 4],
            dims: [32, 40],
            pool: Some((slots, indices.clone())),
            ..Case::default()
        };
        for dtype in [DType::F32, DType::Bf16] {
            let (tensors, settings) = case.inputs(dtype, 21);
            let call = bind(&tensors, &settings).unwrap();
            let reference = call.reference();
            let size = 4 * 32 * 40;
            for (variant, _) in KdaOp.variants() {
                let Some(outputs) = run(call.as_ref(), &cpu(), variant) else { continue };
                let what = format!("{variant} {dtype} {case:?}");
                let got = outputs["final_state"].view::<f32>().unwrap();
                let expected = reference["final_state"].to_f64();
                for slot in 0..slots {
                    let part = slot * size..(slot + 1) * size;
                    if !indices.contains(&(slot as i32)) {
                        assert!(got[part].iter().all(|x| *x == SLOT_POISON), "slot {slot}: {what}");
                        continue;
                    }
                    let got: Vec<f64> = got[part.clone()].iter().map(|x| f64::from(*x)).collect();
                    let limit = tolerance(variant, "final_state", dtype);
                    compare(&got, &expected[part], limit, &what);
                }
                compare(&outputs["o"].to_f64(), &reference["o"].to_f64(), 5e-3, &what);
                assert_padding_is_zero(&case, &indices, &outputs["o"].to_f64(), &what);
            }
        }
    }
}

fn assert_padding_is_zero(case: &Case, indices: &[i32], o: &[f64], what: &str) {
    let row = 4 * 40;
    let offsets: Vec<usize> = match &case.lengths {
        Ok([batch, tokens]) => (0..=*batch).map(|i| i * tokens).collect(),
        Err(offsets) => offsets.iter().map(|offset| *offset as usize).collect(),
    };
    for (sequence, _) in indices.iter().enumerate().filter(|(_, index)| **index < 0) {
        let rows = &o[offsets[sequence] * row..offsets[sequence + 1] * row];
        assert!(rows.iter().all(|x| *x == 0.0), "padding sequence {sequence}: {what}");
    }
}

#[test]
fn a_state_stored_in_bfloat16_is_widened() {
    for tokens in [1, 80] {
        let case = Case { lengths: Ok([2, tokens]), ..Case::default() };
        let (mut tensors, settings) = case.inputs(DType::Bf16, 31);
        let narrow = tensors["initial_state"].cast(DType::Bf16);
        tensors.insert("initial_state".into(), narrow);
        let call = bind(&tensors, &settings).unwrap();
        let reference = call.reference();
        for (variant, _) in KdaOp.variants() {
            let Some(outputs) = run(call.as_ref(), &cpu(), variant) else { continue };
            assert_eq!(outputs["final_state"].dtype(), DType::F32);
            let got = outputs["final_state"].to_f64();
            let limit = tolerance(variant, "final_state", DType::Bf16);
            compare(&got, &reference["final_state"].to_f64(), limit, variant);
        }
    }
}

#[test]
fn large_states_go_past_the_cache_unharmed() {
    // More state than the streaming threshold, at a size whose rows are no multiple of a cache line.
    for dims in [[128, 128], [100, 99]] {
        let case = Case {
            lengths: Ok([6, 1]),
            heads: [2, 100],
            dims,
            gates: Gates::Decay(Decay::Soft(0.0)),
            pool: Some((8, vec![7, 0, 3, -1, 2, 5])),
            ..Case::default()
        };
        let (tensors, settings) = case.inputs(DType::F32, 41);
        let call = bind(&tensors, &settings).unwrap();
        let reference = call.reference();
        for (variant, _) in KdaOp.variants() {
            let Some(outputs) = run(call.as_ref(), &cpu(), variant) else { continue };
            // The poison in the untouched slots would hide everything else in one norm over all of them.
            let clean = |values: &[f64]| -> Vec<f64> {
                values.iter().map(|x| if *x == f64::from(SLOT_POISON) { 0.0 } else { *x }).collect()
            };
            let got = clean(&f32_values(&outputs["final_state"]));
            compare(&got, &clean(&reference["final_state"].to_f64()), 1e-5, variant);
        }
    }
}

fn f32_values(tensor: &Tensor) -> Vec<f64> {
    f32::view(tensor).unwrap().iter().map(|x| f64::from(*x)).collect()
}
