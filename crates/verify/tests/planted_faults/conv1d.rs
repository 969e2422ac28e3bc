use crate::alter::gather;
use crate::outputs::{one_sequence, overwrite_unused_slot};
use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "taps reversed", plant: |given| given.with(&["weight"], reversed) },
    Fault {
        name: "initial state read off by one",
        plant: |given| given.with(&["initial_state"], rolled),
    },
    Fault { name: "final state written off by one", plant: final_off_by_one },
    Fault { name: "initial state dropped", plant: dropped_state },
    Fault { name: "bias left out", plant: |given| given.without("bias") },
    Fault { name: "activation left out", plant: |given| given.unset(&["activation"]) },
    Fault { name: "ring position ignored", plant: |given| given.without("state_positions") },
    Fault { name: "convolution runs over the ends of packed sequences", plant: one_sequence },
    Fault { name: "unused slot overwritten", plant: overwrite_unused_slot },
];

pub(crate) const BACKWARD: &[Fault] = &[
    Fault { name: "taps reversed", plant: |given| given.with(&["weight"], reversed) },
    Fault {
        name: "initial state read off by one",
        plant: |given| given.with(&["initial_state"], rolled),
    },
    Fault {
        name: "gradient of the final state read off by one",
        plant: |given| given.with(&["dfinal_state"], rolled),
    },
    Fault {
        name: "gradient of the final state left out",
        plant: |given| given.without("dfinal_state"),
    },
    Fault { name: "bias left out", plant: |given| given.partly(given.without("bias")) },
    Fault { name: "activation left out", plant: |given| given.unset(&["activation"]) },
    Fault { name: "gradient runs over the ends of packed sequences", plant: over_the_ends },
    Fault { name: "last token left out of dweight", plant: last_token_left_out },
];

fn over_the_ends(given: &FaultInput<'_>) -> Option<TensorMap> {
    let free = !given.inputs.contains_key("initial_state");
    free.then(|| {
        given.with(&["cu_seqlens"], |offsets| {
            let total = offsets.to_f64()[offsets.len() - 1] as i32;
            Tensor::new(&[2], vec![0, total])
        })
    })?
}

fn last_token_left_out(given: &FaultInput<'_>) -> Option<TensorMap> {
    let last = given.setting("layout").is_none();
    last.then(|| given.without_last_row("dweight", given.inputs["weight"].shape()[0]))?
}

fn reversed(weight: &Tensor) -> Tensor {
    let width = weight.shape()[1];
    gather(weight, 1, width, |tap| width - 1 - tap)
}

fn rolled(state: &Tensor) -> Tensor {
    let size = state.shape()[2];
    gather(state, 2, size, |column| (column + 1) % size)
}

fn final_off_by_one(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    let state = rolled(&outputs["final_state"]);
    outputs.insert("final_state".to_owned(), state);
    Some(outputs)
}

fn dropped_state(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.is_dense().then(|| given.without("initial_state"))?
}
