//! Shapes, gates and write strengths.

use crate::case::{Case, Decay, Gates, bind, cpu, run};
use kernels::kda::KdaOp;
use kernels::{DType, Op};

#[test]
fn every_length_around_the_blocks() {
    for tokens in [0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 130] {
        for initial in [false, true] {
            Case { lengths: Ok([2, tokens]), initial, ..Case::default() }.check();
        }
    }
    Case { lengths: Ok([1, 500]), ..Case::default() }.check();
    Case { lengths: Ok([0, 5]), ..Case::default() }.check();
}

#[test]
fn odd_and_unequal_sizes() {
    for dims in
        [[64, 128], [60, 60], [100, 100], [128, 256], [128, 128], [1, 1], [3, 17], [40, 8], [16, 0]]
    {
        for tokens in [1, 70] {
            Case { lengths: Ok([1, tokens]), dims, ..Case::default() }.check();
        }
    }
}

#[test]
fn shapes_of_the_field_suites() {
    // (B, T, H, HV, D) of fla's test_kda; FlashKDA's odd lengths.
    for (batch, tokens, heads, value_heads, dim) in [
        (1, 63, 1, 1, 64),
        (2, 500, 3, 3, 60),
        (3, 1024, 4, 4, 100),
        (2, 1500, 4, 4, 128),
        (2, 1024, 2, 8, 128),
        (1, 37, 4, 4, 128),
        (1, 97, 1, 1, 128),
    ] {
        let case = Case {
            lengths: Ok([batch, tokens]),
            heads: [heads, value_heads],
            dims: [dim, dim],
            ..Case::default()
        };
        case.check_stored(DType::Bf16, 7);
        let safe = Gates::Logits {
            gate: "safe",
            lower_bound: None,
            mean: 0.0,
            deviation: 2.0,
            bias: Some(1.0),
        };
        Case { gates: safe, ..case }.check_stored(DType::F16, 8);
    }
}

#[test]
fn packed_sequences_and_shared_heads() {
    for offsets in [
        vec![0, 15],
        vec![0, 256, 500, 1000],
        vec![0, 15, 100, 300, 1200, 2000],
        vec![0, 0, 7, 7, 80, 80],
        vec![0, 0],
        vec![0],
        vec![0, 1, 2, 3, 4, 60],
    ] {
        Case { lengths: Err(offsets), heads: [2, 4], dims: [32, 48], ..Case::default() }.check();
    }
}

#[test]
fn slow_fast_and_broken_gates() {
    for decay in [
        Decay::Constant(0.0),
        Decay::Constant(-1e-6),
        Decay::Constant(-0.05),
        Decay::Constant(-5.0),
        Decay::Constant(-50.0),
        Decay::Constant(-1e4),
        Decay::Constant(f64::NEG_INFINITY),
        Decay::Soft(-3.0),
        Decay::Mixed(&[-1e-6, -0.1, -5.0]),
        Decay::Mixed(&[0.0, -50.0]),
        Decay::Mixed(&[-1e-3, -1e4, -0.7]),
        Decay::Cliff(-30.0),
        Decay::Cliff(-1e4),
        Decay::Cliff(-1e30),
        Decay::Cliff(f64::NEG_INFINITY),
    ] {
        let case = Case {
            lengths: Ok([1, 200]),
            gates: Gates::Decay(decay),
            gates_in_f32: true,
            ..Case::default()
        };
        case.check();
        Case { lengths: Ok([3, 2]), ..case }.check();
    }
}

#[test]
fn the_slowest_gate_over_a_long_sequence() {
    // A decay factor rounded to f32 is wrong the same way at every token; over 1500 tokens that would show.
    for beta in [0.0, 0.02] {
        Case {
            lengths: Ok([1, 1500]),
            heads: [1, 1],
            gates: Gates::Decay(Decay::Constant(-1e-4)),
            beta: Some(beta),
            gates_in_f32: true,
            ..Case::default()
        }
        .check();
    }
}

#[test]
fn gate_logits_of_both_kinds() {
    for (mean, deviation) in
        [(-8.0, 0.0), (-4.0, 0.0), (0.0, 0.0), (8.0, 0.0), (0.0, 8.0), (0.0, 1.0)]
    {
        for bias in [None, Some(8.0)] {
            for (gate, lower_bound) in [("plain", None), ("safe", None), ("safe", Some(-0.5))] {
                let gates = Gates::Logits { gate, lower_bound, mean, deviation, bias };
                Case { lengths: Ok([1, 100]), gates, doubled: gate == "safe", ..Case::default() }
                    .check();
                Case { lengths: Ok([5, 1]), gates, ..Case::default() }.check();
            }
        }
    }
}

#[test]
fn write_strengths_up_to_reflections() {
    for beta in [0.0, 1.0, 2.0] {
        for decay in [Decay::Soft(0.0), Decay::Constant(-1e-6)] {
            for tokens in [4, 150] {
                let gates = Gates::Decay(decay);
                Case { lengths: Ok([1, tokens]), beta: Some(beta), gates, ..Case::default() }
                    .check();
            }
        }
    }
}

#[test]
fn scale_and_raw_keys() {
    Case { lengths: Ok([1, 90]), l2norm: false, scale: Some(0.5), ..Case::default() }.check();
    Case { lengths: Ok([1, 3]), l2norm: false, scale: Some(-2.0), ..Case::default() }.check();
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (lengths, heads, dims) in [
        (Ok([1, 150]), [1, 1], [64, 128]),
        (Ok([1, 150]), [1, 3], [48, 100]),
        (Ok([3, 1]), [1, 2], [64, 200]),
        (Err(vec![0, 1, 90, 90, 130]), [2, 2], [32, 33]),
    ] {
        let case = Case { lengths, heads, dims, ..Case::default() };
        for dtype in [DType::F32, DType::Bf16] {
            let (tensors, settings) = case.inputs(dtype, 5);
            let call = bind(&tensors, &settings).unwrap();
            for (variant, _) in KdaOp.variants() {
                let one = run(call.as_ref(), &cpu().with_threads(1), variant);
                for threads in [2, 3, 5, 16] {
                    let many = run(call.as_ref(), &cpu().with_threads(threads), variant);
                    assert_eq!(one, many, "{variant} {dtype} on {threads} threads: {case:?}");
                }
            }
        }
    }
}
