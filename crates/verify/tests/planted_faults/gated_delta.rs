use crate::alter::{gather, map};
use crate::kda::{
    beta_not_applied, dropped_state, interleaved_heads, late_decay, transposed_state,
};
use crate::outputs::{one_sequence, overwrite_unused_slot};
use crate::{Fault, FaultInput};
use ops::TensorMap;

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "initial state dropped", plant: dropped_state },
    Fault { name: "beta not applied", plant: beta_not_applied },
    Fault { name: "decay of another head", plant: decay_of_another_head },
    Fault { name: "decay not applied", plant: decay_not_applied },
    Fault { name: "decay clamped at e^-10", plant: decay_clamped },
    Fault { name: "gate bias left out", plant: |given| given.without("dt_bias") },
    Fault { name: "beta not doubled", plant: |given| given.unset(&["allow_neg_eigval"]) },
    Fault { name: "queries and keys not normalised", plant: |given| given.unset(&["l2norm"]) },
    Fault { name: "scale forgotten", plant: |given| given.set("scale", "1") },
    Fault { name: "value head h reads key head h % H", plant: interleaved_heads },
    Fault { name: "state carried over to the next sequence", plant: one_sequence },
    Fault { name: "unused slot overwritten", plant: overwrite_unused_slot },
    Fault { name: "state read as V x K", plant: transposed_state },
    Fault { name: "decay applied a token late", plant: late_decay },
];

fn decay_of_another_head(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["g"], |gates| {
        let dim = gates.shape().len() - 1;
        let heads = gates.shape()[dim];
        gather(gates, dim, heads, |head| (head + 1) % heads)
    })
}

fn decay_not_applied(given: &FaultInput<'_>) -> Option<TensorMap> {
    // A logit of -100 also gives a decay of e^0.
    let none = if given.inputs.contains_key("A_log") { -100.0 } else { 0.0 };
    given.with(&["g"], |gates| map(gates, |_| none))
}

/// A state that the decay should erase keeps a small part.
fn decay_clamped(given: &FaultInput<'_>) -> Option<TensorMap> {
    if given.inputs.contains_key("A_log") {
        return None;
    }
    given.with(&["g"], |gates| map(gates, |gate| gate.max(-10.0)))
}
