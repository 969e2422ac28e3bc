//! States carried between calls, and pools of them.

use crate::case::{Kda, case};
use crate::scan_support::check;
use crate::scan_support::recurrent::Case;
use ops::DType;
use ops::kda::KdaOp;

#[test]
fn consecutive_calls_with_a_state_equal_one_long_call() {
    for cut in [499, 256, 37] {
        let params = Kda { dims: [64, 96], ..Kda::default() };
        case(vec![500], params).check_parts(&[cut, 500 - cut]);
    }
}

#[test]
fn a_pool_keeps_untouched_slots_and_skips_padding() {
    for (tokens, slots, indices) in [
        (vec![1; 7], 16, vec![3, 15, -1, 0, 8, 9, 1]),
        (vec![1; 16], 17, (0..16).rev().collect()),
        (vec![1; 32], 40, (0..32).map(|i| if i % 5 == 2 { -1 } else { i + 8 }).collect()),
        (vec![70; 3], 5, vec![4, -1, 2]),
        (vec![20, 0, 130, 1], 6, vec![5, 0, -7, 2]),
        (vec![0; 2], 3, vec![-1, 2]),
    ] {
        let params = Kda { heads: [2, 4], dims: [32, 40], ..Kda::default() };
        let is_padded = indices.iter().any(|slot| *slot < 0);
        let case = Case { pool: Some((slots, indices)), ..case(tokens, params) };
        case.check(&[DType::F32, DType::Bf16]);
        if is_padded {
            case.check_padding();
        }
    }
}

#[test]
fn a_state_stored_in_bfloat16_is_widened() {
    for tokens in [1, 80] {
        let case = case(vec![tokens; 2], Kda::default());
        let mut tensors = case.tensors(DType::Bf16);
        let narrow = tensors["initial_state"].cast(DType::Bf16);
        tensors.insert("initial_state".into(), narrow);
        check("narrow state", &KdaOp, &tensors, &case.settings);
    }
}

#[test]
fn large_states_match_with_non_temporal_stores() {
    // More state than the streaming threshold, at a size whose rows are no multiple of a cache line.
    for dims in [[128, 128], [100, 99]] {
        let params = Kda { heads: [2, 100], dims, ..Kda::default() };
        let pool = Some((8, vec![7, 0, 3, -1, 2, 5]));
        Case { pool, ..case(vec![1; 6], params) }.check(&[DType::F32]);
    }
}
