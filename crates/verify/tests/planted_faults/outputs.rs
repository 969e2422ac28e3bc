//! Faults of writing outputs, which any op can have.

use crate::{Fault, FaultInput};
use ops::{DType, Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "one element not written", plant: one_unwritten },
    Fault { name: "last element of the last output not written", plant: last_unwritten },
    Fault { name: "one element off by a thousandth of the largest, or by one", plant: one_wrong },
    Fault { name: "nothing written", plant: nothing_written },
    Fault { name: "outputs all zero", plant: all_zero },
    Fault { name: "output missing", plant: missing },
    Fault { name: "output of another shape", plant: reshaped },
];

/// The first output of a call, which may have fewer than its op.
fn first(given: &FaultInput<'_>) -> &'static str {
    let mut outputs = given.op.spec().outputs.iter().map(|output| output.name);
    outputs.find(|name| given.right.contains_key(*name)).unwrap()
}

/// The value with which a tensor is filled before a launch.
fn poison(given: &FaultInput<'_>, name: &str) -> f64 {
    if given.right[name].dtype() != DType::I32 { f64::NAN } else { f64::from(i32::MIN) }
}

fn one_unwritten(given: &FaultInput<'_>) -> Option<TensorMap> {
    let name = first(given);
    let (middle, poison) = (given.right[name].len() / 2, poison(given, name));
    Some(given.replacing(name, |o| o.iter_mut().skip(middle).take(1).for_each(|o| *o = poison)))
}

fn last_unwritten(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut outputs = given.op.spec().outputs.iter().rev().map(|output| output.name);
    let name = outputs.find(|name| given.right.contains_key(*name))?;
    let poison = poison(given, name);
    Some(given.replacing(name, |values| values.iter_mut().rev().take(1).for_each(|x| *x = poison)))
}

fn one_wrong(given: &FaultInput<'_>) -> Option<TensorMap> {
    let name = first(given);
    let whole = given.right[name].dtype() == DType::I32;
    Some(given.replacing(name, |o| {
        let largest = o.iter().fold(0.0, |largest: f64, o| largest.max(o.abs()));
        let off = if whole { 1.0 } else { 1e-3 * largest };
        o.iter_mut().take(1).for_each(|o| *o += off);
    }))
}

fn nothing_written(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    outputs.values_mut().for_each(Tensor::poison);
    Some(outputs)
}

fn all_zero(given: &FaultInput<'_>) -> Option<TensorMap> {
    Some(given.replacing(first(given), |o| o.fill(0.0)))
}

fn missing(given: &FaultInput<'_>) -> Option<TensorMap> {
    let mut outputs = given.right.clone();
    outputs.remove(first(given));
    Some(outputs)
}

fn reshaped(given: &FaultInput<'_>) -> Option<TensorMap> {
    let (mut outputs, name) = (given.right.clone(), first(given));
    let o = &outputs[name];
    let shape: &[usize] = if o.shape().len() == 1 { &[1, o.len()] } else { &[o.len()] };
    let flat = Tensor::new(shape, o.to_f64()).cast(o.dtype());
    outputs.insert(name.to_owned(), flat);
    Some(outputs)
}

/// A recurrent op that writes zeros to an unused slot of the pool.
pub(crate) fn overwrite_unused_slot(given: &FaultInput<'_>) -> Option<TensorMap> {
    let used = given.inputs.get("state_indices")?.to_f64();
    let slots = given.right["final_state"].shape()[0];
    let unused = (0..slots).find(|slot| !used.contains(&(*slot as f64)))?;
    Some(given.replacing("final_state", |states| {
        let size = states.len() / slots;
        states[unused * size..][..size].fill(0.0);
    }))
}

/// A recurrent op that continues with the previous sequence's state: outputs as if all packed tokens were one sequence,
/// correct final states.
pub(crate) fn one_sequence(given: &FaultInput<'_>) -> Option<TensorMap> {
    if given.inputs.contains_key("initial_state") {
        return None;
    }
    let wrong = given.with(&["cu_seqlens"], |offsets| {
        let total = offsets.to_f64()[offsets.len() - 1] as i32;
        Tensor::new(&[2], vec![0, total])
    })?;
    Some(given.replacing("o", |o| o.copy_from_slice(&wrong["o"].to_f64())))
}
