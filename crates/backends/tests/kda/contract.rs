//! Calls that kda must refuse, with errors that name the tensor or setting; and its selection of variants.

use crate::case::{Gates, Kda, case};
use crate::scan_support::cpu;
use ops::kda::KdaOp;
use ops::{DType, Op, Settings, Tensor, TensorMap};

fn check(change: impl Fn(&mut TensorMap, &mut Settings), expect: &str) {
    let case = case(vec![3; 2], Kda::default());
    let (mut tensors, mut settings) = (case.tensors(DType::Bf16), case.settings);
    change(&mut tensors, &mut settings);
    let error = KdaOp.bind(&tensors, &settings).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some(expect));
}

fn put(tensors: &mut TensorMap, name: &str, shape: &[usize], dtype: DType) {
    let values = vec![0f64; shape.iter().product()];
    tensors.insert(name.to_owned(), Tensor::new(shape, values).cast(dtype));
}

#[test]
fn refuses_invalid_shapes_and_types() {
    check(
        |tensors, _| put(tensors, "k", &[2, 3, 2, 63], DType::Bf16),
        "kda: tensor `k` has shape [2, 3, 2, 63], wanted [B=2, T=3, H=2, K=64]",
    );
    check(
        |tensors, _| put(tensors, "v", &[2, 3, 3, 64], DType::Bf16),
        "kda: tensor `v` has shape [2, 3, 3, 64], wanted HV to be a multiple of H=2",
    );
    check(
        |tensors, _| put(tensors, "g", &[2, 3, 2], DType::Bf16),
        "kda: tensor `g` has shape [2, 3, 2], wanted [B=2, T=3, HV=2, K=64]",
    );
    check(
        |tensors, _| put(tensors, "q", &[2, 3, 0, 64], DType::Bf16),
        "kda: tensor `q` has shape [2, 3, 0, 64], wanted at least one head and one channel",
    );
    check(
        |tensors, _| put(tensors, "v", &[2, 3, 2, 64], DType::F32),
        "kda: tensor `v` is f32, wanted bf16 like the op's first tensor",
    );
    check(
        |tensors, _| put(tensors, "g", &[2, 3, 2, 64], DType::F16),
        "kda: tensor `g` is f16, wanted bf16 or f32",
    );
    check(
        |tensors, _| put(tensors, "q", &[2, 3, 2, 64], DType::F64),
        "kda: tensor `q` is f64, wanted f32, bf16 or f16",
    );
    check(
        |tensors, _| put(tensors, "initial_state", &[2, 2, 64, 64], DType::F16),
        "kda: tensor `initial_state` is f16, wanted f32 or bf16",
    );
    check(
        |tensors, _| put(tensors, "initial_state", &[2, 2, 64, 63], DType::F32),
        "kda: tensor `initial_state` has shape [2, 2, 64, 63], wanted [N=2, HV=2, K=64, V=64]",
    );
}

#[test]
fn refuses_settings_without_effect() {
    check(
        |_, settings| settings.set("gate", "safe"),
        "kda: setting `gate` is `safe`, wanted nothing without tensor `A_log` (g and beta are used as given)",
    );
    check(
        |tensors, _| put(tensors, "dt_bias", &[2, 64], DType::F32),
        "kda: tensor `dt_bias` is for gate logits and needs tensor `A_log`",
    );
    let with_gate = |name: &'static str, value: &'static str| {
        move |tensors: &mut TensorMap, settings: &mut Settings| {
            put(tensors, "A_log", &[2], DType::F32);
            settings.set(name, value);
        }
    };
    check(
        with_gate("lower_bound", "-5"),
        "kda: setting `lower_bound` is `-5`, wanted nothing unless `gate` is safe",
    );
    check(with_gate("gate", "hard"), "kda: setting `gate` is `hard`, wanted one of plain, safe");
    check(
        |tensors, settings| {
            put(tensors, "A_log", &[2], DType::F32);
            settings.set("gate", "safe");
            settings.set("lower_bound", 0.5);
        },
        "kda: setting `lower_bound` is `0.5`, wanted a number below 0",
    );
    check(
        |tensors, _| {
            put(tensors, "A_log", &[2], DType::F32);
            put(tensors, "dt_bias", &[2, 63], DType::F32);
        },
        "kda: tensor `dt_bias` has shape [2, 63], wanted [HV=2, K=64]",
    );
}

#[test]
fn flat_and_two_dimensional_dt_bias_are_equal() {
    let gates = Gates::Logits {
        gate: "plain",
        lower_bound: None,
        mean: 0.0,
        deviation: 1.0,
        bias: Some(2.0),
    };
    let case = case(vec![5], Kda { gates, ..Kda::default() });
    let flat = case.tensors(DType::F32);
    let mut square = flat.clone();
    let values = flat["dt_bias"].view::<f32>().unwrap().to_vec();
    square.insert("dt_bias".into(), Tensor::new(&[2, 64], values));
    let reference = |tensors: &TensorMap| KdaOp.bind(tensors, &case.settings).unwrap().reference();
    assert_eq!(reference(&flat), reference(&square));
}

#[test]
fn selection_gives_its_reasons() {
    for (tokens, scheme) in [(1, "recurrent"), (200, "chunk")] {
        let case = case(vec![tokens], Kda::default());
        let tensors = case.tensors(DType::F32);
        let call = KdaOp.bind(&tensors, &case.settings).unwrap();
        let selection = call.select(&cpu(), None).unwrap();
        assert!(selection.chosen.starts_with(scheme), "{tokens} tokens: {selection:?}");
        assert!(selection.refused.iter().all(|refusal| !refusal.reason.is_empty()));
        let portable = cpu().limited_to(device::Isa::Portable);
        assert_eq!(call.select(&portable, None).unwrap().chosen, format!("{scheme}.portable"));
    }
}
