//! Calls that conv1d must refuse, with their messages.

use crate::scan_support::ints;
use crate::{Conv, case};
use ops::conv1d::Conv1dOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};

/// A call of a small case with one thing changed, and the error it must give.
fn check_error(change: impl Fn(&mut TensorMap), settings: Settings, expect: &str) {
    let params = Conv { state_len: Some(3), ..Conv::default() };
    let mut tensors = case("wrong", vec![4; 2], params).tensors(DType::Bf16);
    change(&mut tensors);
    let error = Conv1dOp.bind(&tensors, &settings).err().unwrap();
    assert_eq!(error.to_string(), expect);
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let zeros = |shape: &[usize]| Tensor::new(shape, vec![0f32; shape.iter().product()]);
    let put = |name: &'static str, tensor: Tensor| {
        move |tensors: &mut TensorMap| drop(tensors.insert(name.to_owned(), tensor.clone()))
    };
    let none = Settings::new;
    check_error(
        |tensors| drop(tensors.remove("weight")),
        none(),
        "conv1d: tensor `weight` [C, W] is missing",
    );
    check_error(
        put("weight", zeros(&[20, 5])),
        none(),
        "conv1d: tensor `weight` has shape [20, 5], wanted a width W of 2, 3 or 4",
    );
    check_error(
        put("weight", zeros(&[21, 4])),
        none(),
        "conv1d: tensor `weight` has shape [21, 4], wanted [C=20, W]",
    );
    check_error(
        put("bias", zeros(&[4])),
        none(),
        "conv1d: tensor `bias` has shape [4], wanted [C=20]",
    );
    check_error(
        put("bias", Tensor::new(&[20], vec![0f64; 20])),
        none(),
        "conv1d: tensor `bias` is f64, wanted f32 or bf16 like `x`",
    );
    check_error(
        put("initial_state", zeros(&[2, 20, 2])),
        none(),
        "conv1d: tensor `initial_state` has shape [2, 20, 2], wanted S >= 3 tokens for a width of 4",
    );
    check_error(
        put("initial_state", zeros(&[2, 20, 3]).cast(DType::Bf16)),
        none(),
        "conv1d: tensor `initial_state` is bf16, wanted f32, the storage type of states",
    );
    check_error(
        put("state_positions", ints(&[3, -1])),
        none(),
        "conv1d: tensor `state_positions` is -1 for sequence 1, wanted zero or more",
    );
    check_error(
        |tensors| {
            tensors.remove("initial_state");
            tensors.insert("state_positions".to_owned(), ints(&[3, 1]));
        },
        none(),
        "conv1d: tensor `state_positions` needs the `initial_state` that it points into",
    );
    check_error(
        put("cu_seqlens", ints(&[0, 8])),
        none().with("layout", "channel_first"),
        "conv1d: tensor `cu_seqlens` needs packed tokens [total, C], which layout=channel_first has not",
    );
    check_error(
        |_| (),
        none().with("activation", "gelu"),
        "conv1d: setting `activation` is `gelu`, wanted one of none, silu",
    );
    check_error(
        put("x", zeros(&[8, 20])),
        none(),
        "conv1d: tensor `x` has shape [8, 20], wanted 3 dimensions [B, T, ..] (packed tensors need `cu_seqlens`)",
    );
}
