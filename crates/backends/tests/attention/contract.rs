//! Names, errors, accounting and selection.

use crate::Case;
use crate::case::cpu;
use device::Isa;
use ops::{DType, OpError, Settings, Tensor, TensorMap};

fn bind_error(inputs: &TensorMap, settings: &Settings) -> OpError {
    match ops::op("attention").unwrap().bind(inputs, settings) {
        Ok(_) => panic!("an invalid call was accepted"),
        Err(error) => error,
    }
}

/// Checks the error of a valid call after a change of its inputs and settings.
fn refused(change: impl Fn(&mut TensorMap, &mut Settings), expect: &str) {
    let mut inputs = Case::new(2, 5, 4, 8).kv_heads(2).keys(6).inputs(DType::F32);
    let mut settings = Settings::new();
    change(&mut inputs, &mut settings);
    assert_eq!(bind_error(&inputs, &settings).to_string(), expect);
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::new(shape, vec![0f32; shape.iter().product()])
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    refused(
        |inputs, _| drop(inputs.remove("v")),
        "attention: tensor `v` [B, Tk, Hkv, Dv], [total, Hkv, Dv] or [blocks, block_size, Hkv, Dv] is missing",
    );
    refused(
        |inputs, _| drop(inputs.insert("k".into(), zeros(&[2, 6, 2, 9]))),
        "attention: tensor `k` has shape [2, 6, 2, 9], wanted [B=2, T=6, Hkv, D=8]",
    );
    refused(
        |inputs, _| drop(inputs.insert("v".into(), zeros(&[2, 7, 2, 8]))),
        "attention: tensor `v` has shape [2, 7, 2, 8], wanted [B=2, T=6, Hkv=2, Dv]",
    );
    refused(
        |inputs, _| drop(inputs.insert("q".into(), zeros(&[2, 5, 3, 8]))),
        "attention: tensor `k` has shape [2, 6, 2, 8], wanted a number of heads that divides the 3 heads of `q`",
    );
    refused(
        |inputs, _| drop(inputs.insert("q".into(), zeros(&[1, 5, 4, 8]))),
        "attention: tensor `k` has shape [2, 6, 2, 8], wanted as many sequences as `q`: 1",
    );
    refused(
        |inputs, _| drop(inputs.insert("q".into(), zeros(&[10, 4, 8]))),
        "attention: tensor `q` has shape [10, 4, 8], wanted 4 dimensions [B, T, ..] (packed tensors need `cu_seqlens`)",
    );
    refused(
        |inputs, _| drop(inputs.insert("k".into(), inputs["k"].cast(DType::Bf16))),
        "attention: tensor `k` is bf16, wanted f32 like the op's first tensor",
    );
    refused(
        |inputs, _| drop(inputs.insert("q".into(), inputs["q"].cast(DType::F64))),
        "attention: tensor `q` is f64, wanted f32, bf16 or f16",
    );
    refused(
        |inputs, _| drop(inputs.insert("q".into(), zeros(&[2, 5, 0, 8]))),
        "attention: tensor `q` has shape [2, 5, 0, 8], wanted at least one head and one channel",
    );
    refused(|_, settings| settings.set("window", 5), "attention: there is no setting `window`");
    refused(
        |_, settings| settings.set("value_width", 8),
        "attention: setting `value_width` is `8`, wanted no tensor `v`: the values are channels of `k`",
    );
    for width in [0, 9] {
        refused(
            |inputs, settings| {
                inputs.remove("v");
                settings.set("value_width", width);
            },
            &format!(
                "attention: setting `value_width` is `{width}`, wanted 1 to D = 8 channels of `k`"
            ),
        );
    }
    refused(
        |_, settings| settings.set("softcap", 0),
        "attention: setting `softcap` is `0`, wanted a number above 0 (leave it out for no cap)",
    );
    refused(
        |_, settings| settings.set("window_left", -1),
        "attention: setting `window_left` is `-1`, wanted a whole number, zero or more",
    );
}

#[test]
fn invalid_pages_are_refused_before_any_read() {
    let page = |table: Vec<i32>, lengths: Vec<i32>| {
        move |inputs: &mut TensorMap, _: &mut Settings| {
            inputs.insert("k".into(), zeros(&[4, 3, 2, 8]));
            inputs.insert("v".into(), zeros(&[4, 3, 2, 8]));
            inputs.insert("block_table".into(), Tensor::new(&[2, table.len() / 2], table.clone()));
            inputs.insert("cache_seqlens".into(), Tensor::new(&[lengths.len()], lengths.clone()));
        }
    };
    refused(
        page(vec![0, -1, 1, -1], vec![3, 4]),
        "attention: tensor `block_table` holds -1 at [1, 1], which cache_seqlens = 4 uses, but there are 4 blocks",
    );
    refused(
        page(vec![0, 4, 1, -1], vec![6, 3]),
        "attention: tensor `block_table` holds 4 at [0, 1], which cache_seqlens = 6 uses, but there are 4 blocks",
    );
    refused(
        page(vec![0, 1, 2, 3], vec![6, 7]),
        "attention: tensor `cache_seqlens` holds 7 at 1, wanted 0 to 6 (max_blocks * block_size)",
    );
    refused(
        page(vec![0, 1, 2, 3], vec![6]),
        "attention: tensor `cache_seqlens` has shape [1], wanted [B=2]",
    );
    refused(
        |inputs, _| drop(inputs.insert("block_table".into(), Tensor::new(&[2, 1], vec![0, 1]))),
        "attention: tensor `block_table` is read together with `cache_seqlens` only",
    );
    refused(
        |inputs, _| drop(inputs.insert("cache_seqlens".into(), Tensor::new(&[2], vec![7, 1]))),
        "attention: tensor `cache_seqlens` holds 7 at 0, wanted 0 to 6 (Tk)",
    );
}

#[test]
fn work_is_counted_by_the_formulas() {
    let count = |case: &Case| {
        let inputs = case.inputs(DType::Bf16);
        let call = ops::op("attention").unwrap().bind(&inputs, &case.settings).unwrap();
        (call.problem().flops(), call.problem().bytes())
    };
    let case = Case::new(2, 100, 8, 64).kv_heads(2);
    let q_o_lse = 2.0 * 100.0 * 8.0 * (2.0 * 64.0 * 2.0 + 4.0);
    let k_v = 2.0 * 100.0 * 2.0 * 2.0 * 64.0 * 2.0;
    let full = 4.0 * 2.0 * 8.0 * 100.0 * 100.0 * 64.0;
    assert_eq!(count(&case), (full, q_o_lse + k_v));
    assert_eq!(count(&case.clone().causal()), (full / 2.0, q_o_lse + k_v));
    // With a window, every 100 queries have 1 + 2 + 3 + 97 * 4 visible pairs.
    let seen = 1.0 + 2.0 + 3.0 + 97.0 * 4.0;
    let windowed = case.clone().causal().set("window_left", 3);
    assert_eq!(count(&windowed), (full * seen / 1e4, q_o_lse + k_v));
    // One causal query sees all of its keys; with a window only those in the window are read.
    let decode = Case::new(1, 1, 4, 64).kv_heads(1).keys(1000).causal();
    let q_o_lse = 4.0 * (2.0 * 64.0 * 2.0 + 4.0);
    assert_eq!(count(&decode), (4.0 * 4.0 * 1000.0 * 64.0, q_o_lse + 1000.0 * 2.0 * 64.0 * 2.0));
    let windowed = decode.clone().set("window_left", 99);
    assert_eq!(count(&windowed), (4.0 * 4.0 * 100.0 * 64.0, q_o_lse + 100.0 * 2.0 * 64.0 * 2.0));
    // Values that are channels of the keys are read with them.
    let mut inputs = decode.inputs(DType::Bf16);
    inputs.remove("v");
    let settings = decode.settings.with("value_width", 64);
    let call = ops::op("attention").unwrap().bind(&inputs, &settings).unwrap();
    assert_eq!(call.problem().bytes(), q_o_lse + 1000.0 * 64.0 * 2.0);
}

#[test]
fn selects_the_widest_instruction_set_with_reasons_for_the_others() {
    let inputs = Case::new(1, 4, 1, 8).inputs(DType::Bf16);
    let call = ops::op("attention").unwrap().bind(&inputs, &Settings::new()).unwrap();
    let everything = backends::variants("attention").len();
    for isa in cpu().capabilities().isas.clone() {
        let device = cpu().limited_to(isa);
        let selection = call.select(&device, None).unwrap();
        assert_eq!(selection.chosen, format!("flash.{isa}"));
        assert_eq!(selection.refused.len() + 1, everything);
        assert!(selection.refused.iter().all(|refusal| !refusal.reason.is_empty()));
    }
    let portable = cpu().limited_to(Isa::Portable);
    let refusal = call.select(&portable, Some("flash.avx2")).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "attention: variant `flash.avx2` cannot run this: needs avx2, this processor has portable"
    );
}
