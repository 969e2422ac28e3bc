use super::*;
use crate::persistent::tests::hopper;
use ops::moe::{Clamp, MoeOp, MoeOptions};
use ops::{Family, Inputs, Options, Settings, Tensor, TensorMap};

/// A change to a problem.
type Change = fn(&mut MoeProblem);

/// Checks why the variant refuses h-tiny's experts for tokens of `hidden` columns on Hopper, or that it does not.
fn check(hidden: usize, change: impl Fn(&mut MoeProblem), expect: Option<&str>) {
    let tensor =
        |name: &str, shape: &[usize], dtype| (name.to_owned(), Tensor::poisoned(shape, dtype));
    let tensors = TensorMap::from([
        tensor("x", &[1, hidden], DType::Bf16),
        (String::from("logits"), Tensor::new(&[1, 6], vec![0.5f32; 6])),
        tensor("w_gate_up", &[8, 1024, hidden], DType::E4m3),
        tensor("gate_up_scale", &[8, 1, 1024], DType::F32),
        tensor("w_down", &[8, hidden, 512], DType::E4m3),
        tensor("down_scale", &[8, 1, hidden], DType::F32),
        tensor("residual", &[1, hidden], DType::F32),
    ]);
    let settings = Settings::new().with("top_k", 6).with("always", 2);
    let options = MoeOptions::read(&settings).unwrap();
    let given = Inputs::of_map(MoeOp::SPEC, &tensors);
    let mut problem = MoeOp::parse(given, &options).unwrap();
    change(&mut problem);
    assert_eq!(why_not(&problem, &hopper()).as_deref(), expect);
}

#[test]
fn unsupported_problems_are_refused_with_a_reason() {
    let any = |_: &mut MoeProblem| {};
    check(2048, any, None);
    check(1536, any, None);
    let columns = "takes x of 2048, 1536 or 2304 columns, got 2560";
    check(2560, any, Some(columns));
    check(2304, any, Some("takes experts of 1024 columns, got 512"));
    check(2304, |of| (of.intermediate, of.top_k) = (1024, 7), None);
    check(2048, |of| (of.always, of.held) = (0, 6), None);
    let changes: [(Change, &str); 10] = [
        (|of| of.tokens = 2, "is for one token, got 2"),
        (|of| of.gated = false, "needs experts with gates, without biases and limits"),
        (
            |of| of.clamp = Some(Clamp { limit: 7.0, alpha: 1.0 }),
            "needs experts with gates, without biases and limits",
        ),
        (|of| of.held = 4, "needs the weights of all experts"),
        (|of| of.residual = false, "adds to a residual"),
        (|of| of.quantized = None, "needs weights in e4m3 by rows"),
        (
            |of| of.top_k = 5,
            "takes an even number up to 16 experts of a token, not all of them every token's, got 7 of which 2 are",
        ),
        (
            |of| of.top_k = 16,
            "takes an even number up to 16 experts of a token, not all of them every token's, got 18 of which 2 are",
        ),
        (|of| of.intermediate = 768, "takes experts of 512 columns, got 768"),
        (|of| (of.experts, of.held) = (513, 515), "chooses among 512 experts at most, got 513"),
    ];
    for (change, expect) in changes {
        check(1536, change, Some(expect));
    }
}

/// A block's columns increase as the number of SMs decreases; below 128 SMs an expert's columns no longer fit.
#[test]
fn blocks_fit_by_sm_count() {
    let of = |multiprocessors, working, hidden| {
        let here = CudaCapabilities { multiprocessors, ..hopper() };
        let weights = Weights { working, ..Weights::by_rows(DType::E4m3) };
        let wide = hidden > 256 * working;
        let (chosen, inner) = if wide { (9, 1024) } else { (8, 512) };
        let experts = Experts { of: 64, always: 1, chosen, inner, hidden };
        let weights = Weights { experts: Some(experts), ..weights };
        experts.unfit(weights, &here)
    };
    assert_eq!(of(132, 8, 2048), None);
    assert_eq!(of(132, 6, 1536), None);
    assert_eq!(of(128, 8, 2048), None);
    assert_eq!(of(132, 6, 2304), None);
    assert_eq!(of(128, 6, 2304), None);
    assert_eq!(of(114, 8, 2048).unwrap(), "needs 128 SMs, this GPU has 114");
    assert_eq!(of(400, 6, 2304), None);
    let columns = "needs two columns of a token a block, got 1536";
    assert_eq!(of(800, 6, 1536).unwrap(), columns);
}
