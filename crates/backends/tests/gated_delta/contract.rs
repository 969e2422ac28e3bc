//! Errors of wrong calls name the tensor or setting; calls by name and by struct give the same result.

use crate::scan_support::{Random, cpu, launch};
use crate::{Delta, case};
use ops::gated_delta::{GatedDeltaCall, GatedDeltaOp, GatedDeltaOptions};
use ops::{DType, Op, Settings, States, TensorMap, Typed};

fn check(change: impl Fn(&mut TensorMap, &mut Settings), expect: &str) {
    let case = case("wrong", vec![3; 2], Delta::default());
    let (mut tensors, mut settings) = (case.tensors(DType::Bf16), case.settings);
    change(&mut tensors, &mut settings);
    let error = GatedDeltaOp.bind(&tensors, &settings).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some(expect));
}

fn put(tensors: &mut TensorMap, name: &str, shape: &[usize]) {
    tensors.insert(name.to_owned(), Random(1).tensor(shape, DType::F32));
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    check(
        |tensors, _| put(tensors, "g", &[2, 3, 4, 32]),
        "gated_delta: tensor `g` has shape [2, 3, 4, 32], wanted [B=2, T=3, HV=4]",
    );
    check(
        |tensors, _| {
            put(tensors, "A_log", &[4]);
            put(tensors, "dt_bias", &[4, 32]);
        },
        "gated_delta: tensor `dt_bias` has shape [4, 32], wanted [HV=4]",
    );
    check(
        |tensors, _| put(tensors, "dt_bias", &[4]),
        "gated_delta: tensor `dt_bias` is for gate logits and needs tensor `A_log`",
    );
    check(
        |_, settings| settings.set("allow_neg_eigval", true),
        "gated_delta: setting `allow_neg_eigval` is `true`, wanted nothing without tensor `A_log` (g and beta are used as given)",
    );
    check(|_, settings| settings.set("gate", "safe"), "gated_delta: there is no setting `gate`");
}

#[test]
fn a_typed_call_equals_the_call_by_names() {
    let case = case("by struct", vec![70], Delta { logits: Some(1.0), ..Delta::default() });
    let tensors = case.tensors(DType::F32);
    let settings = case.settings.with("allow_neg_eigval", true).with("scale", 0.3);
    let get = |name: &str| &tensors[name];
    let call = GatedDeltaCall {
        q: get("q"),
        k: get("k"),
        v: get("v"),
        g: get("g"),
        beta: get("beta"),
        a_log: tensors.get("A_log"),
        dt_bias: tensors.get("dt_bias"),
        offsets: None,
        states: States { before: tensors.get("initial_state"), ..States::default() },
        options: GatedDeltaOptions { scale: Some(0.3), l2norm: true, allow_neg_eigval: Some(true) },
        o: None,
    };
    let device = cpu();
    let mut ran = TensorMap::new();
    call.run(&device, &mut ran).unwrap();
    let bound = GatedDeltaOp.bind(&tensors, &settings).unwrap();
    let chosen = bound.select(&device, None).unwrap().chosen;
    assert_eq!(ran, launch(&GatedDeltaOp, &tensors, &settings, &device, chosen));
}

#[test]
fn selection_gives_its_reasons() {
    for (tokens, scheme) in [(1, "recurrent"), (200, "chunk")] {
        let case = case("selection", vec![tokens], Delta::default());
        let tensors = case.tensors(DType::F32);
        let call = GatedDeltaOp.bind(&tensors, &case.settings).unwrap();
        let selection = call.select(&cpu(), None).unwrap();
        assert!(selection.chosen.starts_with(scheme), "{tokens} tokens: {selection:?}");
        assert!(selection.refused.iter().all(|refusal| !refusal.reason.is_empty()));
        let portable = cpu().limited_to(device::Isa::Portable);
        assert_eq!(call.select(&portable, None).unwrap().chosen, format!("{scheme}.portable"));
    }
}
