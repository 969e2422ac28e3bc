use super::*;
use crate::persistent::tests::gpu;
use device::cuda::BundledArch;
use ops::linear::{LinearOp, LinearOptions};
use ops::{Family, Inputs, Tensor, TensorMap};

fn tensor(name: &str, shape: &[usize], dtype: DType) -> (String, Tensor) {
    (name.to_owned(), Tensor::poisoned(shape, dtype))
}

fn weights(w: DType, [inputs, outputs]: [usize; 2], groups: usize) -> TensorMap {
    TensorMap::from([
        tensor("w", &[outputs, inputs], w),
        tensor("w_scale", &[groups, outputs], DType::F32),
    ])
}

fn call(tensors: &mut TensorMap, [tokens, inputs]: [usize; 2]) -> LinearProblem {
    tensors.extend([tensor("x", &[tokens, inputs], DType::Bf16)]);
    LinearOp::parse(Inputs::of_map(LinearOp::SPEC, tensors), &LinearOptions::default()).unwrap()
}

#[test]
fn tiles_that_do_not_fit_together_fill_whole_rings() {
    for w in [DType::E4m3, DType::I8, DType::U4] {
        for inputs in [16, 2048, 4096, 8192_usize] {
            let inputs = if w == DType::U4 { inputs.max(32) } else { inputs };
            for (outputs, tiles) in [(2048, 1), (8512, 5), (100_352, 48)] {
                for groups in [1, inputs.div_ceil(SCALED)] {
                    // Up to 800 MB: allocated once for all numbers of tokens.
                    let mut tensors = weights(w, [inputs, outputs], groups);
                    for tokens in 0..=MAX_ROWS {
                        let what = format!("{tokens} of {inputs} to {outputs} by {groups} {w}");
                        let problem = call(&mut tensors, [tokens, inputs]);
                        in_whole_rings(&problem, [tokens, groups, tiles], &what);
                    }
                }
            }
        }
    }
}

fn in_whole_rings(problem: &LinearProblem, [tokens, groups, tiles]: [usize; 3], what: &str) {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    let weights = Weights::of(problem).unwrap();
    let Some(share) = Share::of(problem, weights, &gpu(hopper)) else {
        // The scales of a head alone exceed the shared memory of a block.
        assert!(groups > 32 && tiles > 5, "{what}");
        return;
    };
    assert_eq!(why_not(problem, &gpu(hopper)), None, "{what}");
    assert!(share.bytes + (10 << 10) <= hopper.shared_bytes as usize);
    assert!(!share.through || tokens > FEW && tiles <= AGAIN);
    let whole = share.tokens == tokens || [FEW, 16].contains(&share.tokens);
    assert!(whole && share.tokens <= tokens, "{what}: {share:?}");
    let rounds = problem.inputs.div_ceil(weights.round(false));
    let batches = share.held * rounds / share.parts;
    let tiles =
        if share.parts == 1 { tiles } else { parts_of(problem, share, rounds, &gpu(hopper)) };
    if tokens > 0 {
        let rings = batches.is_multiple_of(weights.ring(false, share.tokens)) && share.held < tiles;
        assert!(share.held == tiles || rings, "{what}: {share:?}");
    }
}

/// Tiles of a block and the split-K factor.
fn parts_of(
    problem: &LinearProblem,
    share: Share,
    rounds: usize,
    here: &CudaCapabilities,
) -> usize {
    assert!(share.tokens > 16 && share.tokens == problem.tokens && !share.through);
    assert!(rounds.is_multiple_of(share.parts) && problem.scales == Some(Scales::Groups));
    let shares = shares(problem, here, share.parts);
    assert!(shares > 0 && shares * share.parts <= here.multiprocessors as usize);
    // A smaller factor does not fit.
    let weights = Weights::of(problem).unwrap();
    let fewer = |parts| Share::of_rows(problem, weights, share.tokens, parts, here);
    assert!((1..share.parts).all(|parts| fewer(parts).is_none()));
    problem.columns().div_ceil(shares).div_ceil(ROWS)
}

#[test]
fn unsupported_problems_are_refused_with_a_reason() {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    let refusal = |w: DType, [tokens, inputs, outputs]: [usize; 3]| {
        let problem = call(&mut weights(w, [inputs, outputs], 1), [tokens, inputs]);
        why_not(&problem, &gpu(hopper)).unwrap()
    };
    assert_eq!(refusal(DType::E4m3, [33, 2048, 64]), "is for up to 32 rows of x, got 33");
    assert_eq!(refusal(DType::E4m3, [1, 24, 64]), "needs K a multiple of 16, got 24");
    assert_eq!(refusal(DType::U4, [1, 48, 64]), "needs K a multiple of 32, got 48");
    let wide = refusal(DType::I8, [8, 32_768, 64]);
    assert_eq!(wide, "has no room in shared memory for 8 rows of x");
}

#[test]
fn several_rows_are_prepared_by_a_prologue_launch() {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    for w in [DType::E4m3, DType::I8, DType::U4] {
        for tokens in 1..=MAX_ROWS {
            let mut tensors = weights(w, [2048, 2048], 1);
            tensors.extend([tensor("norm", &[2048], DType::Bf16)]);
            let problem = call(&mut tensors, [tokens, 2048]);
            let weights = Weights::of(&problem).unwrap();
            let share = Share::of(&problem, weights, &gpu(hopper)).unwrap();
            let params = DirectParams::of(&problem, weights, share);
            assert_eq!([params.normed, params.tokens == 1], [tokens == 1; 2], "{tokens} {w}");
            assert!(params.tokens >= share.tokens);
            // One bulk copy loads all of it.
            assert!(share.x.is_multiple_of(16) && share.x >= 2 * 2048 * share.tokens);
            // The prologue kernel is compiled for one of two row counts and without a residual.
            let ready = params.ready(true, false);
            assert!([FEW, MAX_ROWS].contains(&ready.tokens) && ready.normed && !ready.residual);
        }
    }
}

#[test]
fn kernel_kind_follows_the_rows_of_a_launch() {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    let mut cut = 0;
    for (w, group) in [(DType::I8, 32), (DType::I8, 16), (DType::U4, 32)] {
        for [inputs, outputs] in [[2048, 8512], [4096, 8512], [8192, 2048], [8192, 8512]] {
            let mut tensors = weights(w, [inputs, outputs], inputs / group);
            for tokens in FEW + 1..=MAX_ROWS {
                let what = format!("{tokens} of {inputs} to {outputs} by {group} {w}");
                tensors.extend([tensor("x", &[tokens, inputs], DType::Bf16)]);
                let options = LinearOptions { w_group: group, ..LinearOptions::default() };
                let inputs_of = Inputs::of_map(LinearOp::SPEC, &tensors);
                let problem = LinearOp::parse(inputs_of, &options).unwrap();
                assert_eq!(why_not(&problem, &gpu(hopper)), None, "{what}");
                let weights = Weights::of(&problem).unwrap();
                let share = Share::of(&problem, weights, &gpu(hopper)).unwrap();
                let params = DirectParams::of(&problem, weights, share);
                assert!(params.tokens >= share.tokens, "{what}");
                assert_eq!(params.tokens > FEW, share.tokens > FEW, "{what}");
                assert_eq!(params.blocks, group, "{what}");
                cut += usize::from(share.tokens < tokens);
            }
        }
    }
    assert!(cut > 0);
}

#[test]
fn few_rows_of_quantized_weights_skip_the_bf16_path() {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    let left = |w, shape @ [_, inputs]: [usize; 2]| {
        let mut tensors = weights(w, [inputs, 64], 1);
        super::instead(&call(&mut tensors, shape), &gpu(hopper))
    };
    for w in [DType::E4m3, DType::I8, DType::U4] {
        assert!(left(w, [1, 256]).is_some() && left(w, [FEW, 256]).is_some(), "{w}");
        // With many rows, or if this variant refuses the call too, another variant takes it.
        assert_eq!(
            [left(w, [FEW + 1, 256]), left(w, [FEW, 24]), left(w, [8, 65_536])],
            [None, None, None],
            "{w}"
        );
    }
}
