//! Calls that ssd must refuse, with their messages.

use crate::scan_support::Random;
use crate::{Case, Ssd};
use ops::ssd::SsdOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};

/// Checks the error of a small valid call after one change.
fn check_error(change: impl Fn(&mut TensorMap), settings: Settings, expect: &str) {
    let mut tensors = Case::<Ssd> { tokens: vec![4; 2], ..Case::default() }.tensors(DType::Bf16);
    change(&mut tensors);
    let error = SsdOp.bind(&tensors, &settings).err().unwrap();
    assert_eq!(error.to_string(), expect);
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let f32s = |shape: &[usize], x: f32| Tensor::new(shape, vec![x; shape.iter().product()]);
    let put = |name: &'static str, tensor: Tensor| {
        move |tensors: &mut TensorMap| drop(tensors.insert(name.to_owned(), tensor.clone()))
    };
    let none = Settings::new;
    check_error(|tensors| drop(tensors.remove("A")), none(), "ssd: tensor `A` [H] is missing");
    check_error(put("A", f32s(&[3], -1.0)), none(), "ssd: tensor `A` has shape [3], wanted [H=2]");
    check_error(
        put("A", Tensor::new(&[2], vec![-1f32, 0.5])),
        none(),
        "ssd: tensor `A` is 0.5 for head 1, wanted a finite rate that is not positive (A = -exp(A_log))",
    );
    check_error(
        put("B", Random(1).tensor(&[2, 4, 3, 16], DType::Bf16)),
        none(),
        "ssd: tensor `B` has shape [2, 4, 3, 16], wanted a number of groups that divides the 2 heads of `x`",
    );
    check_error(
        put("C", Random(1).tensor(&[2, 4, 1, 8], DType::Bf16)),
        none(),
        "ssd: tensor `C` has shape [2, 4, 1, 8], wanted [B=2, T=4, G=1, N=16]",
    );
    check_error(
        put("C", f32s(&[2, 4, 1, 16], 1.0)),
        none(),
        "ssd: tensor `C` is f32, wanted bf16 like the op's first tensor",
    );
    check_error(
        put("x", Tensor::new(&[2, 4, 2, 16], vec![0f64; 256])),
        none(),
        "ssd: tensor `x` is f64, wanted f32, bf16 or f16",
    );
    check_error(
        put("dt", Tensor::new(&[2, 4, 2], vec![0f64; 16])),
        none(),
        "ssd: tensor `dt` is f64, wanted f32 or bf16 like `x`",
    );
    check_error(
        put("D", f32s(&[2, 3], 1.0)),
        none(),
        "ssd: tensor `D` has shape [2, 3], wanted [H=2, P=16]",
    );
    check_error(
        put("initial_state", Random(1).tensor(&[2, 2, 16, 16], DType::F16)),
        none(),
        "ssd: tensor `initial_state` is f16, wanted f32 or bf16, the storage types of states",
    );
    let bf16_state = put("initial_state", Random(1).tensor(&[2, 2, 16, 16], DType::Bf16));
    check_error(
        &bf16_state,
        none().with("state_dtype", "f32"),
        "ssd: setting `state_dtype` is `f32`, wanted bf16, the type of `initial_state`",
    );
    let bf16_state_with_f32_inputs = |tensors: &mut TensorMap| {
        for name in ["x", "B", "C"] {
            tensors.insert(name.to_owned(), tensors[name].cast(DType::F32));
        }
        tensors.insert("dt".to_owned(), f32s(&[2, 4, 2], 0.0));
        bf16_state(tensors);
    };
    let words = "ssd: setting `state_dtype` is `bf16`, wanted f32 with `x` in f32";
    check_error(bf16_state_with_f32_inputs, none(), words);
    check_error(
        put("z", f32s(&[2, 4, 2], 1.0)),
        none(),
        "ssd: tensor `z` has shape [2, 4, 2], wanted [B=2, T=4, H=2, P=16]",
    );
    check_error(put("gate", f32s(&[1], 1.0)), none(), "ssd: there is no tensor `gate`");
    check_error(
        put("dt_bias", f32s(&[2], f32::NAN)),
        none(),
        "ssd: tensor `dt_bias` is NaN at element 0",
    );
    check_error(
        |_| (),
        none().with("dt_min", 0.5).with("dt_max", 0.1),
        "ssd: setting `dt_max` is `0.1`, wanted at least dt_min = 0.5",
    );
    check_error(
        |_| (),
        none().with("dt_min", -1),
        "ssd: setting `dt_min` is `-1`, wanted zero or more",
    );
    check_error(
        |_| (),
        none().with("chunk_size", 0),
        "ssd: setting `chunk_size` is `0`, wanted one token or more",
    );
}
