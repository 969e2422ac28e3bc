use crate::alter::gather;
use crate::outputs::{one_sequence, overwrite_unused_slot};
use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "delta_bias left out", plant: |given| given.without("delta_bias") },
    Fault { name: "softplus left out", plant: |given| given.set("delta_softplus", "false") },
    Fault {
        name: "softplus applied to given steps",
        plant: |given| given.unset(&["delta_softplus"]),
    },
    Fault { name: "skip weight D left out", plant: |given| given.without("D") },
    Fault { name: "gate z left out", plant: |given| given.without("z") },
    Fault { name: "gate z applied before the skip", plant: gate_before_skip },
    Fault { name: "initial state dropped", plant: dropped_state },
    Fault { name: "one rate for all states of a channel", plant: one_rate },
    Fault { name: "rates of the next channel", plant: next_channel },
    Fault { name: "channel e reads group e % G", plant: interleaved_groups },
    Fault { name: "B and C swapped", plant: swapped_projections },
    Fault { name: "state carried over to the next sequence", plant: one_sequence },
    Fault { name: "unused slot overwritten", plant: overwrite_unused_slot },
    Fault { name: "state dropped where it decays slowly", plant: slow_state },
];

fn dropped_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.is_dense().then(|| given.without("initial_state"))?
}

/// `y = (h C) silu(z) + D u`.
fn gate_before_skip(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    let (d, _z) = (inputs.remove("D")?, inputs.get("z")?);
    let gated = given.run(&inputs, given.settings)?;
    let (u, d) = (given.inputs["u"].to_f64(), d.to_f64());
    Some(given.replacing("o", |o| {
        for (at, (o, gated)) in o.iter_mut().zip(gated["o"].to_f64()).enumerate() {
            *o = gated + d[at % d.len()] * u[at];
        }
    }))
}

/// As if A had one value per channel, as in Mamba-2.
fn one_rate(given: &FaultInput<'_>) -> Option<TensorMap> {
    let states = given.inputs["A"].shape()[1];
    (states > 1).then(|| given.with(&["A"], |a| gather(a, 1, states, |_| 0)))?
}

fn next_channel(given: &FaultInput<'_>) -> Option<TensorMap> {
    let channels = given.inputs["A"].shape()[0];
    (channels > 1)
        .then(|| given.with(&["A"], |a| gather(a, 0, channels, |e| (e + 1) % channels)))?
}

fn interleaved_groups(given: &FaultInput<'_>) -> Option<TensorMap> {
    let channels = given.inputs["A"].shape()[0];
    let groups = given.inputs["B"].shape().iter().rev().nth(1).copied()?;
    (given.is_dense() && 1 < groups && groups < channels)
        .then(|| given.with(&["B", "C"], |tensor| gather(tensor, 2, channels, |e| e % groups)))?
}

fn swapped_projections(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    inputs.insert("B".to_owned(), given.inputs["C"].clone());
    inputs.insert("C".to_owned(), given.inputs["B"].clone());
    given.run(&inputs, given.settings)
}

/// As if every state decayed immediately, without the state of earlier tokens.
fn slow_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    let rates = given.inputs["A"].to_f64();
    let slow = rates.iter().all(|rate| *rate > -0.01);
    let fast = Tensor::new(given.inputs["A"].shape(), vec![-1e4f32; rates.len()]);
    slow.then(|| given.with(&["A"], |_| fast.clone()))?
}
