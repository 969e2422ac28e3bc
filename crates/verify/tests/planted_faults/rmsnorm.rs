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

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "gate and norm in the other order", plant: other_order },
    Fault { name: "the gate's other activation", plant: other_activation },
    Fault { name: "gate left out", plant: |given| given.partly(given.without("gate")) },
    Fault { name: "weight left out of dx", plant: |given| given.partly(given.without("weight")) },
    Fault { name: "eps left at its default", plant: |given| given.unset(&["eps"]) },
    Fault { name: "dx without the gradient of the mean square", plant: constant_mean },
    Fault { name: "last row left out of dweight", plant: last_row_left_out },
];

/// `dx = do weight r` of a norm without a gate.
fn constant_mean(given: &FaultInput<'_>) -> Option<TensorMap> {
    let weight = given.inputs.get("weight").filter(|weight| weight.shape().len() == 1)?.to_f64();
    if given.inputs.contains_key("gate") || given.setting("eps").is_some() {
        return None;
    }
    let (x, d_o) = (given.inputs["x"].to_f64(), given.inputs["do"].to_f64());
    Some(given.replacing("dx", |dx| {
        let size = weight.len();
        for (row, dx) in dx.chunks_mut(size).enumerate() {
            let at = row * size;
            let squares: f64 = x[at..at + size].iter().map(|x| x * x).sum();
            let r = 1.0 / (squares / size as f64 + 1e-5).sqrt();
            for channel in 0..size {
                dx[channel] = d_o[at + channel] * weight[channel] * r;
            }
        }
    }))
}

fn last_row_left_out(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.without_last_row("dweight", given.inputs["x"].shape()[3])
}

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
