use super::*;
use crate::linear::cuda::stream::tests::gpu;
use crate::linear::{LinearOp, LinearOptions};
use crate::{Family, Inputs, Tensor, TensorMap};
use device::cuda::BundledArch;

/// What the variant says on a Hopper of one row of so many columns by so many rows of w.
fn check([inputs, outputs]: [usize; 2], change: impl Fn(&mut LinearProblem), expect: Option<&str>) {
    let tensor =
        |name: &str, shape: &[usize], dtype| (name.to_owned(), Tensor::poisoned(shape, dtype));
    let tensors = TensorMap::from([
        tensor("x", &[1, inputs], DType::Bf16),
        tensor("w", &[outputs, inputs], DType::E4m3),
        tensor("w_scale", &[1, outputs], DType::F32),
    ]);
    let given = Inputs::of_map(LinearOp::SPEC, &tensors);
    let mut problem = LinearOp::parse(given, &LinearOptions::default()).unwrap();
    change(&mut problem);
    let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
    assert_eq!(why_not(&problem, &gpu(hopper)).as_deref(), expect, "{inputs} to {outputs}");
}

#[test]
fn one_sentence_says_why_not() {
    let any = |_: &mut LinearProblem| {};
    for sizes in [[2048, 8512], [4096, 2048], [8192, 2048], [256, 520], [1536, 800], [2560, 8]] {
        check(sizes, any, None);
    }
    check([2048, 16_384], |of| of.swiglu = true, None);
    let segments = |found| {
        format!("needs K up to 8192, a multiple of 128 in each of its segments, got {found}")
    };
    for inputs in [128, 640, 2304, 8320] {
        check([inputs, 64], any, Some(&segments(inputs)));
    }
    check([2048, 64], |of| of.tokens = 2, Some("is for one row of x, got 2"));
    check([2048, 64], |of| of.squared = true, Some("squares no columns"));
    check(
        [2048, 100_352],
        any,
        Some("has room for the sums of 20 stages of a block's columns, not of 96"),
    );
}

#[test]
fn segments_are_as_few_as_a_row_fits() {
    for (inputs, expect) in
        [(256, Some(2)), (2048, Some(2)), (2560, Some(4)), (4096, Some(4)), (8192, Some(8))]
    {
        assert_eq!(segments(inputs), expect, "{inputs}");
    }
    assert_eq!([384, 2304, 9216].map(segments), [None; 3]);
}

#[test]
fn a_block_has_room_on_the_gpus_that_run_it() {
    for arch in BundledArch::ALL {
        let why = unfit(&gpu(arch));
        let major = arch.compute.major;
        assert_eq!(why.is_none(), matches!(major, 9 | 10), "{}: {why:?}", arch.compute);
    }
}
