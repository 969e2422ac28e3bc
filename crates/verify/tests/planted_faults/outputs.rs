//! Faults of writing, which any op can have.

use crate::{Fault, Given};
use kernels::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "one element not written", plant: one_unwritten },
    Fault { name: "last element of the last output not written", plant: last_unwritten },
    Fault { name: "one element off by a thousandth of the largest", plant: one_wrong },
    Fault { name: "nothing written", plant: nothing_written },
    Fault { name: "outputs all zero", plant: all_zero },
    Fault { name: "output missing", plant: missing },
    Fault { name: "output of another shape", plant: reshaped },
];

fn one_unwritten(given: &Given<'_>) -> Option<TensorMap> {
    let middle = given.right["o"].len() / 2;
    Some(given.replacing("o", |o| o.iter_mut().skip(middle).take(1).for_each(|o| *o = f64::NAN)))
}

fn last_unwritten(given: &Given<'_>) -> Option<TensorMap> {
    // A call may have fewer outputs than its op.
    let mut outputs = given.op.spec().outputs.iter().rev().map(|output| output.name);
    let name = outputs.find(|name| given.right.contains_key(*name))?;
    // What poison leaves in an integer tensor.
    let poison = if name == "reads" { f64::from(i32::MIN) } else { f64::NAN };
    Some(given.replacing(name, |values| values.iter_mut().rev().take(1).for_each(|x| *x = poison)))
}

fn one_wrong(given: &Given<'_>) -> Option<TensorMap> {
    Some(given.replacing("o", |o| {
        let largest = o.iter().fold(0.0, |largest: f64, o| largest.max(o.abs()));
        o.iter_mut().take(1).for_each(|o| *o += 1e-3 * largest);
    }))
}

fn nothing_written(given: &Given<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    outputs.values_mut().for_each(Tensor::poison);
    Some(outputs)
}

fn all_zero(given: &Given<'_>) -> Option<TensorMap> {
    Some(given.replacing("o", |o| o.fill(0.0)))
}

fn missing(given: &Given<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    outputs.remove("o");
    Some(outputs)
}

fn reshaped(given: &Given<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    let o = &outputs["o"];
    let flat = Tensor::new(&[o.len()], o.to_f64()).cast(o.dtype());
    outputs.insert("o".to_owned(), flat);
    Some(outputs)
}

/// A state op that writes zeros to a slot of the pool that no sequence uses.
pub(crate) fn overwrite_unused_slot(given: &Given<'_>) -> Option<TensorMap> {
    let used = given.inputs.get("state_indices")?.to_f64();
    let slots = given.right["final_state"].shape()[0];
    let unused = (0..slots).find(|slot| !used.contains(&(*slot as f64)))?;
    Some(given.replacing("final_state", |states| {
        let size = states.len() / slots;
        states[unused * size..][..size].fill(0.0);
    }))
}

/// A state op that goes on with the state of the sequence before: outputs as if all packed tokens were one sequence,
/// states as they should be.
pub(crate) fn one_sequence(given: &Given<'_>) -> Option<TensorMap> {
    if given.inputs.contains_key("initial_state") {
        return None;
    }
    let wrong = given.with(&["cu_seqlens"], |offsets| {
        let total = offsets.to_f64()[offsets.len() - 1] as i32;
        Tensor::new(&[2], vec![0, total])
    })?;
    Some(given.replacing("o", |o| o.copy_from_slice(&wrong["o"].to_f64())))
}
