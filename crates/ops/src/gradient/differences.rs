//! Compares the float64 reference of a gradient with finite differences of the op's float64 reference.

use super::{Differentiable, Gradient};
use crate::{DType, Inputs, Op, Options, Settings, Tensor, TensorMap};
use std::collections::BTreeSet;

/// Random directions in which each input is changed.
const DIRECTIONS: usize = 3;
/// Step of the differences.
const STEP: f64 = 1e-4;
/// Tolerated error relative to the sum of the absolute products of gradient and direction.
const RELATIVE: f64 = 1e-7;
/// Rounding error of a difference, relative to the sum of the absolute values that are subtracted.
const ROUNDING: f64 = 1e-11;

/// A tensor of float32 values uniform in [-range, range).
pub(crate) fn uniform(name: &str, shape: &[usize], range: f32) -> Tensor {
    Tensor::uniform::<f32>(name, shape, [-range, range])
}

/// A tensor of offsets or other 32-bit integers.
pub(crate) fn integers(values: &[i32]) -> Tensor {
    Tensor::new(&[values.len()], values.to_vec())
}

/// Checks every gradient of a call in random directions.
///
/// The loss is the sum of the outputs times random factors, which are the outputs' gradients.
pub(crate) fn check<F: Differentiable>(what: &str, inputs: &[(&str, Tensor)], settings: &Settings) {
    let inputs: TensorMap =
        inputs.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    let options = F::Options::read(settings).unwrap();
    let problem = F::parse(Inputs::of_map(F::SPEC, &inputs), &options).unwrap();
    let to = |dtype: DType| {
        move |(name, tensor): (&String, &Tensor)| match tensor.dtype() {
            DType::I32 => (name.clone(), tensor.clone()),
            _ => (name.clone(), tensor.cast(dtype)),
        }
    };
    let inputs: TensorMap = inputs.iter().map(to(DType::F64)).collect();
    let forward = |inputs: &TensorMap| F::reference(&problem, Inputs::of_map(F::SPEC, inputs));

    let is_input = |name: &str| F::GRADIENT.inputs.iter().any(|spec| spec.name == name);
    let mut given = inputs.clone();
    for (name, output) in forward(&inputs) {
        let gradient = format!("d{name}");
        if is_input(&gradient) {
            let factors = uniform(&gradient, output.shape(), 1.0).cast(DType::F64);
            given.insert(gradient, factors);
        }
        if is_input(&name) {
            given.insert(name, output);
        }
    }
    let gradients = F::gradient(&problem, Inputs::of_map(F::GRADIENT, &given));
    let rounded: TensorMap = given.iter().map(to(DType::F32)).collect();
    let call = Gradient::<F>::OP.bind(&rounded, settings).unwrap();
    let of_call = call.outputs();
    let names: BTreeSet<&str> = of_call.iter().map(|spec| spec.name).collect();
    assert!(gradients.keys().eq(&names), "{what}: {:?} are not {names:?}", gradients.keys());

    // The terms of the loss. Infinite outputs (lse of a row without visible keys) are constant.
    let terms = |inputs: &TensorMap| -> Vec<f64> {
        let outputs = forward(inputs).into_iter();
        let terms = outputs.filter_map(|(name, output)| {
            let factors = given.get(&format!("d{name}"))?.to_f64();
            let both = output.to_f64().into_iter().zip(factors);
            Some(
                both.filter(|(output, _)| output.is_finite())
                    .map(|(output, factor)| output * factor),
            )
        });
        terms.flatten().collect()
    };
    let size: f64 = terms(&inputs).iter().map(|term| term.abs()).sum();
    for spec in of_call {
        let (gradient, name) = (gradients[spec.name].to_f64(), &spec.name[1..]);
        assert_eq!(gradients[spec.name].shape(), spec.shape, "{what}: {}", spec.name);
        let center = inputs[name].to_f64();
        for number in 0..DIRECTIONS {
            let direction = uniform(&format!("{name} {number}"), &spec.shape, 1.0).to_f64();
            // Terms are subtracted one by one, so that large constant ones cancel exactly.
            let difference = |step: f64| -> f64 {
                let [before, after] = [-step, step].map(|step| {
                    let mut moved = inputs.clone();
                    let values = center.iter().zip(&direction).map(|(x, u)| x + step * u);
                    moved.insert(name.to_owned(), Tensor::new(&spec.shape, values.collect()));
                    terms(&moved)
                });
                after.iter().zip(before).map(|(after, before)| after - before).sum()
            };
            let numeric = (8.0 * difference(STEP) - difference(2.0 * STEP)) / (12.0 * STEP);
            let products = || gradient.iter().zip(&direction).map(|(gradient, u)| gradient * u);
            let analytic: f64 = products().sum();
            let allowed = RELATIVE * products().map(f64::abs).sum::<f64>() + ROUNDING * size;
            assert!(
                (numeric - analytic).abs() <= allowed,
                "{what}: {}: the formula has {analytic:e}, differences have {numeric:e}, allowed {allowed:e}",
                spec.name
            );
        }
    }
}
