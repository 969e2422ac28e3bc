use crate::alter::{gather, map};
use crate::kda::{
    beta_not_applied, bias_left_out, dropped_state, final_state_left_out, interleaved_heads,
    interleaved_in_the_gradient, last_token_left_out_of_bias, last_token_left_out_of_rate,
    late_decay, not_projected, one_value_head, over_the_ends, strong_decay_without_gradient,
    transposed_state,
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

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "initial state dropped", plant: |given| given.partly(dropped_state(given)) },
    Fault { name: "gradient of the final state left out", plant: final_state_left_out },
    Fault { name: "beta not applied", plant: beta_not_applied },
    Fault { name: "decay of another head", plant: decay_of_another_head },
    Fault { name: "decay not applied", plant: decay_not_applied },
    Fault { name: "decay clamped at e^-10", plant: decay_clamped },
    Fault { name: "gate bias left out", plant: bias_left_out },
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
