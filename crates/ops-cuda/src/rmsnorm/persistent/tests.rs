use super::*;
use crate::persistent::tests::hopper;
use ops::rmsnorm::{Activation, RmsNormOp, RmsNormOptions};
use ops::{Family, Inputs, Tensor, TensorMap};

/// Checks why the variant refuses rows of `columns` columns of a residual stream on Hopper, or that it does not.
fn check(columns: usize, change: impl Fn(&mut RmsNormProblem), expect: Option<&str>) {
    let tensor =
        |name: &str, shape: &[usize]| (name.to_owned(), Tensor::poisoned(shape, DType::F32));
    let tensors = TensorMap::from([tensor("x", &[1, 1, 1, columns]), tensor("weight", &[columns])]);
    let options = RmsNormOptions { out: Some(DType::Bf16), ..RmsNormOptions::default() };
    let given = Inputs::of_map(RmsNormOp::SPEC, &tensors);
    let mut problem = RmsNormOp::parse(given, &options).unwrap();
    change(&mut problem);
    assert_eq!(why_not(&problem, &hopper()).as_deref(), expect);
}

#[test]
fn unsupported_problems_are_refused_with_a_reason() {
    let any = |_: &mut RmsNormProblem| {};
    check(2048, any, None);
    check(1536, any, None);
    let columns = "takes x of 2048, 1536 or 2304 columns, got 2560";
    check(2304, any, None);
    check(2560, any, Some(columns));
    check(2048, |of| of.tokens = 2, Some("is for one row of one group, got 2"));
    check(2048, |of| of.groups = 2, Some("is for one row of one group, got 2"));
    check(2048, |of| of.gate = Some(Activation::Silu), Some("takes no gate"));
    check(2048, |of| of.out = DType::F32, Some("makes bf16 of x in f32, got f32 of f32"));
    check(2048, |of| of.x_dtype = DType::Bf16, Some("makes bf16 of x in f32, got bf16 of bf16"));
    check(2048, |of| of.weight = None, Some("needs weights in f32"));
}
