use crate::{Fault, FaultInput};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "gate and up swapped", plant: halves_swapped },
    Fault { name: "negative up values squared too", plant: below_zero },
    Fault { name: "weights not renormalised", plant: |given| given.set("renormalise", "false") },
    Fault { name: "sum_eps left out", plant: |given| given.unset(&["sum_eps"]) },
    Fault { name: "weight_scale left out", plant: |given| given.unset(&["weight_scale"]) },
    Fault { name: "scale left out", plant: |given| given.unset(&["scale"]) },
    Fault { name: "residual left out", plant: without_residual },
    Fault {
        name: "gate and up biases left out",
        plant: |given| without_bias(given, "gate_up_bias"),
    },
    Fault { name: "down biases left out", plant: |given| without_bias(given, "down_bias") },
    // 7, which no gate or up value of these cases reaches.
    Fault { name: "limit left at its default", plant: |given| given.unset(&["limit"]) },
    Fault { name: "alpha left at its default", plant: |given| given.unset(&["alpha"]) },
    Fault { name: "correction left out", plant: |given| given.without("correction") },
    Fault { name: "biased scores as weights", plant: biased },
    Fault { name: "softmax over all experts", plant: softmax_of_all },
    Fault { name: "higher index of equal experts", plant: higher_of_equals },
    Fault { name: "the last chosen expert left out", plant: one_less },
    Fault { name: "experts one off", plant: experts_one_off },
    Fault { name: "a rank's first expert one off", plant: first_one_off },
    Fault { name: "shared experts left out", plant: without_always },
    Fault { name: "shared experts weighted like routed ones", plant: always_weighed },
    Fault { name: "the last token's result left out", plant: last_token },
];

fn halves_swapped(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["w_gate_up"], |weights| {
        let size: usize = weights.shape()[1..].iter().product();
        let swap = |expert: &[f64]| {
            let (gate, up) = expert.split_at(size / 2);
            [up, gate].concat()
        };
        let values = weights.to_f64();
        let values = values.chunks(size.max(1)).flat_map(swap).collect::<Vec<_>>();
        Tensor::new(weights.shape(), values).cast(weights.dtype())
    })
}

/// x^2 instead of max(0, x)^2: the sum of the results for each up value and its negation.
fn below_zero(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("activation").filter(|activation| *activation == "relu_squared")?;
    let opposite = given.with(&["w_gate_up"], |weights| {
        let values = weights.to_f64().iter().map(|x| -x).collect::<Vec<_>>();
        Tensor::new(weights.shape(), values).cast(weights.dtype())
    })?;
    let other = opposite["o"].to_f64();
    let before = given.inputs.get("residual").map(Tensor::to_f64);
    Some(given.replacing("o", |o| {
        for (at, o) in o.iter_mut().enumerate() {
            *o += other[at] - before.as_ref().map_or(0.0, |before| before[at]);
        }
    }))
}

fn without_bias(given: &FaultInput<'_>, name: &str) -> Option<TensorMap> {
    let zeros = |tensor: &Tensor| Tensor::new(tensor.shape(), vec![0f32; tensor.len()]);
    given.with(&[name], zeros)
}

fn without_residual(given: &FaultInput<'_>) -> Option<TensorMap> {
    let zeros = |tensor: &Tensor| Tensor::new(tensor.shape(), vec![0f32; tensor.len()]);
    given.with(&["residual"], zeros)
}

/// Weights from scores with the correction added (the first pitfall in models.md); the choice is unchanged.
fn biased(given: &FaultInput<'_>) -> Option<TensorMap> {
    let correction = given.inputs.get("correction")?.to_f64();
    let chosen = given.right["chosen"].to_f64();
    Some(given.replacing("weights", |weights| {
        for (weight, expert) in weights.iter_mut().zip(&chosen) {
            *weight += correction.get(*expert as usize).unwrap_or(&0.0);
        }
    }))
}

fn softmax_of_all(given: &FaultInput<'_>) -> Option<TensorMap> {
    if given.setting("score") != Some("softmax_of_chosen") {
        return None;
    }
    let experts = given.inputs["logits"].shape()[1];
    let logits = given.inputs["logits"].to_f64();
    let k = given.right["chosen"].shape()[1];
    let chosen = given.right["chosen"].to_f64();
    Some(given.replacing("weights", |weights| {
        for (pair, weight) in weights.iter_mut().enumerate() {
            let logits = &logits[pair / k * experts..][..experts];
            let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
            if let Some(logit) = logits.get(chosen[pair] as usize) {
                *weight = logit.exp() / all;
            }
        }
    }))
}

fn higher_of_equals(given: &FaultInput<'_>) -> Option<TensorMap> {
    let logits = given.inputs["logits"].to_f64();
    if logits.windows(2).any(|pair| pair[0] != pair[1]) {
        return None;
    }
    let experts = given.inputs["logits"].shape()[1] as f64;
    Some(given.replacing("chosen", |chosen| {
        chosen.iter_mut().for_each(|expert| *expert = experts - 1.0 - *expert);
    }))
}

/// The result without the chosen expert of least weight.
fn one_less(given: &FaultInput<'_>) -> Option<TensorMap> {
    let k: usize = given.setting("top_k")?.parse().ok()?;
    let mut outputs = given.run(
        given.inputs,
        &given.settings.clone().with("top_k", k.checked_sub(1).filter(|k| *k > 0)?),
    )?;
    for name in ["chosen", "weights"] {
        outputs.insert(name.to_owned(), given.right[name].clone());
    }
    Some(outputs)
}

/// Each expert has the down projection of the next one.
fn experts_one_off(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["w_down"], |weights| {
        let size: usize = weights.shape()[1..].iter().product();
        let mut values = weights.to_f64();
        values.rotate_left(size);
        Tensor::new(weights.shape(), values).cast(weights.dtype())
    })
}

fn first_one_off(given: &FaultInput<'_>) -> Option<TensorMap> {
    let first: usize = given.setting("experts_first")?.parse().ok()?;
    given.run(given.inputs, &given.settings.clone().with("experts_first", first.checked_sub(1)?))
}

/// The result without the shared experts.
fn without_always(given: &FaultInput<'_>) -> Option<TensorMap> {
    let always: usize = given.setting("always")?.parse().ok()?;
    if given.inputs.contains_key("down_scale") {
        return None;
    }
    given.with(&["w_down"], |weights| {
        let size: usize = weights.shape()[1..].iter().product();
        let mut values = weights.to_f64();
        let kept = values.len() - always * size;
        values[kept..].fill(0.0);
        Tensor::new(weights.shape(), values).cast(weights.dtype())
    })
}

/// weight_scale applied to shared experts too, which belongs to routed ones only.
fn always_weighed(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.setting("always")?;
    let factor: f64 = given.setting("weight_scale")?.parse().ok()?;
    let experts = given.inputs["logits"].shape()[1] as f64;
    let chosen = given.right["chosen"].to_f64();
    Some(given.replacing("weights", |weights| {
        let all = weights.iter_mut().zip(&chosen);
        all.filter(|(_, expert)| **expert >= experts).for_each(|(weight, _)| *weight *= factor);
    }))
}

fn last_token(given: &FaultInput<'_>) -> Option<TensorMap> {
    let hidden = given.right["o"].shape()[1];
    Some(given.replacing("o", |o| {
        let kept = o.len().saturating_sub(hidden);
        o[kept..].fill(0.0);
    }))
}
