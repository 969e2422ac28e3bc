use super::*;
use crate::persistent::tests::gpu;
use device::cuda::BundledArch;
use ops::linear::{LinearOp, LinearOptions, SCALED};
use ops::{Family, Inputs, Tensor, TensorMap};

/// Checks why the variant refuses one row of `inputs` columns by `outputs` rows of w on Hopper, or that it does not.
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

/// Weights with group scales.
fn by_groups(of: &mut LinearProblem, w: DType, group: usize, factor: DType) {
    of.scales = Some(Scales::Groups);
    (of.w_dtype, of.w_group, of.scale_dtype) = (w, group, factor);
}

#[test]
fn unsupported_problems_are_refused_with_a_reason() {
    let any = |_: &mut LinearProblem| {};
    for outputs in [2, 264, 2048, 4096] {
        check([8192, outputs], any, None);
        check([6144, outputs], any, None);
    }
    let x = |found| {
        format!(
            "takes x of 2048 columns in f32 or 4096 in bf16 with a norm, of 8192 or 2048 in bf16 without one, or three quarters of these, got {found}"
        )
    };
    check([2048, 64], any, None);
    check([1536, 64], any, None);
    check([2304, 64], any, Some(&x("2304 in bf16")));
    check([2304, 64], |of| of.x_dtype = DType::F32, Some(&x("2304 in f32")));
    check([8192, 64], |of| of.tokens = 2, Some("is for one row of x, got 2"));
    check([8192, 64], |of| of.squared = true, Some("squares no columns"));
    check([8192, 64], |of| of.bias = true, Some("adds no bias"));
    let odd = |of: &mut LinearProblem| of.widths = vec![33, 31];
    check([8192, 64], odd, Some("hands columns on by two, got an output of 33"));
    let many = Some("finishes up to 128 columns of a block, not of 762");
    check([8192, 100_352], any, many.map(|many| many.replace("not of", "not")).as_deref());
    let sums = Some("has room for the sums of 20 stages of a block's columns, not of 32");
    check([8192, 8448], any, sums);
}

#[test]
fn group_scales_fit_in_shared_memory() {
    for (w, group, factor, offsets) in [
        (DType::I8, 32, DType::F16, false),
        (DType::U4, SCALED, DType::Bf16, false),
        (DType::U4, 32, DType::F16, false),
        (DType::U4, 32, DType::F32, true),
    ] {
        let all = |of: &mut LinearProblem| {
            by_groups(of, w, group, factor);
            of.offsets = offsets;
        };
        check([8192, 2048], all, None);
        let odd = |of: &mut LinearProblem| {
            all(of);
            of.widths = vec![2046];
        };
        let whole = 16 / factor.bytes();
        let what = format!("needs M a multiple of {whole} with these scales, got 2044");
        let columns = |of: &mut LinearProblem| {
            odd(of);
            of.outputs = 2044;
        };
        let expect = (whole > 4).then_some(what);
        check([8192, 2044], columns, expect.as_deref());
    }
    check(
        [2048, 64],
        |of| by_groups(of, DType::I8, 32, DType::F16),
        Some("takes no x of 2048 columns in bf16 by such weights"),
    );
    check([2048, 64], |of| by_groups(of, DType::U4, 32, DType::F16), None);
    let kinds = "needs weights in e4m3 by rows, or integers by rows or by groups of 32, or 128 of 4 bits, without zero points, or a router's";
    check([8192, 2048], |of| by_groups(of, DType::I8, 16, DType::F32), Some(kinds));
    check([8192, 2048], |of| by_groups(of, DType::E4m3, SCALED, DType::F32), Some(kinds));
    let zeros = |of: &mut LinearProblem| {
        by_groups(of, DType::U4, SCALED, DType::Bf16);
        of.zeros = true;
    };
    check([8192, 2048], zeros, Some(kinds));
    // f32 scales are twice as many bytes.
    let wide = |of: &mut LinearProblem| by_groups(of, DType::I8, 32, DType::F32);
    check([8192, 2048], wide, None);
}

#[test]
fn routers_need_weights_in_the_storage_type() {
    let router = |of: &mut LinearProblem| {
        (of.w_dtype, of.scales, of.out) = (DType::Bf16, None, DType::F32);
    };
    for sizes in [[1536, 64], [2048, 256], [2048, 512], [1536, 1]] {
        check(sizes, router, None);
    }
    let kinds = Some(
        "needs weights in e4m3 by rows, or integers by rows or by groups of 32, or 128 of 4 bits, without zero points, or a router's",
    );
    check([2048, 514], router, kinds);
    check([8192, 64], router, kinds);
    let no_router: [fn(&mut LinearProblem); 6] = [
        |of| of.out = DType::Bf16,
        |of| of.x_dtype = DType::F32,
        |of| of.tokens = 2,
        |of| of.bias = true,
        |of| of.residual = true,
        |of| of.widths = vec![32, 32],
    ];
    for change in no_router {
        let both = |of: &mut LinearProblem| {
            router(of);
            change(of);
        };
        check([1536, 64], both, kinds);
    }
}

#[test]
fn blocks_fit_on_supported_gpus() {
    for arch in BundledArch::ALL {
        let why = Weights::by_rows(DType::E4m3).unfit(&gpu(arch));
        let major = arch.compute.major;
        assert_eq!(why.is_none(), matches!(major, 9 | 10), "{}: {why:?}", arch.compute);
    }
}
