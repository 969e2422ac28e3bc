use crate::alter::{gather, map};
use crate::outputs::{one_sequence, overwrite_unused_slot};
use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "initial state dropped", plant: dropped_state },
    Fault { name: "state dropped on the false decay bound", plant: false_decay_bound },
    Fault { name: "beta not applied", plant: beta_not_applied },
    Fault { name: "gate kinds swapped", plant: gate_kinds },
    Fault { name: "halves of the gate's channels swapped", plant: gate_halves },
    Fault { name: "gate bias left out", plant: |given| given.without("dt_bias") },
    Fault { name: "lower bound ignored", plant: |given| given.unset(&["lower_bound"]) },
    Fault { name: "beta not doubled", plant: |given| given.unset(&["allow_neg_eigval"]) },
    Fault { name: "queries and keys not normalised", plant: |given| given.unset(&["l2norm"]) },
    Fault { name: "scale forgotten", plant: |given| given.set("scale", "1") },
    Fault { name: "value head h reads key head h % H", plant: interleaved_heads },
    Fault { name: "state carried over to the next sequence", plant: one_sequence },
    Fault { name: "unused slot overwritten", plant: overwrite_unused_slot },
    Fault { name: "state read as V x K", plant: transposed_state },
    Fault { name: "decay applied a token late", plant: late_decay },
];

pub(crate) fn dropped_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.is_dense().then(|| given.without("initial_state"))?
}

/// Drops the initial state from the final one if no channel keeps more than 2^-57 over the sequence. Decay and the
/// delta rule's rotation do not commute, so the state may survive.
fn false_decay_bound(given: &FaultInput<'_>) -> Option<TensorMap> {
    let gates = &given.inputs["g"];
    if !given.is_dense() || given.inputs.contains_key("A_log") {
        return None;
    }
    let [batch, tokens, heads, channels] = *gates.shape() else { return None };
    let (size, values) = (heads * channels, gates.to_f64());
    let mut sums = vec![0.0; batch * size];
    for (row, gates) in values.chunks(size).enumerate() {
        let sums = &mut sums[row / tokens * size..][..size];
        sums.iter_mut().zip(gates).for_each(|(sum, gate)| *sum += gate);
    }
    let bound = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if bound >= -57.0 * std::f64::consts::LN_2 {
        return None;
    }
    let wrong = given.without("initial_state")?["final_state"].to_f64();
    Some(given.replacing("final_state", |state| state.copy_from_slice(&wrong)))
}

pub(crate) fn beta_not_applied(given: &FaultInput<'_>) -> Option<TensorMap> {
    // A logit of 60 gives a strength of 1.
    let one = if given.inputs.contains_key("A_log") { 60.0 } else { 1.0 };
    given.with(&["beta"], |beta| map(beta, |_| one))
}

fn gate_kinds(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.under(|name, value| match (name, value) {
        ("gate", "plain") => Some("safe".to_owned()),
        ("gate", _) => Some("plain".to_owned()),
        ("lower_bound", _) => None,
        _ => Some(value.to_owned()),
    })
}

fn gate_halves(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["g"], |gates| {
        let dim = gates.shape().len() - 1;
        let channels = gates.shape()[dim];
        gather(gates, dim, channels, |channel| (channel + channels / 2) % channels)
    })
}

pub(crate) fn interleaved_heads(given: &FaultInput<'_>) -> Option<TensorMap> {
    let (heads, value_heads) = (given.inputs["q"].shape()[2], given.inputs["v"].shape()[2]);
    (given.is_dense() && heads > 1 && value_heads > heads)
        .then(|| given.with(&["q", "k"], |tensor| gather(tensor, 2, value_heads, |h| h % heads)))?
}

pub(crate) fn transposed_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    let shape = given.inputs.get("initial_state")?.shape().to_vec();
    (shape[2] == shape[3]).then(|| {
        given.with(&["initial_state"], |state| {
            let size = shape[2];
            let flat = Tensor::new(&[shape[0] * shape[1], size * size], state.to_f64());
            let turned = gather(&flat, 1, size * size, |at| at % size * size + at / size);
            Tensor::new(&shape, turned.to_f64()).cast(state.dtype())
        })
    })?
}

pub(crate) fn late_decay(given: &FaultInput<'_>) -> Option<TensorMap> {
    let tokens = given.inputs["g"].shape()[1];
    (given.is_dense() && tokens > 1)
        .then(|| given.with(&["g"], |g| gather(g, 1, tokens, |token| token.saturating_sub(1))))?
}
