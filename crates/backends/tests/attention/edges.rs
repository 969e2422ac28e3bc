//! Masks, extreme logits, rows without a visible key.

use crate::case::{check_inputs, cpu, run, variants};
use crate::{Case, check};
use ops::{DType, Settings, Tensor, TensorMap};

#[test]
fn one_causal_query_sees_every_key() {
    // A top-left aligned mask would leave key 0 only: the answer would be v[0].
    for keys in [2, 65, 700] {
        check(&Case::new(2, 1, 2, 64).keys(keys).causal());
        check(&Case::new(2, 13, 2, 64).keys(keys).causal());
    }
    let inputs = Case::new(1, 1, 1, 64).keys(700).inputs(DType::F32);
    let causal = Settings::new().with("causal", true);
    let op = ops::op("attention").unwrap();
    let (masked, open) =
        (op.bind(&inputs, &causal).unwrap(), op.bind(&inputs, &Settings::new()).unwrap());
    let device = cpu();
    for variant in variants(&masked, &device) {
        let (a, b) = (run(&masked, &device, variant), run(&open, &device, variant));
        assert_eq!(a, b, "{variant}");
    }
}

#[test]
fn queries_before_the_first_key_see_nothing() {
    for (queries, keys) in [(2, 1), (40, 1), (100, 37), (300, 130), (5, 0), (50, 0)] {
        let case = Case::new(2, queries, 2, 32).keys(keys).causal();
        check(&case);
        let inputs = case.inputs(DType::F32);
        let call = ops::op("attention").unwrap().bind(&inputs, &case.settings).unwrap();
        let device = cpu();
        for variant in variants(&call, &device) {
            let outputs = run(&call, &device, variant);
            let (o, lse) = (outputs["o"].to_f64(), outputs["lse"].to_f64());
            let empty = queries - keys.min(queries);
            assert!(o[..empty * 2 * 32].iter().all(|x| *x == 0.0), "{variant} {queries} {keys}");
            assert!(
                lse[..empty].iter().all(|x| *x == f64::NEG_INFINITY),
                "{variant} {queries} {keys}"
            );
        }
    }
}

#[test]
fn windows_limit_the_visible_keys() {
    for (queries, keys) in [(1, 1000), (8, 200), (50, 50), (200, 200), (130, 300), (200, 90)] {
        for (left, right) in [(0, 0), (5, 0), (0, 5), (40, 3), (150, 150), (1000, 1000)] {
            let case = Case::new(1, queries, 2, 32).keys(keys);
            check(&case.clone().set("window_left", left).set("window_right", right));
            check(&case.clone().set("window_left", left));
            check(&case.clone().set("window_right", right));
            check(&case.set("window_left", left).causal());
        }
    }
}

#[test]
fn logits_may_be_capped_and_scaled() {
    for case in [Case::new(1, 70, 2, 64).causal(), Case::new(2, 1, 4, 64).kv_heads(1).keys(90)] {
        for softcap in [0.5, 5.0, 50.0, 1e4] {
            check(&case.clone().set("softcap", softcap));
            check(&case.clone().set("softcap", softcap).set("window_left", 20).spread(4.0));
        }
        for scale in ["0.3", "0", "-0.2", "1e-6"] {
            check(&case.clone().set("scale", scale));
            check(&case.clone().set("scale", scale).set("softcap", 3));
        }
    }
}

#[test]
fn large_logits_neither_overflow_nor_vanish() {
    for case in [Case::new(1, 70, 1, 64).causal(), Case::new(1, 2, 1, 64).keys(200)] {
        // Logits around +-30 and +-300: exp of them overflows or is lost without the running maximum.
        check(&case.clone().spread(30.0));
        check(&case.spread(300.0));
    }
}

#[test]
fn large_negative_logits_do_not_underflow() {
    for (queries, keys) in [(1, 100), (40, 100), (40, 40)] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut inputs = Case::new(1, queries, 1, 16).keys(keys).inputs(dtype);
            // Every logit is -2^20 + q.k: exp underflows unless the maximum is subtracted first.
            let shift = |tensor: &Tensor, value: f64| {
                let mut values = tensor.to_f64();
                values.chunks_mut(16).for_each(|row| row[0] = value);
                values.chunks_mut(16).for_each(|row| row[1..].iter_mut().for_each(|x| *x = 0.0));
                Tensor::new(tensor.shape(), values).cast(dtype)
            };
            inputs.insert("q".into(), shift(&inputs["q"], -1024.0));
            inputs.insert("k".into(), shift(&inputs["k"], 1024.0));
            let settings = Settings::new().with("scale", 1).with("causal", true);
            check_inputs(&format!("-2^20, Tq {queries}"), &inputs, &settings);
        }
    }
}

#[test]
fn invisible_keys_do_not_change_the_output() {
    // Values of invisible keys are near the largest f32, so even a weight of 2^-120 would change the output.
    for (queries, group) in [(50, 1), (3, 1), (3, 8)] {
        let case = Case::new(1, queries, group, 32).kv_heads(1).causal().set("window_left", 0);
        let mut inputs = case.inputs(DType::F32);
        let clean = inputs.clone();
        let poison = |inputs: &TensorMap, name: &str, row: usize| {
            let mut values = inputs[name].to_f64();
            values[row * 32..(row + 1) * 32].fill(3e38);
            Tensor::new(inputs[name].shape(), values).cast(DType::F32)
        };
        inputs.insert("v".into(), poison(&inputs, "v", 1));
        let op = ops::op("attention").unwrap();
        let (a, b) =
            (op.bind(&clean, &case.settings).unwrap(), op.bind(&inputs, &case.settings).unwrap());
        let device = cpu();
        for variant in variants(&a, &device) {
            let (a, b) = (run(&a, &device, variant), run(&b, &device, variant));
            let (a, b) = (a["o"].to_f64(), b["o"].to_f64());
            let row = group * 32;
            assert_eq!(a[..row], b[..row], "{variant}");
            assert_eq!(a[2 * row..], b[2 * row..], "{variant}");
            assert_ne!(a[row..2 * row], b[row..2 * row], "{variant}");
        }
    }
}
