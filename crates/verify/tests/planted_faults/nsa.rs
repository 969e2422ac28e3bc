use crate::naive::{Overlap, Ties, select};
use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "selected blocks off by one", plant: off_by_one },
    Fault {
        name: "overlap as the paper's Eq. 9 prints it",
        plant: |given| given_blocks(given, Overlap::Misprinted, Ties::Lower),
    },
    Fault {
        name: "ties go to the higher block",
        plant: |given| given_blocks(given, Overlap::True, Ties::Higher),
    },
    Fault { name: "forced blocks not forced", plant: not_forced },
    Fault { name: "window off by one", plant: window },
    Fault { name: "gates of two branches swapped", plant: swapped_gates },
    Fault {
        name: "gate used as it is instead of its sigmoid or softmax",
        plant: |given| only_o(given, given.unset(&["gate"])?),
    },
    Fault { name: "scale forgotten", plant: |given| only_o(given, given.set("scale", "1")?) },
    Fault { name: "pooling by the mean instead of the learned weights", plant: mean_pooling },
    Fault { name: "reads counted one too many", plant: reads },
];

/// Wrong attention with correct integers, which would otherwise reveal most faults.
fn only_o(given: &FaultInput<'_>, wrong: TensorMap) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    outputs.insert("o".to_owned(), wrong["o"].clone());
    Some(outputs)
}

/// The call with this selection. The selection is returned as a choice, so that it must be judged as one.
fn selecting(given: &FaultInput<'_>, blocks: Tensor) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    inputs.insert("block_indices".to_owned(), blocks);
    given.run(&inputs, given.settings)
}

fn off_by_one(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.inputs.get("g_slc")?;
    let right = &given.right["indices"];
    let blocks: Vec<i32> = right.to_f64().iter().map(|block| (*block as i32 - 1).max(-1)).collect();
    selecting(given, Tensor::new(right.shape(), blocks))
}

fn given_blocks(given: &FaultInput<'_>, overlap: Overlap, ties: Ties) -> Option<TensorMap> {
    selecting(given, select(given, overlap, ties)?)
}

fn not_forced(given: &FaultInput<'_>) -> Option<TensorMap> {
    let settings = given.settings.clone().with("initial_blocks", 0).with("local_blocks", 0);
    given.run(given.inputs, &settings)
}

fn window(given: &FaultInput<'_>) -> Option<TensorMap> {
    let wrong = given.under(|name, value| match name {
        "window" => Some((value.parse::<usize>().unwrap() + 1).to_string()),
        _ => Some(value.to_owned()),
    })?;
    only_o(given, wrong)
}

fn swapped_gates(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut inputs = given.inputs.clone();
    let (a, b) = (inputs.remove("g_cmp")?, inputs.remove("g_slc")?);
    inputs.insert("g_cmp".to_owned(), b);
    inputs.insert("g_slc".to_owned(), a);
    only_o(given, given.run(&inputs, given.settings)?)
}

fn mean_pooling(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("pooling")?;
    let mut inputs = given.inputs.clone();
    inputs.retain(|name, _| !name.starts_with("cmp_"));
    let settings = given.settings.clone().with("pooling", "mean");
    only_o(given, given.run(&inputs, &settings)?)
}

fn reads(given: &FaultInput<'_>) -> Option<TensorMap> {
    Some(given.replacing("reads", |reads| reads.iter_mut().take(1).for_each(|read| *read += 1.0)))
}
