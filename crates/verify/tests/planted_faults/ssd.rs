use crate::alter::gather;
use crate::outputs::{one_sequence, overwrite_unused_slot};
use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "dt not clamped", plant: |given| given.unset(&["dt_min", "dt_max"]) },
    Fault { name: "dt clamped from above only", plant: |given| given.unset(&["dt_min"]) },
    Fault { name: "dt_bias left out", plant: |given| given.without("dt_bias") },
    Fault { name: "softplus left out", plant: |given| given.set("dt_softplus", "false") },
    Fault { name: "softplus applied to given steps", plant: |given| given.unset(&["dt_softplus"]) },
    Fault { name: "skip weight D left out", plant: |given| given.without("D") },
    Fault { name: "gate z left out", plant: |given| given.without("z") },
    Fault { name: "gate z applied before the skip", plant: gate_before_skip },
    Fault { name: "initial state dropped", plant: dropped_state },
    Fault { name: "head h reads group h % G", plant: interleaved_groups },
    Fault { name: "B and C swapped", plant: swapped_projections },
    Fault { name: "state carried over to the next sequence", plant: one_sequence },
    Fault { name: "unused slot overwritten", plant: overwrite_unused_slot },
    Fault { name: "state dropped where it decays slowly", plant: slow_state },
];

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "dt not clamped", plant: |given| given.unset(&["dt_min", "dt_max"]) },
    Fault { name: "dt_bias left out", plant: |given| given.partly(given.without("dt_bias")) },
    Fault { name: "softplus left out", plant: |given| given.set("dt_softplus", "false") },
    Fault { name: "softplus applied to given steps", plant: |given| given.unset(&["dt_softplus"]) },
    Fault { name: "skip weight D left out", plant: |given| given.partly(given.without("D")) },
    Fault { name: "gate z left out", plant: |given| given.partly(given.without("z")) },
    Fault { name: "initial state dropped", plant: dropped_in_the_gradient },
    Fault { name: "gradient of the final state left out", plant: final_state_left_out },
    Fault { name: "head h reads group h % G", plant: interleaved_in_the_gradient },
    Fault { name: "B and C swapped", plant: swapped_projections },
    Fault { name: "last token left out of dA", plant: |given| last_token_left_out(given, "dA") },
    Fault { name: "last token left out of dB", plant: |given| last_token_left_out(given, "dB") },
    Fault { name: "dC of one head of a group", plant: one_head_of_a_group },
];

fn dropped_in_the_gradient(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    inputs.remove("dfinal_state")?;
    inputs.remove("initial_state")?;
    given.partly(given.run(&inputs, given.settings))
}

fn final_state_left_out(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.without("dfinal_state")
}

fn last_token_left_out(given: &FaultInput<'_>, output: &str) -> Option<TensorMap> {
    let row = given.inputs["do"].shape().iter().rev().take(2).product();
    given.without_last_row(output, row)
}

/// The gradients of B and C are those of as many groups as heads, of which a wrong kernel takes the first ones.
fn interleaved_in_the_gradient(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut wrong = interleaved_groups(given)?;
    wrong.retain(|name, _| name != "dB" && name != "dC");
    given.partly(Some(wrong))
}

/// do is 0 in all heads but the first of each group, so that only these contribute.
fn one_head_of_a_group(given: &FaultInput<'_>) -> Option<TensorMap> {
    let [.., heads, dim] = *given.inputs["do"].shape() else { return None };
    let group = heads / given.inputs["B"].shape().iter().rev().nth(1)?;
    let mut wrong = given.with(&["do"], |d_o| {
        let mut values = d_o.to_f64();
        for (row, values) in values.chunks_mut(dim).enumerate() {
            if row % heads % group > 0 {
                values.fill(0.0);
            }
        }
        Tensor::new(d_o.shape(), values).cast(d_o.dtype())
    })?;
    wrong.retain(|name, _| name == "dC");
    (group > 1).then(|| given.partly(Some(wrong)))?
}

fn dropped_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.is_dense().then(|| given.without("initial_state"))?
}

/// `y = (h C) silu(z) + D x`.
fn gate_before_skip(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    let (d, _z) = (inputs.remove("D")?, inputs.get("z")?);
    let gated = given.run(&inputs, given.settings)?;
    let (x, d) = (given.inputs["x"].to_f64(), d.to_f64());
    let shape = given.inputs["x"].shape();
    let (heads, head_dim) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    if d.len() != heads {
        return None;
    }
    Some(given.replacing("o", |o| {
        for (at, (o, gated)) in o.iter_mut().zip(gated["o"].to_f64()).enumerate() {
            *o = gated + d[at / head_dim % heads] * x[at];
        }
    }))
}

fn interleaved_groups(given: &FaultInput<'_>) -> Option<TensorMap> {
    let (heads, groups) = (given.inputs["x"].shape()[2], given.inputs["B"].shape()[2]);
    (given.is_dense() && 1 < groups && groups < heads)
        .then(|| given.with(&["B", "C"], |tensor| gather(tensor, 2, heads, |h| h % groups)))?
}

fn swapped_projections(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    inputs.insert("B".to_owned(), given.inputs["C"].clone());
    inputs.insert("C".to_owned(), given.inputs["B"].clone());
    given.run(&inputs, given.settings)
}

/// As if every head decayed immediately, without the state of earlier tokens.
fn slow_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    let rates = given.inputs["A"].to_f64();
    let slow = rates.iter().all(|rate| *rate > -0.01);
    let fast = Tensor::new(&[rates.len()], vec![-1e4f32; rates.len()]);
    slow.then(|| given.with(&["A"], |_| fast.clone()))?
}
