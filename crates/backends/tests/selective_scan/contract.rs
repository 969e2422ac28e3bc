//! Calls that selective_scan must refuse, with their messages.

use crate::scan_support::{Random, cpu, launch};
use crate::{Case, Scan};
use ops::selective_scan::{SelectiveScanCall, SelectiveScanOp, SelectiveScanOptions};
use ops::{DType, Op, Settings, States, Tensor, TensorMap, Typed};

/// A call of a small case with one thing changed, and the error it must give.
fn check_error(change: impl Fn(&mut TensorMap), settings: Settings, expect: &str) {
    let mut tensors =
        Case { tokens: vec![4; 2], ..Case::with(Scan { channels: 6, ..Scan::default() }) }
            .tensors(DType::Bf16);
    change(&mut tensors);
    let error = SelectiveScanOp.bind(&tensors, &settings).err().unwrap();
    assert_eq!(error.to_string(), format!("selective_scan: {expect}"));
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let f32s = |shape: &[usize], x: f32| Tensor::new(shape, vec![x; shape.iter().product()]);
    let put = |name: &'static str, tensor: Tensor| {
        move |tensors: &mut TensorMap| drop(tensors.insert(name.to_owned(), tensor.clone()))
    };
    let none = Settings::new;
    check_error(|tensors| drop(tensors.remove("A")), none(), "tensor `A` [E, N] is missing");
    check_error(
        put("A", f32s(&[5, 16], -1.0)),
        none(),
        "tensor `A` has shape [5, 16], wanted [E=6, N]",
    );
    check_error(
        put("B", Random(1).tensor(&[2, 4, 4, 16], DType::Bf16)),
        none(),
        "tensor `B` has shape [2, 4, 4, 16], wanted a number of groups that divides the 6 channels of `u`",
    );
    check_error(
        put("C", Random(1).tensor(&[2, 4, 1, 8], DType::Bf16)),
        none(),
        "tensor `C` has shape [2, 4, 1, 8], wanted [B=2, T=4, G=1, N=16]",
    );
    check_error(
        put("z", f32s(&[2, 4, 6], 1.0)),
        none(),
        "tensor `z` is f32, wanted bf16 like the op's first tensor",
    );
    check_error(
        put("delta", Tensor::new(&[2, 4, 6], vec![0f64; 48])),
        none(),
        "tensor `delta` is f64, wanted f32 or bf16 like `u`",
    );
    check_error(put("D", f32s(&[3], 1.0)), none(), "tensor `D` has shape [3], wanted [E=6]");
    check_error(
        put("initial_state", Random(1).tensor(&[2, 6, 16], DType::Bf16)),
        none(),
        "tensor `initial_state` is bf16, wanted f32, the storage type of states",
    );
    check_error(
        put("initial_state", f32s(&[3, 6, 16], 1.0)),
        none(),
        "tensor `initial_state` has shape [3, 6, 16], wanted one state for each of the 2 sequences",
    );
    check_error(put("x", f32s(&[1], 1.0)), none(), "there is no tensor `x`");
    check_error(
        put("delta_bias", f32s(&[6], f32::NAN)),
        none(),
        "tensor `delta_bias` is NaN at element 0",
    );
    check_error(|_| (), none().with("dt_min", 0), "there is no setting `dt_min`");
}

#[test]
fn a_typed_call_equals_the_call_by_names() {
    let params = Scan { gate: true, delta: (2.0, 3.0), ..Scan::default() };
    let case = Case { tokens: vec![5; 2], initial: true, ..Case::with(params) };
    let tensors = case.tensors(DType::F32);
    let get = |name: &str| tensors.get(name);
    let device = cpu();
    for delta_softplus in [true, false] {
        let call = SelectiveScanCall {
            u: &tensors["u"],
            delta: &tensors["delta"],
            a: &tensors["A"],
            b: &tensors["B"],
            c: &tensors["C"],
            d: get("D"),
            z: get("z"),
            delta_bias: get("delta_bias"),
            offsets: None,
            states: States { before: get("initial_state"), slots: None, after: None },
            options: SelectiveScanOptions { delta_softplus },
            o: None,
        };
        let mut ran = TensorMap::new();
        call.run(&device, &mut ran).unwrap();
        let settings = Settings::new().with("delta_softplus", delta_softplus);
        let bound = SelectiveScanOp.bind(&tensors, &settings).unwrap();
        let chosen = bound.select(&device, None).unwrap().chosen;
        let named = launch(&SelectiveScanOp, &tensors, &settings, &device, chosen);
        assert_eq!(ran, named, "delta_softplus={delta_softplus}");
    }
}
