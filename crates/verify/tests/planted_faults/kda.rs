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

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "initial state dropped", plant: |given| given.partly(dropped_state(given)) },
    Fault { name: "gradient of the final state left out", plant: final_state_left_out },
    Fault { name: "beta not applied", plant: beta_not_applied },
    Fault { name: "gate kinds swapped", plant: gate_kinds },
    Fault { name: "halves of the gate's channels swapped", plant: gate_halves },
    Fault { name: "gate bias left out", plant: bias_left_out },
    Fault { name: "lower bound ignored", plant: |given| given.unset(&["lower_bound"]) },
    Fault { name: "beta not doubled", plant: |given| given.unset(&["allow_neg_eigval"]) },
    Fault { name: "queries and keys not normalised", plant: |given| given.unset(&["l2norm"]) },
    Fault { name: "gradient not projected by the norm", plant: not_projected },
    Fault { name: "scale forgotten", plant: |given| given.set("scale", "1") },
    Fault { name: "value head h reads key head h % H", plant: interleaved_in_the_gradient },
    Fault { name: "gradient of one value head of a key head", plant: one_value_head },
    Fault { name: "gradient runs over the ends of packed sequences", plant: over_the_ends },
    Fault { name: "state read as V x K", plant: transposed_state },
    Fault { name: "decay applied a token late", plant: late_decay },
    Fault { name: "last token left out of dA_log", plant: last_token_left_out_of_rate },
    Fault { name: "last token left out of ddt_bias", plant: last_token_left_out_of_bias },
    Fault { name: "dg of strongly decayed states is zero", plant: strong_decay_without_gradient },
];

pub(crate) fn bias_left_out(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.partly(given.without("dt_bias"))
}

pub(crate) fn final_state_left_out(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.without("dfinal_state")
}

pub(crate) fn last_token_left_out_of_rate(given: &FaultInput<'_>) -> Option<TensorMap> {
    last_token_left_out(given, "dA_log")
}

pub(crate) fn last_token_left_out_of_bias(given: &FaultInput<'_>) -> Option<TensorMap> {
    last_token_left_out(given, "ddt_bias")
}

fn last_token_left_out(given: &FaultInput<'_>, output: &str) -> Option<TensorMap> {
    given.right.get(output)?;
    let row = given.inputs["do"].shape().iter().rev().take(2).product();
    given.without_last_row(output, row)
}

/// dq keeps a tenth of the part along the query, which the norm removes.
pub(crate) fn not_projected(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("l2norm")?;
    let (q, dim) = (given.inputs["q"].to_f64(), *given.inputs["q"].shape().last()?);
    Some(given.replacing("dq", |dq| {
        for (dq, q) in dq.chunks_mut(dim).zip(q.chunks(dim)) {
            let size = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
            let factor = 0.1 * size(dq) / size(q);
            dq.iter_mut().zip(q).for_each(|(dq, q)| *dq += factor * q);
        }
    }))
}

/// The gradients of q and k are those of as many key heads as value heads, so they stay.
pub(crate) fn interleaved_in_the_gradient(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut wrong = interleaved_heads(given)?;
    wrong.retain(|name, _| name != "dq" && name != "dk");
    given.partly(Some(wrong))
}

/// do is 0 in all value heads but the first of each key head, so that only these contribute to dq.
pub(crate) fn one_value_head(given: &FaultInput<'_>) -> Option<TensorMap> {
    let [.., heads, dim] = *given.inputs["do"].shape() else { return None };
    let group = heads / given.inputs["q"].shape().iter().rev().nth(1)?;
    let mut wrong = given.with(&["do"], |d_o| {
        let mut values = d_o.to_f64();
        for (row, values) in values.chunks_mut(dim).enumerate() {
            if row % heads % group > 0 {
                values.fill(0.0);
            }
        }
        Tensor::new(d_o.shape(), values).cast(d_o.dtype())
    })?;
    wrong.retain(|name, _| name == "dq");
    (group > 1).then(|| given.partly(Some(wrong)))?
}

pub(crate) fn over_the_ends(given: &FaultInput<'_>) -> Option<TensorMap> {
    let free = !given.inputs.contains_key("initial_state");
    free.then(|| {
        given.with(&["cu_seqlens"], |offsets| {
            let total = offsets.to_f64()[offsets.len() - 1] as i32;
            Tensor::new(&[2], vec![0, total])
        })
    })?
}

/// A decay below e^-10 is treated as if nothing remained of the state, so that it has no gradient.
pub(crate) fn strong_decay_without_gradient(given: &FaultInput<'_>) -> Option<TensorMap> {
    let gates = given.inputs["g"].to_f64();
    let is_strong = !given.inputs.contains_key("A_log") && gates.iter().any(|gate| *gate < -10.0);
    is_strong.then(|| {
        given.replacing("dg", |dg| {
            let strong = dg.iter_mut().zip(&gates).filter(|(_, gate)| **gate < -10.0);
            strong.for_each(|(dg, _)| *dg = 0.0);
        })
    })
}

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
