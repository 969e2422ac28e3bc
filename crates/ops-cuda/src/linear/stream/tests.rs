use super::*;
use crate::persistent::tests::gpu;
use ops::linear::{LinearOp, LinearOptions};
use ops::{Family, Inputs, Tensor, TensorMap};

/// A call with x as it is stored, or in f32 and normalised as Granite's are.
fn call(sizes: [usize; 3], normed: bool) -> LinearProblem {
    call_with(sizes, normed, &[])
}

/// The same with more tensors in f32.
fn call_with(
    [tokens, inputs, outputs]: [usize; 3],
    normed: bool,
    more: &[(&str, Vec<usize>)],
) -> LinearProblem {
    let tensor =
        |name: &str, shape: &[usize], dtype| (name.to_owned(), Tensor::poisoned(shape, dtype));
    let x = if normed { DType::F32 } else { DType::Bf16 };
    let mut tensors = TensorMap::from([
        tensor("x", &[tokens, inputs], x),
        tensor("w", &[outputs, inputs], DType::Bf16),
    ]);
    if normed {
        tensors.extend([tensor("norm", &[inputs], DType::F32)]);
    }
    tensors.extend(more.iter().map(|(name, shape)| tensor(name, shape, DType::F32)));
    LinearOp::parse(Inputs::of_map(LinearOp::SPEC, &tensors), &LinearOptions::default()).unwrap()
}

#[test]
fn granite_blocks_share_an_sm_only_with_the_other_kind_on_hopper() {
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    for tokens in 1..=FEW {
        let shares = [(2048, true), (4096, false), (8192, false)].map(|(inputs, normed)| {
            let residual = ("residual", vec![tokens, 2048]);
            let shares = [&[][..], &[residual]].map(|more| {
                let problem = call_with([tokens, inputs, 2048], normed, more);
                Share::of(&problem, &gpu(hopper)).unwrap()
            });
            assert_eq!(shares[0].streamed, tokens > 1 && !normed, "{tokens} of {inputs}");
            shares
        });
        // An SM has 228 KiB, and a block occupies 1 KiB more than it requests.
        let fit = |one: Share, other: Share| one.bytes + other.bytes + 2048 <= 228 << 10;
        for ([from, _], [_, onto]) in
            shares.into_iter().flat_map(|from| shares.map(|onto| (from, onto)))
        {
            assert_eq!((from.place, onto.place), (Residency::From, Residency::Onto));
            assert!(fit(from, onto) && !fit(from, from), "{tokens}: {from:?} {onto:?}");
        }
    }
    // A call with few weights needs no exclusion.
    let little = Share::of(&call([1, 128, 4096], false), &gpu(hopper)).unwrap();
    assert!(little.place == Residency::From && 2 * little.bytes < 228 << 10, "{little:?}");
}

#[test]
fn batches_fit_on_hopper_and_are_refused_on_smaller_gpus() {
    let of = |major: u32| BundledArch::ALL.iter().find(|arch| arch.compute.major == major);
    let (hopper, consumer) = (gpu(of(9).unwrap()), gpu(of(12).unwrap()));
    for tokens in [9, 16, 17, 32] {
        for (inputs, normed) in [(2048, true), (4096, false), (8192, false)] {
            let problem = call([tokens, inputs, 2048], normed);
            assert_eq!(why_not(&problem, &hopper), None, "{tokens} of {inputs}");
        }
    }
    let refusal = why_not(&call([32, 2048, 8512], true), &consumer);
    assert_eq!(refusal.as_deref(), Some("has no room in shared memory for 32 rows of x"));
    let refusal = why_not(&call([33, 2048, 8512], true), &hopper);
    assert_eq!(refusal.as_deref(), Some("is for up to 32 rows of x, got 33"));
    let state = [("conv_weight", vec![8512, 4]), ("initial_state", vec![9, 8512, 3])];
    let convolving = call_with([9, 2048, 8512], true, &state);
    let refusal = why_not(&convolving, &hopper).unwrap();
    assert!(refusal.starts_with("convolves up to 8 rows of x, got 9"), "{refusal}");
}

#[test]
fn few_tokens_of_any_width_fit_on_every_gpu() {
    for arch in BundledArch::ALL {
        for tokens in 0..=FEW {
            for inputs in [8, 512, 2048, 2304, 8192, 18_432] {
                for normed in [false, true] {
                    let refusal = why_not(&call([tokens, inputs, 64], normed), &gpu(arch));
                    assert_eq!(refusal, None, "{} {tokens} of {inputs}", arch.arch());
                }
            }
        }
    }
}
