//! Shapes, gates and write strengths.

use crate::case::{Decay, Gates, Kda, case};
use crate::scan_support::recurrent::{ALL, Case};
use ops::DType;

#[test]
fn every_length_around_the_blocks() {
    for tokens in [0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 130] {
        for initial in [false, true] {
            Case { initial, ..case(vec![tokens; 2], Kda::default()) }.check(&ALL);
        }
    }
    case(vec![500], Kda::default()).check(&ALL);
    case(vec![], Kda::default()).check(&ALL);
}

#[test]
fn odd_and_unequal_sizes() {
    for dims in
        [[64, 128], [60, 60], [100, 100], [128, 256], [128, 128], [1, 1], [3, 17], [40, 8], [16, 0]]
    {
        for tokens in [1, 70] {
            case(vec![tokens], Kda { dims, ..Kda::default() }).check(&ALL);
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
        let params = Kda { heads: [heads, value_heads], dims: [dim, dim], ..Kda::default() };
        case(vec![tokens; batch], params).check(&[DType::Bf16]);
        let safe = Gates::Logits {
            gate: "safe",
            lower_bound: None,
            mean: 0.0,
            deviation: 2.0,
            bias: Some(1.0),
        };
        case(vec![tokens; batch], Kda { gates: safe, ..params }).check(&[DType::F16]);
    }
}

#[test]
fn packed_sequences_and_shared_heads() {
    for tokens in [
        vec![15],
        vec![256, 244, 500],
        vec![15, 85, 200, 900, 800],
        vec![0, 7, 0, 73, 0],
        vec![0],
        vec![],
        vec![1, 1, 1, 1, 56],
    ] {
        let params = Kda { heads: [2, 4], dims: [32, 48], ..Kda::default() };
        Case { packed: true, ..case(tokens, params) }.check(&ALL);
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
        let params = Kda { gates: Gates::Decay(decay), gates_in_f32: true, ..Kda::default() };
        case(vec![200], params).check(&ALL);
        case(vec![2; 3], params).check(&ALL);
    }
}

#[test]
fn the_slowest_gate_over_a_long_sequence() {
    // The rounding error of an f32 decay is the same at every token, so over 1500 tokens it would accumulate.
    for beta in [0.0, 0.02] {
        let (gates, beta) = (Gates::Decay(Decay::Constant(-1e-4)), Some(beta));
        let params = Kda { heads: [1, 1], gates, beta, gates_in_f32: true, ..Kda::default() };
        case(vec![1500], params).check(&ALL);
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
                let params = Kda { gates, ..Kda::default() };
                case(vec![100], Kda { doubled: gate == "safe", ..params }).check(&ALL);
                case(vec![1; 5], params).check(&ALL);
            }
        }
    }
}

#[test]
fn write_strengths_up_to_reflections() {
    for beta in [0.0, 1.0, 2.0] {
        for decay in [Decay::Soft(0.0), Decay::Constant(-1e-6)] {
            for tokens in [4, 150] {
                let (gates, beta) = (Gates::Decay(decay), Some(beta));
                case(vec![tokens], Kda { gates, beta, ..Kda::default() }).check(&ALL);
            }
        }
    }
}

#[test]
fn scale_and_raw_keys() {
    for (tokens, scale) in [(90, 0.5), (3, -2.0)] {
        let params = Kda { l2norm: false, scale: Some(scale), ..Kda::default() };
        case(vec![tokens], params).check(&ALL);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (tokens, heads, dims) in [
        (vec![150], [1, 1], [64, 128]),
        (vec![150], [1, 3], [48, 100]),
        (vec![1; 3], [1, 2], [64, 200]),
        (vec![1, 89, 0, 40], [2, 2], [32, 33]),
    ] {
        let params = Kda { heads, dims, ..Kda::default() };
        case(tokens, params).check_threads(&[DType::F32, DType::Bf16]);
    }
}
