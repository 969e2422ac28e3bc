use crate::alter::gather;
use crate::{Fault, FaultInput};
use ops::TensorMap;

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "norm left out", plant: |given| given.without("norm") },
    Fault { name: "bias left out", plant: |given| given.without("bias") },
    Fault { name: "residual left out", plant: no_residual },
    Fault { name: "scale left at 1", plant: |given| given.unset(&["scale"]) },
    Fault { name: "eps left at its default", plant: |given| given.unset(&["eps"]) },
    Fault { name: "one mean over all groups", plant: |given| given.unset(&["norm_groups"]) },
    Fault { name: "zero points left out", plant: |given| given.without("w_zero") },
    Fault { name: "offsets left out", plant: |given| given.without("w_offset") },
    Fault { name: "order of columns left out", plant: |given| given.without("x_order") },
    Fault { name: "groups of 128 columns", plant: |given| given.unset(&["w_group"]) },
    Fault { name: "columns below 0 squared too", plant: below_zero },
    Fault { name: "gates and ups exchanged", plant: exchanged },
    Fault { name: "gate and up of neighbouring rows", plant: interleaved },
    Fault { name: "the last 8 of K left out", plant: short },
];

/// The outputs keep the type of a residual.
fn no_residual(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    inputs.remove("residual")?;
    given.run(&inputs, &given.settings.clone().with("out", "f32"))
}

/// x^2 instead of max(0, x)^2, for calls without other outputs.
fn below_zero(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("activation").filter(|activation| *activation == "relu_squared")?;
    if ["residual", "w_scale"].iter().any(|name| given.inputs.contains_key(*name)) {
        return None;
    }
    let scale = given.setting("scale").map_or(1.0, |scale| scale.parse().unwrap());
    let settings = given.settings.clone().with("activation", "none").with("scale", 1);
    let mut outputs = given.run(given.inputs, &settings)?;
    for output in outputs.values_mut() {
        let squares = output.to_f64().iter().map(|x| scale * x * x).collect::<Vec<_>>();
        *output = ops::Tensor::new(output.shape(), squares).cast(output.dtype());
    }
    Some(outputs)
}

/// The outputs with rows of w and of the bias permuted.
fn rows(given: &FaultInput<'_>, from: impl Fn(usize, usize) -> usize) -> Option<TensorMap> {
    given.setting("activation").filter(|activation| *activation == "swiglu")?;
    let rows = given.inputs["w"].shape()[0];
    let names = ["w", "bias"].into_iter().filter(|name| given.inputs.contains_key(*name));
    let names: Vec<&str> = names.collect();
    given.with(&names, |tensor| gather(tensor, 0, rows, |row| from(row, rows / 2)))
}

fn exchanged(given: &FaultInput<'_>) -> Option<TensorMap> {
    rows(given, |row, half| (row + half) % (2 * half))
}

fn interleaved(given: &FaultInput<'_>) -> Option<TensorMap> {
    rows(given, |row, half| row % half * 2 + row / half)
}

fn short(given: &FaultInput<'_>) -> Option<TensorMap> {
    let depth = given.inputs["x"].shape()[1];
    if depth <= 8 || given.inputs.contains_key("norm") {
        return None;
    }
    given.with(&["x", "w"], |tensor| gather(tensor, 1, depth - 8, |column| column))
}
