//! Properties of several runs: identical bits, and continuation from a returned state.

use crate::judge::{Judgement, against, implausible, run};
use crate::layout::{Axis, layout};
use crate::references::References;
use crate::{Property, bits};
use device::Device;
use ops::{Op, Settings, Tensor, TensorMap};

/// Runs a variant as the property requires; its outputs must have the property and agree with the reference.
pub(crate) fn judge_property(
    op: &dyn Op,
    (inputs, settings): (&TensorMap, &Settings),
    property: &Property,
    references: &mut References<'_>,
    device: &Device,
    variant: &str,
) -> Judgement {
    let runs = match property {
        Property::SameBits => same_bits(references, device, variant),
        Property::Continuation(lengths) => {
            continuation(op, (inputs, settings), lengths, device, variant)
        }
    };
    match runs {
        Ok(Runs { outputs, launches, millis }) => {
            let judgement = match references.for_outputs(&outputs) {
                Ok(reference) => against(references.call(), &outputs, &reference),
                Err(reason) => Judgement::fail(reason, 0, 0.0),
            };
            // Both runs gave the same bits; pieces of a continuation are hashed by their own cases.
            let twice = matches!(property, Property::SameBits) && bits::can_compare(device);
            let bits = twice.then(|| bits::hash(&outputs));
            Judgement { launches, millis, bits, ..judgement }
        }
        Err(judgement) => *judgement,
    }
}

/// The combined results of the runs.
struct Runs {
    outputs: TensorMap,
    launches: u64,
    millis: f64,
}

impl Runs {
    fn fail(&self, reason: String) -> Box<Judgement> {
        Box::new(Judgement::fail(reason, self.launches, self.millis))
    }

    /// Adds a run of a call and returns its outputs.
    fn add(
        &mut self,
        call: &ops::Call<'_>,
        device: &Device,
        variant: &str,
    ) -> Result<TensorMap, Box<Judgement>> {
        let mut execution =
            call.prepare(device, variant).map_err(|error| self.fail(error.to_string()))?;
        let ran = run(execution.as_mut(), device);
        self.launches += ran.launches;
        self.millis += ran.millis;
        match implausible(&ran, execution.kernel()) {
            Some(judgement) => Err(Box::new(judgement)),
            None => match execution.outputs() {
                Ok(outputs) => Ok(outputs.clone()),
                Err(error) => Err(self.fail(error.to_string())),
            },
        }
    }
}

fn same_bits(
    references: &References<'_>,
    device: &Device,
    variant: &str,
) -> Result<Runs, Box<Judgement>> {
    let mut runs = Runs { outputs: TensorMap::new(), launches: 0, millis: 0.0 };
    let first = runs.add(references.call(), device, variant)?;
    let second = runs.add(references.call(), device, variant)?;
    if let Some(name) = differing(&first, &second) {
        return Err(runs.fail(format!("output `{name}` of a second run has other bits")));
    }
    runs.outputs = first;
    Ok(runs)
}

/// The first output that differs between two runs.
fn differing<'a>(first: &'a TensorMap, second: &TensorMap) -> Option<&'a str> {
    // NaN differs from itself here; the comparison with the reference reports it better.
    let differs = |(name, tensor): &(&String, &Tensor)| {
        tensor.first_nan().is_none() && second.get(*name) != Some(*tensor)
    };
    first.iter().find(differs).map(|(name, _)| name.as_str())
}

/// Token rows `start..start + length` of every tensor, and the final state of the previous run.
fn continuation(
    op: &dyn Op,
    (inputs, settings): (&TensorMap, &Settings),
    lengths: &[usize],
    device: &Device,
    variant: &str,
) -> Result<Runs, Box<Judgement>> {
    let mut runs = Runs { outputs: TensorMap::new(), launches: 0, millis: 0.0 };
    let name = op.spec().name;
    let cut = |start: usize, length: usize| -> Result<TensorMap, String> {
        let layout = layout(name)?;
        let keep = |axis, size| if axis == Axis::Tokens { start..start + length } else { 0..size };
        inputs
            .iter()
            .map(|(name, tensor)| Ok((name.clone(), layout.cut(name, tensor, keep)?)))
            .collect()
    };
    let (mut start, mut state, mut pieces) = (0, None, Vec::new());
    for length in lengths {
        let mut part = cut(start, *length).map_err(|what| runs.fail(what))?;
        if let Some(state) = state.take() {
            part.insert("initial_state".to_owned(), state);
        }
        let call = op.bind(&part, settings).map_err(|error| {
            runs.fail(format!("tokens {start}.. by {length} do not bind: {error}"))
        })?;
        let mut outputs = runs.add(&call, device, variant)?;
        state = outputs.remove("final_state");
        pieces.extend(outputs.remove("o"));
        start += length;
    }
    if let Some(o) = concatenate_tokens(&pieces) {
        runs.outputs.insert("o".to_owned(), o);
    }
    runs.outputs.extend(state.map(|state| ("final_state".to_owned(), state)));
    Ok(runs)
}

/// `[B, T0, ..]`, `[B, T1, ..]` and so on as `[B, T0 + T1 .., ..]`.
fn concatenate_tokens(pieces: &[Tensor]) -> Option<Tensor> {
    let first = pieces.first()?;
    let batch = *first.shape().first()?;
    let values: Vec<Vec<f64>> = pieces.iter().map(Tensor::to_f64).collect();
    let mut all = Vec::new();
    for sequence in 0..batch {
        for piece in &values {
            let rows = piece.len() / batch;
            all.extend_from_slice(&piece[sequence * rows..][..rows]);
        }
    }
    let mut shape = first.shape().to_vec();
    *shape.get_mut(1)? = pieces.iter().map(|piece| piece.shape()[1]).sum();
    Some(Tensor::new(&shape, all).cast(first.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_along_the_tokens_of_each_sequence() {
        // [2 sequences, T, 1 channel]: 11, 12 | 21, 22 and 13 | 23.
        let first = Tensor::new(&[2, 2, 1], vec![11f32, 12.0, 21.0, 22.0]);
        let second = Tensor::new(&[2, 1, 1], vec![13f32, 23.0]);
        let all = concatenate_tokens(&[first, second]);
        let expect = Tensor::new(&[2, 3, 1], vec![11f32, 12.0, 13.0, 21.0, 22.0, 23.0]);
        assert_eq!(all, Some(expect));
    }

    #[test]
    fn one_different_bit_makes_a_run_differ() {
        let run =
            |value: f32| TensorMap::from([("o".to_owned(), Tensor::new(&[2], vec![1.0, value]))]);
        assert_eq!(differing(&run(0.1), &run(0.1)), None);
        assert_eq!(differing(&run(0.1), &run(0.1f32.next_up())), Some("o"));
        assert_eq!(differing(&run(0.0), &run(f32::NAN)), Some("o"));
        assert_eq!(differing(&run(0.1), &TensorMap::new()), Some("o"));
    }

    #[test]
    fn continuation_is_compared_with_the_whole_call() {
        let device = backends::open(facts::BackendKind::Cpu).unwrap();
        let mut found = 0;
        for op in ops::OPS {
            let continues =
                |case: &crate::Case| matches!(case.property, Some(Property::Continuation(_)));
            let listed = crate::cases(op.spec().name);
            let Some(case) = listed.into_iter().find(continues) else { continue };
            found += 1;
            let (inputs, settings) = (case.build)();
            let call = op.bind(&inputs, &settings).unwrap();
            let chosen = call.select(&device, None).unwrap().chosen;
            let check = |lengths: Vec<usize>, expect: facts::Status| {
                let property = Property::Continuation(lengths);
                let mut references = References::of(&call);
                let given = (&inputs, &settings);
                let judged =
                    judge_property(*op, given, &property, &mut references, &device, chosen);
                assert_eq!(judged.status, expect, "{case:?} {property:?}: {}", judged.reason);
            };
            let Some(Property::Continuation(lengths)) = case.property.clone() else { continue };
            check(lengths.clone(), facts::Status::Pass);
            // The last tokens are missing.
            check(lengths[..lengths.len() - 1].to_vec(), facts::Status::Fail);
        }
        assert!(found >= 3, "only {found} ops have states that calls continue from");
    }
}
