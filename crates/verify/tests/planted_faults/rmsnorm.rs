use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "gate and norm in the other order", plant: other_order },
    Fault { name: "the gate's other activation", plant: other_activation },
    Fault { name: "gate left out", plant: |given| given.without("gate") },
    Fault { name: "weight left out", plant: |given| given.without("weight") },
    Fault { name: "eps left at its default", plant: |given| given.unset(&["eps"]) },
    Fault { name: "one mean over all groups", plant: one_group },
];

fn other_order(given: &FaultInput<'_>) -> Option<TensorMap> {
    let flipped = |value: &str| if value == "true" { "false" } else { "true" }.to_owned();
    given.under(|name, value| {
        Some(if name == "norm_before_gate" { flipped(value) } else { value.to_owned() })
    })
}

fn other_activation(given: &FaultInput<'_>) -> Option<TensorMap> {
    let other = |value: &str| if value == "silu" { "sigmoid" } else { "silu" }.to_owned();
    given.under(|name, value| {
        Some(if name == "activation" { other(value) } else { value.to_owned() })
    })
}

/// The groups of a token as one, possible only for weights of each group.
fn one_group(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    let per_group = inputs.get("weight").is_some_and(|weight| weight.shape().len() == 2);
    if !per_group {
        return None;
    }
    for (name, tensor) in &mut inputs {
        let shape = tensor.shape();
        let shape = match name.as_str() {
            "weight" => vec![shape[0] * shape[1]],
            _ => vec![shape[0], shape[1], 1, shape[2] * shape[3]],
        };
        *tensor = reshaped(tensor, &shape);
    }
    let mut outputs = given.run(&inputs, given.settings)?;
    let o = outputs.get_mut("o")?;
    *o = reshaped(o, given.inputs["x"].shape());
    Some(outputs)
}

fn reshaped(tensor: &Tensor, shape: &[usize]) -> Tensor {
    Tensor::new(shape, tensor.to_f64()).cast(tensor.dtype())
}
