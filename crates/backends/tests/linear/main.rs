//! Every variant of linear against the float64 definition, and the calls it must refuse.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::linear::LinearOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};
use scan_support::{Random, check, cpu, launch, launch_all};

const ALL: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A call with every optional tensor but a residual; `w` is `[N, K]`.
fn tensors([tokens, inputs, outputs]: [usize; 3], dtype: DType) -> TensorMap {
    let mut random = Random((tokens * 7 + inputs * 3 + outputs) as u64);
    let scale = (inputs as f64).powf(-0.5);
    let put = |name: &str, tensor: Tensor| (name.to_owned(), tensor);
    TensorMap::from([
        put("x", random.tensor(&[tokens, inputs], dtype)),
        put("w", random.range(&[outputs, inputs], dtype, -scale, scale)),
        put("norm", random.range(&[inputs], DType::F32, 0.5, 1.5)),
        put("bias", random.tensor(&[outputs], DType::F32)),
    ])
}

fn settings(list: &[(&str, &str)]) -> Settings {
    list.iter().fold(Settings::new(), |settings, (name, value)| settings.with(name, value))
}

#[test]
fn sizes_types_and_activations() {
    for size in
        [[1, 1, 64], [2, 7, 6], [5, 64, 128], [33, 513, 66], [65, 100, 130], [130, 1030, 64]]
    {
        for dtype in ALL {
            for activation in ["none", "swiglu", "relu_squared"] {
                let settings = settings(&[("activation", activation), ("scale", "0.5")]);
                check(
                    &format!("{size:?} {activation}"),
                    &LinearOp,
                    &tensors(size, dtype),
                    &settings,
                );
            }
        }
    }
}

#[test]
fn inputs_are_of_the_storage_type_or_float32_or_absent() {
    for dtype in ALL {
        for stored in [DType::F32, dtype] {
            let mut tensors = tensors([9, 96, 40], dtype);
            for name in ["x", "norm", "bias"] {
                let tensor = tensors[name].cast(stored);
                tensors.insert(name.to_owned(), tensor);
            }
            check("stored", &LinearOp, &tensors, &settings(&[("norm_groups", "3")]));
            check("f32 out", &LinearOp, &tensors, &settings(&[("out", "f32")]));
            for name in ["norm", "bias"] {
                tensors.remove(name);
                check(name, &LinearOp, &tensors, &Settings::new());
            }
        }
    }
}

#[test]
fn writes_columns_to_one_or_several_outputs_or_a_residual() {
    for dtype in ALL {
        let mut tensors = tensors([6, 72, 400], dtype);
        check("split", &LinearOp, &tensors, &settings(&[("split", "1,63,64,200,71,1")]));
        let swiglu = settings(&[("activation", "swiglu"), ("split", "100,100")]);
        check("swiglu split", &LinearOp, &tensors, &swiglu);
        tensors.insert("residual".to_owned(), Random(3).tensor(&[6, 400], DType::F32));
        check("residual", &LinearOp, &tensors, &settings(&[("scale", "0.22")]));
    }
}

#[test]
fn no_rows_or_no_columns_are_no_error() {
    for size in [[0, 16, 8], [3, 16, 0]] {
        check("empty", &LinearOp, &tensors(size, DType::Bf16), &Settings::new());
    }
}

/// The reference itself, by hand.
#[test]
fn float_matches_a_calculation_by_hand() {
    let row = |name: &str, values: &[f32], shape: &[usize]| {
        (name.to_owned(), Tensor::new(shape, values.to_vec()))
    };
    let mut tensors = TensorMap::from([
        row("x", &[3.0, 4.0], &[1, 2]),
        row("w", &[1.0, 0.0, 0.0, 1.0], &[2, 2]),
        row("bias", &[0.5, -1.0], &[2]),
    ]);
    let of = |tensors: &TensorMap, list: &[(&str, &str)]| -> Vec<f64> {
        let settings = settings(list);
        check("by hand", &LinearOp, tensors, &settings);
        LinearOp.bind(tensors, &settings).unwrap().reference()["o"].to_f64()
    };
    let close = |got: Vec<f64>, want: &[f64]| {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} {want:?}");
    };
    close(of(&tensors, &[]), &[3.5, 3.0]);
    let silu = 3.5 / (1.0 + (-3.5f64).exp());
    close(of(&tensors, &[("activation", "swiglu"), ("scale", "2")]), &[2.0 * silu * 3.0]);
    tensors.extend([row("norm", &[1.0, 10.0], &[2]), row("residual", &[100.0, 200.0], &[1, 2])]);
    // [3, 4] has mean square 12.5.
    let root = (12.5f64 + 1e-12).sqrt();
    let normed = [3.0 / root + 0.5, 40.0 / root - 1.0];
    let want = normed.map(|value| 2.0 * value);
    close(of(&tensors, &[("eps", "1e-12"), ("scale", "2")]), &[100.0 + want[0], 200.0 + want[1]]);
    // With one channel per group only signs remain.
    let tiny = [("eps", "1e-12"), ("norm_groups", "2")];
    let alone = [3.0 / (9.0 + 1e-12f64).sqrt(), 40.0 / (16.0 + 1e-12f64).sqrt()];
    close(of(&tensors, &tiny), &[100.5 + alone[0], 199.0 + alone[1]]);
}

/// A call with u4 weights and scales, without zero points or offsets.
fn four_bits() -> TensorMap {
    let row = |name: &str, values: &[f64], shape: &[usize], dtype| {
        (name.to_owned(), Tensor::new(shape, values.to_vec()).cast(dtype))
    };
    TensorMap::from([
        row("x", &[1.0, 2.0], &[1, 2], DType::Bf16),
        row("w", &[1.0, 2.0, 3.0, 15.0], &[2, 2], DType::U4),
        row("w_scale", &[2.0, 0.5], &[1, 2], DType::F32),
    ])
}

#[test]
fn int4_matches_a_calculation_by_hand() {
    let below = [
        (None, [2.0 * (-7.0 - 12.0), 0.5 * (-5.0 + 14.0)]),
        (Some(("w_zero", DType::U8)), [2.0 * (0.0 + 2.0), 0.5 * (0.0 + 24.0)]),
        (Some(("w_offset", DType::F32)), [(2.0 - 1.0) + 2.0 * (4.0 - 1.0), -1.5 + 2.0 * 4.5]),
    ];
    for (below, want) in below {
        let mut tensors = four_bits();
        if let Some((name, dtype)) = below {
            tensors.insert(name.to_owned(), Tensor::new(&[1, 2], vec![1.0, 3.0]).cast(dtype));
        }
        check("by hand", &LinearOp, &tensors, &Settings::new());
        let found = LinearOp.bind(&tensors, &Settings::new()).unwrap().reference();
        assert_eq!(found["o"].to_f64(), want, "{below:?}");
    }
}

#[test]
fn invalid_offsets_are_named() {
    let offset =
        |shape: &[usize], dtype| Tensor::new(shape, vec![0f64; shape.iter().product()]).cast(dtype);
    let refused = |added: &[(&str, Tensor)], expect: &str| {
        let added = added.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone()));
        let tensors: TensorMap = four_bits().into_iter().chain(added).collect();
        let error = LinearOp.bind(&tensors, &Settings::new()).err().unwrap();
        assert_eq!(error.to_string(), format!("linear: {expect}"));
    };
    let good = || ("w_offset", offset(&[1, 2], DType::F32));
    let w = |dtype| ("w", offset(&[2, 2], dtype));
    refused(&[good(), w(DType::I8)], "tensor `w_offset` is for weights in u4");
    refused(&[good(), w(DType::Bf16)], "tensor `w_offset` is for weights in u4");
    refused(
        &[good(), ("w_zero", offset(&[1, 2], DType::U8))],
        "tensor `w_offset` is given in addition to `w_zero`",
    );
    let half = offset(&[1, 2], DType::F16);
    refused(&[("w_offset", half)], "tensor `w_offset` is f16, wanted f32");
    let wide = offset(&[1, 3], DType::F32);
    refused(&[("w_offset", wide)], "tensor `w_offset` has shape [1, 3], wanted [G=1, N=2]");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let tensors = tensors([5, 700, 330], DType::Bf16);
    for (variant, want) in launch_all(&LinearOp, &tensors, &Settings::new()) {
        for threads in [1, 2, 5] {
            let device = cpu().with_threads(threads);
            let got = launch(&LinearOp, &tensors, &Settings::new(), &device, variant);
            assert!(got == want, "{variant} on {threads} threads");
        }
    }
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let zeros = |shape: &[usize]| Tensor::new(shape, vec![0f32; shape.iter().product()]);
    let check_error = |name: &str, tensor: Tensor, list: &[(&str, &str)], expect: &str| {
        let mut tensors = tensors([2, 24, 40], DType::Bf16);
        tensors.insert(name.to_owned(), tensor);
        let error = LinearOp.bind(&tensors, &settings(list)).err().unwrap();
        assert_eq!(error.to_string(), format!("linear: {expect}"));
    };
    let refused = |list: &[(&str, &str)], expect: &str| {
        check_error("bias", zeros(&[40]), list, expect);
    };
    let residual = || zeros(&[2, 40]);
    check_error(
        "x",
        zeros(&[2, 0]),
        &[],
        "tensor `x` has shape [2, 0], wanted [T, K] with a K above 0",
    );
    check_error("x", zeros(&[2, 23]), &[], "tensor `w` has shape [40, 24], wanted [N, K=23]");
    check_error("w", zeros(&[40, 24]), &[], "tensor `x` is bf16, wanted f32 like `w`");
    let half = zeros(&[24]).cast(DType::F16);
    check_error("norm", half, &[], "tensor `norm` is f16, wanted f32 or bf16 like `w`");
    check_error("norm", zeros(&[25]), &[], "tensor `norm` has shape [25], wanted [K=24]");
    check_error("bias", zeros(&[41]), &[], "tensor `bias` has shape [41], wanted [N=40]");
    let swiglu = ("activation", "swiglu");
    check_error(
        "residual",
        residual(),
        &[swiglu],
        "tensor `residual` has shape [2, 40], wanted [T=2, M=20]",
    );
    let stored = residual().cast(DType::Bf16);
    check_error("residual", stored, &[], "tensor `residual` is bf16, wanted f32");
    check_error(
        "residual",
        residual(),
        &[("split", "20,20")],
        "setting `split` is `20,20`, wanted no split with a `residual`",
    );
    check_error(
        "residual",
        residual(),
        &[("out", "storage")],
        "setting `out` is `storage`, wanted f32, as the `residual` that is added is",
    );
    refused(&[("eps", "0")], "setting `eps` is `0`, wanted a number above 0");
    refused(&[("norm_groups", "5")], "setting `norm_groups` is `5`, wanted a divisor of K=24");
    refused(&[("split", "20,21")], "setting `split` is `20,21`, wanted widths that sum up to M=40");
    refused(
        &[("split", "1,1,1,1,1,1,34")],
        "setting `split` is `1,1,1,1,1,1,34`, wanted at most 6 widths",
    );
    let odd = Tensor::new(&[41, 24], vec![0f32; 41 * 24]).cast(DType::Bf16);
    check_error(
        "w",
        odd,
        &[swiglu],
        "tensor `w` has shape [41, 24], wanted [N, K] with an even N for swiglu",
    );
}
