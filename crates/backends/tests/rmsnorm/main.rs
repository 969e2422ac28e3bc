//! Compares every variant of rmsnorm with the float64 definition, and checks the calls it must refuse.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::rmsnorm::RmsNormOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, cpu, launch, launch_all};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A call of this shape, with weights per group if there are several groups, and optionally a gate.
fn tensors(shape: [usize; 4], gate: bool, dtype: DType) -> TensorMap {
    let mut random = Random(shape.iter().product::<usize>() as u64);
    let mut tensors = TensorMap::from([("x".to_owned(), random.tensor(&shape, dtype))]);
    let weight = if shape[2] > 1 { &shape[2..] } else { &shape[3..] };
    tensors.insert("weight".to_owned(), random.tensor(weight, DType::F32));
    if gate {
        tensors.insert("gate".to_owned(), random.tensor(&shape, dtype));
    }
    tensors
}

fn settings(norm_before_gate: bool, activation: &str) -> Settings {
    Settings::new().with("norm_before_gate", norm_before_gate).with("activation", activation)
}

#[test]
fn sizes_gates_and_orders_match_the_reference() {
    for channels in [1, 3, 15, 16, 17, 64, 100, 128, 1000, 4096] {
        for shape in [[1, 1, 1, channels], [2, 5, 1, channels], [1, 7, 3, channels]] {
            for gate in [false, true] {
                for (after, activation) in [(false, "silu"), (true, "sigmoid"), (true, "silu")] {
                    for dtype in ALL {
                        let tensors = tensors(shape, gate, dtype);
                        let settings = settings(after, activation);
                        check(&format!("{shape:?}"), &RmsNormOp, &tensors, &settings);
                    }
                }
            }
        }
    }
}

#[test]
fn shared_per_group_and_absent_weights_match_the_reference() {
    for dtype in ALL {
        let mut tensors = tensors([2, 3, 4, 20], true, dtype);
        for weight in [None, Some(vec![20]), Some(vec![4, 20])] {
            for stored in [DType::F32, dtype] {
                match &weight {
                    Some(shape) => {
                        let weight = Random(5).tensor(shape, stored);
                        drop(tensors.insert("weight".to_owned(), weight));
                    }
                    None => drop(tensors.remove("weight")),
                }
                check("weight", &RmsNormOp, &tensors, &Settings::new());
            }
        }
    }
}

#[test]
fn float32_input_is_normalised_to_16_bits() {
    for out in [DType::Bf16, DType::F16] {
        for shape in [[1, 3, 1, 1], [2, 5, 1, 100], [1, 7, 3, 33], [1, 2, 1, 2048]] {
            for stored in [DType::F32, out] {
                let mut tensors = tensors(shape, shape[2] > 1, DType::F32);
                let weight = tensors["weight"].cast(stored);
                tensors.insert("weight".to_owned(), weight);
                let settings = settings(false, "silu").with("out", out);
                check(&format!("{shape:?}"), &RmsNormOp, &tensors, &settings);
            }
        }
    }
    // Above 20 MiB, where stores become non-temporal.
    let settings = Settings::new().with("out", "bf16");
    check("streamed", &RmsNormOp, &tensors([1, 5203, 1, 2101], false, DType::F32), &settings);
}

#[test]
fn empty_inputs_match_the_reference() {
    for shape in [[0, 5, 1, 8], [2, 0, 1, 8], [1, 1, 0, 8]] {
        check("empty", &RmsNormOp, &tensors(shape, true, DType::Bf16), &Settings::new());
    }
}

#[test]
fn large_outputs_match_with_non_temporal_stores() {
    // Above 20 MiB, where stores become non-temporal; an odd number of channels leaves rows unaligned.
    check(
        "streamed",
        &RmsNormOp,
        &tensors([1, 2603, 1, 2101], false, DType::F32),
        &Settings::new(),
    );
    check(
        "streamed",
        &RmsNormOp,
        &tensors([1, 5203, 1, 2101], true, DType::Bf16),
        &Settings::new(),
    );
}

/// The reference compared with values computed by hand: x = [3, 4] has mean square 12.5.
#[test]
fn the_gate_multiplies_before_or_after_the_norm() {
    let row = |name: &str, values: [f32; 2], shape: &[usize]| {
        (name.to_owned(), Tensor::new(shape, values.to_vec()))
    };
    let shape = [1, 1, 1, 2];
    let mut tensors =
        TensorMap::from([row("x", [3.0, 4.0], &shape), row("weight", [1.0, 10.0], &[2])]);
    let of = |tensors: &TensorMap, settings: Settings| {
        let settings = settings.with("eps", 1e-12);
        check("by hand", &RmsNormOp, tensors, &settings);
        RmsNormOp.bind(tensors, &settings).unwrap().reference()["o"].to_f64()
    };
    let close = |got: Vec<f64>, want: [f64; 2]| {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} {want:?}");
    };
    let root = 12.5f64.sqrt();
    close(of(&tensors, Settings::new()), [3.0 / root, 40.0 / root]);

    tensors.extend([row("gate", [0.0, 2.0], &shape)]);
    let sigmoid = 1.0 / (1.0 + (-2f64).exp());
    let after = settings(true, "sigmoid");
    close(of(&tensors, after), [1.5 / root, 40.0 * sigmoid / root]);
    // The gate zeroes the first channel before the mean.
    close(of(&tensors, settings(false, "silu")), [0.0, 10.0 * 2f64.sqrt()]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let tensors = tensors([3, 50, 2, 700], true, DType::Bf16);
    for (variant, want) in launch_all(&RmsNormOp, &tensors, &Settings::new()) {
        for threads in [1, 2, 5] {
            let device = cpu().with_threads(threads);
            let got = launch(&RmsNormOp, &tensors, &Settings::new(), &device, variant);
            assert!(got == want, "{variant} on {threads} threads");
        }
    }
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let zeros = |shape: &[usize]| Tensor::new(shape, vec![0f32; shape.iter().product()]);
    let check_error = |name: &str, tensor: Tensor, settings: Settings, expect: &str| {
        let mut tensors = tensors([2, 3, 4, 20], true, DType::Bf16);
        tensors.insert(name.to_owned(), tensor);
        let error = RmsNormOp.bind(&tensors, &settings).err().unwrap();
        assert_eq!(error.to_string(), expect);
    };
    let none = Settings::new;
    check_error(
        "x",
        zeros(&[6, 80]),
        none(),
        "rmsnorm: tensor `x` has shape [6, 80], wanted [B, T, G, D]",
    );
    check_error(
        "gate",
        zeros(&[2, 3, 4, 20]),
        none(),
        "rmsnorm: tensor `gate` is f32, wanted bf16 like the op's first tensor",
    );
    check_error(
        "gate",
        zeros(&[2, 3, 1, 20]).cast(DType::Bf16),
        none(),
        "rmsnorm: tensor `gate` has shape [2, 3, 1, 20], wanted [B=2, T=3, G=4, D=20]",
    );
    check_error(
        "weight",
        zeros(&[80]),
        none(),
        "rmsnorm: tensor `weight` has shape [80], wanted [D=20]",
    );
    check_error(
        "weight",
        zeros(&[2, 20]),
        none(),
        "rmsnorm: tensor `weight` has shape [2, 20], wanted [G=4, D=20]",
    );
    check_error(
        "weight",
        zeros(&[20]).cast(DType::F16),
        none(),
        "rmsnorm: tensor `weight` is f16, wanted f32 or bf16 like `x`",
    );
    check_error(
        "weight",
        zeros(&[20]),
        none().with("eps", 0),
        "rmsnorm: setting `eps` is `0`, wanted a number above 0",
    );
    check_error(
        "weight",
        zeros(&[20]),
        none().with("out", "f16"),
        "rmsnorm: setting `out` is `f16`, wanted bf16 like `x`, for only f32 is rounded to another type",
    );
}
