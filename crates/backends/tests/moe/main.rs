//! Every variant of moe against the float64 reference, and the calls it must refuse.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::moe::MoeOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, cpu, launch, launch_all, limit, relative};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// The tensors of a call, by the sizes T, H, E and I.
fn tensors([tokens, hidden, experts, inner]: [usize; 4], dtype: DType) -> TensorMap {
    let mut random = Random((tokens * hidden + experts * inner) as u64);
    let mut put =
        |name: &str, shape: &[usize], dtype| (name.to_owned(), random.tensor(shape, dtype));
    TensorMap::from([
        put("x", &[tokens, hidden], dtype),
        put("logits", &[tokens, experts], DType::F32),
        put("w_gate_up", &[experts, 2 * inner, hidden], dtype),
        put("w_down", &[experts, hidden, inner], dtype),
    ])
}

fn with(mut tensors: TensorMap, name: &str, shape: &[usize]) -> TensorMap {
    tensors.insert(name.to_owned(), Random(7).tensor(shape, DType::F32));
    tensors
}

fn with_ungated_weights(mut tensors: TensorMap, shape: [usize; 3], dtype: DType) -> TensorMap {
    tensors.insert("w_gate_up".to_owned(), Random(8).tensor(&shape, dtype));
    tensors
}

fn top(top_k: usize) -> Settings {
    Settings::new().with("top_k", top_k)
}

#[track_caller]
fn check(case: &str, tensors: &TensorMap, settings: &Settings) {
    let call = MoeOp.bind(tensors, settings).unwrap();
    for (variant, got) in launch_all(&MoeOp, tensors, settings) {
        let want = call.reference_for(&got).unwrap();
        for spec in call.problem().outputs() {
            let (got, want) = (&got[spec.name], &want[spec.name]);
            assert_eq!((got.dtype(), got.shape()), (spec.dtype, want.shape()), "{case} {variant}");
            let error = relative(&got.to_f64(), &want.to_f64());
            let limit = limit(call.problem().dtype());
            assert!(error <= limit, "{case} {variant}: {} is off by {error:.2e}", spec.name);
        }
    }
}

#[test]
fn matches_the_reference_for_sizes_scores_and_types() {
    for dtype in ALL {
        for [tokens, hidden, experts, inner, k] in [
            [1, 8, 4, 8, 2],
            [3, 33, 5, 7, 5],
            [1, 1, 1, 1, 1],
            [100, 40, 3, 70, 2],
            [9, 130, 16, 65, 4],
            [250, 16, 2, 8, 1],
            [0, 8, 4, 8, 2],
            [2, 8, 3, 0, 2],
        ] {
            let sizes = [tokens, hidden, experts, inner];
            let case = format!("{sizes:?} top {k}");
            let plain = tensors(sizes, dtype);
            check(&case, &plain, &top(k));
            let sigmoid = top(k).with("score", "sigmoid").with("weight_scale", 2.446);
            check(&case, &plain, &sigmoid);
            let given = with(plain, "correction", &[experts]);
            let given = with(given, "residual", &[tokens, hidden]);
            let sigmoid = sigmoid.with("scale", 0.22).with("renormalise", false);
            check(&case, &given, &sigmoid);
            let biased = with(given.clone(), "gate_up_bias", &[experts, 2 * inner]);
            let biased = with(biased, "down_bias", &[experts, hidden]);
            let clamped = sigmoid.clone().with("activation", "clamped_swiglu").with("limit", 0.5);
            check(&case, &biased, &clamped);
            let ungated = with_ungated_weights(given, [experts, inner, hidden], dtype);
            check(&case, &ungated, &sigmoid.with("activation", "relu_squared"));
        }
    }
}

/// The reference compared with values by hand: with W_gate = W_up = 1 and W_down = d, expert e computes silu(x) x d_e.
#[test]
fn correction_affects_selection_but_not_weights() {
    let tensor = |shape: &[usize], values: Vec<f32>| Tensor::new(shape, values);
    let mut tensors = TensorMap::from([
        ("x".to_owned(), tensor(&[1, 1], vec![2.0])),
        ("logits".to_owned(), tensor(&[1, 3], vec![0.0, 1.0, -1.0])),
        ("w_gate_up".to_owned(), tensor(&[3, 2, 1], vec![1.0; 6])),
        ("w_down".to_owned(), tensor(&[3, 1, 1], vec![1.0, 10.0, 100.0])),
    ]);
    let silu = 2.0 / (1.0 + (-2f64).exp()) * 2.0;
    // `sum` is the sum of the weights.
    let check = |tensors: &TensorMap, settings: Settings, o: f64, chosen: &[f64], sum: f64| {
        check("by hand", tensors, &settings);
        let got = MoeOp.bind(tensors, &settings).unwrap().reference();
        assert!((got["o"].to_f64()[0] - o).abs() < 1e-9 * o, "{got:?}, wanted {o}");
        assert_eq!(got["chosen"].to_f64(), chosen);
        assert!((got["weights"].to_f64().iter().sum::<f64>() - sum).abs() < 1e-9, "{got:?}");
    };
    let e = 1f64.exp();
    check(&tensors, top(2), silu * (10.0 * e + 1.0) / (e + 1.0), &[1.0, 0.0], 1.0);
    check(&tensors, top(1).with("scale", 3), 30.0 * silu, &[1.0], 1.0);
    let (all, of_all) = (1.0 + e + 1.0 / e, top(2).with("score", "softmax_of_all"));
    check(&tensors, of_all, silu * (10.0 * e + 1.0) / all, &[1.0, 0.0], (e + 1.0) / all);

    let [zero, one, minus] = [0f64, 1.0, -1.0].map(|logit| 1.0 / (1.0 + (-logit).exp()));
    let sigmoid = top(2).with("score", "sigmoid");
    let sum = zero + one;
    check(&tensors, sigmoid.clone(), silu * (10.0 * one + zero) / sum, &[1.0, 0.0], 1.0);
    // With the correction expert 2 is chosen; its weight does not include the correction.
    tensors.insert("correction".to_owned(), tensor(&[3], vec![0.0, 0.0, 5.0]));
    let sum = minus + one;
    let weighed = silu * (100.0 * minus + 10.0 * one);
    check(&tensors, sigmoid.clone(), weighed / sum, &[2.0, 1.0], 1.0);
    check(&tensors, sigmoid.with("renormalise", false), weighed, &[2.0, 1.0], sum);
}

/// Shared experts (`always`, the last ones) have no logits and weight 1, and count as read.
#[test]
fn every_token_uses_the_shared_experts() {
    for dtype in ALL {
        for [tokens, chosen, always] in [[1, 2, 1], [5, 4, 2], [130, 1, 3], [0, 2, 1]] {
            let sizes = [tokens, 40, 4 + always, 24];
            let all = tensors(sizes, dtype);
            let given = with(all.clone(), "logits", &[tokens, 4]);
            let settings = top(chosen).with("score", "sigmoid").with("weight_scale", 2.446);
            let settings = settings.with("scale", 0.22);
            let both = settings.clone().with("always", always);
            check(&format!("{sizes:?} top {chosen}"), &given, &both);
            let cut = |range: std::ops::Range<usize>| {
                let part = |name: &str| {
                    let all = &all[name];
                    let [_, rows, columns] = *all.shape() else { unreachable!() };
                    (name.to_owned(), all.part(&[range.clone(), 0..rows, 0..columns]))
                };
                [part("w_gate_up"), part("w_down")]
            };
            let mut routed = given.clone();
            routed.extend(cut(0..4));
            // The shared experts as routed ones with equal weights.
            let mut rest = given.clone();
            rest.extend(cut(4..4 + always));
            let zeros = Tensor::new(&[tokens, always], vec![0f32; tokens * always]);
            rest.insert("logits".to_owned(), zeros);
            let apart = top(always).with("weight_scale", always).with("scale", 0.22);
            let bind = |tensors: &TensorMap, settings: &Settings| {
                MoeOp.bind(tensors, settings).unwrap().reference()
            };
            let (sum, parts) =
                (bind(&given, &both), [bind(&routed, &settings), bind(&rest, &apart)]);
            let parts = parts.each_ref().map(|part| part["o"].to_f64());
            let expect: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a + b).collect();
            assert!(relative(&sum["o"].to_f64(), &expect) < 1e-12);
            let weights = sum["weights"].to_f64();
            let own = weights.chunks(chosen + always).map(|own| &own[chosen..]);
            assert!(own.flatten().all(|weight| *weight == 1.0));
        }
    }
    let all = tensors([3, 8, 5, 4], DType::Bf16);
    let given = with(all, "logits", &[3, 4]);
    let call = |always: usize| MoeOp.bind(&given, &top(4).with("always", always));
    assert_eq!(call(1).unwrap().problem().flops(), (3 * 5 * 6 * 8 * 4) as f64);
    let error = call(2).err().unwrap().to_string();
    assert_eq!(error, "moe: tensor `w_down` has shape [5, 8, 4], wanted [E + always=6, H=8, I]");
    let settings = top(4).with("always", 1).with("experts_first", 0);
    let error = MoeOp.bind(&given, &settings).err().unwrap().to_string();
    assert_eq!(error, "moe: setting `always` is `1`, wanted 0 with experts_first");
    let mut outputs = call(1).unwrap().reference();
    outputs.insert("chosen".to_owned(), Tensor::new(&[3, 5], [0i32, 1, 2, 3, 0].repeat(3)));
    let error = call(1).unwrap().reference_for(&outputs).unwrap_err();
    assert_eq!(error, "token 0: expert 0 is at the place of the shared expert 4");
}

/// Without a gate, expert e computes max(0, x w_e)^2 d_e.
#[test]
fn experts_without_gates_use_relu_squared() {
    let tensor = |shape: &[usize], values: Vec<f32>| Tensor::new(shape, values);
    let tensors = TensorMap::from([
        ("x".to_owned(), tensor(&[1, 1], vec![2.0])),
        ("logits".to_owned(), tensor(&[1, 2], vec![0.0, 0.0])),
        ("w_gate_up".to_owned(), tensor(&[2, 2, 1], vec![1.5, -1.0, -3.0, 0.5])),
        ("w_down".to_owned(), tensor(&[2, 1, 2], vec![1.0, 10.0, 100.0, 1000.0])),
    ]);
    let settings = top(2).with("activation", "relu_squared");
    check("by hand", &tensors, &settings);
    let got = MoeOp.bind(&tensors, &settings).unwrap().reference();
    // Both experts have weight 1/2; only the channels with weights 1.5 and 0.5 are above 0.
    assert_eq!(got["o"].to_f64(), [0.5 * (9.0 + 1000.0)]);
}

/// The gate is clamped from above only, up on both sides. With biases the two experts' gates are 3 and -7, their ups -3 and
/// 2.
#[test]
fn clamped_swiglu_limits_gates_above_and_ups_on_both_sides() {
    let tensor = |shape: &[usize], values: Vec<f32>| Tensor::new(shape, values);
    let tensors = TensorMap::from([
        ("x".to_owned(), tensor(&[1, 1], vec![2.0])),
        ("logits".to_owned(), tensor(&[1, 2], vec![0.0, 0.0])),
        ("w_gate_up".to_owned(), tensor(&[2, 2, 1], vec![1.0; 4])),
        ("w_down".to_owned(), tensor(&[2, 1, 1], vec![1.0, 10.0])),
        ("gate_up_bias".to_owned(), tensor(&[2, 2], vec![1.0, -5.0, -9.0, 0.0])),
        ("down_bias".to_owned(), tensor(&[2, 1], vec![0.5, 4.0])),
    ]);
    let settings =
        top(2).with("activation", "clamped_swiglu").with("limit", 2.5).with("alpha", 1.5);
    check("by hand", &tensors, &settings);
    let got = MoeOp.bind(&tensors, &settings).unwrap().reference();
    let swish = |g: f64| g / (1.0 + (-1.5 * g).exp());
    // The clamps change 3 to 2.5 and -3 to -2.5; -7 and 2 are unchanged.
    let want = 0.5 * (swish(2.5) * (1.0 - 2.5) + 0.5) + 0.5 * (10.0 * swish(-7.0) * 3.0 + 4.0);
    assert!((got["o"].to_f64()[0] - want).abs() < 1e-9, "{got:?} {want}");
}

#[test]
fn ties_select_the_lower_experts() {
    let mut tensors = tensors([2, 8, 6, 4], DType::F32);
    tensors.insert("logits".to_owned(), Tensor::new(&[2, 6], vec![0.5f32; 12]));
    for score in ["softmax_of_chosen", "softmax_of_all", "sigmoid"] {
        let settings = top(3).with("score", score);
        for (variant, got) in launch_all(&MoeOp, &tensors, &settings) {
            assert_eq!(got["chosen"].to_f64(), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "{variant}");
        }
        check("ties", &tensors, &settings);
    }
}

#[test]
fn only_selected_experts_count_as_read() {
    let mut tensors = tensors([2, 8, 6, 4], DType::Bf16);
    let of = |tensors: &TensorMap| {
        let call = MoeOp.bind(tensors, &top(2)).unwrap();
        (call.problem().bytes(), call.problem().flops())
    };
    let logits =
        |second: [f32; 6]| Tensor::new(&[2, 6], [[9.0, 8.0, 0.0, 0.0, 0.0, 0.0], second].concat());
    // Bytes of x and o, of logits, and of chosen and weights.
    let rest = (2 * 2 * 8 * 2 + 2 * 6 * 4 + 2 * 2 * 2 * 4) as f64;
    for (second, experts) in
        [([9.0, 8.0, 0.0, 0.0, 0.0, 0.0], 2.0), ([0.0, 8.0, 9.0, 0.0, 0.0, 0.0], 3.0)]
    {
        tensors.insert("logits".to_owned(), logits(second));
        assert_eq!(of(&tensors), (experts * (3 * 8 * 4 * 2) as f64 + rest, (6 * 4 * 8 * 4) as f64));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let tensors = with(tensors([30, 70, 9, 66], DType::Bf16), "residual", &[30, 70]);
    for (variant, want) in launch_all(&MoeOp, &tensors, &top(4)) {
        for threads in [1, 2, 5] {
            let got = launch(&MoeOp, &tensors, &top(4), &cpu().with_threads(threads), variant);
            assert!(got == want, "{variant} on {threads} threads");
        }
    }
}

#[test]
fn invalid_expert_selections_are_named() {
    let tensors = tensors([2, 8, 6, 4], DType::F32);
    let call = MoeOp.bind(&tensors, &top(2)).unwrap();
    let mut outputs = call.reference();
    let error = call.reference_for(&outputs).unwrap_err();
    assert_eq!(error, "tensor `chosen` is f64 of shape [2, 2], wanted i32 [2, 2]");
    outputs.insert("chosen".to_owned(), Tensor::new(&[2, 2], vec![0i32; 4]));
    let error = call.reference_for(&outputs).unwrap_err();
    assert_eq!(error, "token 0: expert 0 was chosen twice");
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let zeros = |shape: &[usize]| Tensor::new(shape, vec![0f32; shape.iter().product()]);
    let check_error = |name: &str, tensor: Tensor, settings: Settings, expect: &str| {
        let mut tensors = tensors([3, 8, 6, 4], DType::Bf16);
        tensors.insert(name.to_owned(), tensor);
        let error = MoeOp.bind(&tensors, &settings).err().unwrap();
        assert_eq!(error.to_string(), expect);
    };
    let sigmoid = || top(2).with("score", "sigmoid");
    for (name, shape, expect) in [
        ("logits", [2, 6].as_slice(), "shape [2, 6], wanted [T=3, E]"),
        ("w_down", &[6, 8, 4], "f32, wanted bf16, like `w_gate_up`"),
        ("residual", &[3, 9], "shape [3, 9], wanted [T=3, H=8]"),
        ("correction", &[5], "shape [5], wanted [E=6]"),
    ] {
        let verb = if expect.starts_with("shape") { "has" } else { "is" };
        let expect = format!("moe: tensor `{name}` {verb} {expect}");
        check_error(name, zeros(shape), sigmoid(), &expect);
    }
    let stored = |shape: &[usize]| zeros(shape).cast(DType::Bf16);
    let expect = "moe: tensor `w_gate_up` has shape [6, 4, 8], wanted [E=6, 2I=8, H=8]";
    check_error("w_gate_up", stored(&[6, 4, 8]), top(2), expect);
    check_error("logits", stored(&[3, 6]), top(2), "moe: tensor `logits` is bf16, wanted f32");
    let expect = "moe: tensor `correction` is added to sigmoid scores, and this call has none: give score=sigmoid";
    check_error("correction", zeros(&[6]), top(2), expect);
    let logits = || Random(1).tensor(&[3, 6], DType::F32);
    for (settings, given) in [(Settings::new(), "missing"), (top(0), "0"), (top(7), "7")] {
        let expect =
            format!("moe: setting `top_k` is `{given}`, wanted 1 to the 6 experts of `logits`");
        check_error("logits", logits(), settings, &expect);
    }
}
