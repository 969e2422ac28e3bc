//! States in bfloat16: widened exactly, computed in float32, and rounded once.

use crate::scan_support::launch_all;
use crate::{Case, Ssd};
use half::bf16;
use ops::ssd::SsdOp;
use ops::{DType, Settings, Tensor, TensorMap};

/// The same call with its states rounded to bfloat16 and stored in a type.
fn with_states_in(tensors: &TensorMap, dtype: DType) -> TensorMap {
    let mut tensors = tensors.clone();
    if let Some(states) = tensors.get_mut("initial_state") {
        *states = states.cast(DType::Bf16).cast(dtype);
    }
    tensors
}

/// Every variant gives the same outputs as with the same states in float32, and the same final states, rounded to nearest.
#[test]
fn bf16_states_are_read_exactly_and_rounded_once() {
    let params = Ssd { heads: 4, groups: 2, p: 20, n: 33, d: 1, z: true, ..Ssd::default() };
    let plain = Case { name: "states in bfloat16", ..Case::with(params) };
    let pool = Some((7, vec![5, -1, 0, 2]));
    for case in [
        Case { tokens: vec![70], ..plain.clone() },
        Case { tokens: vec![1, 1, 1], initial: true, ..plain.clone() },
        Case { tokens: vec![100, 100], initial: true, ..plain.clone() },
        Case { tokens: vec![1, 1, 1, 1], pool: pool.clone(), ..plain.clone() },
        Case { tokens: vec![0, 129, 3, 64], pool, ..plain },
    ] {
        let tensors = case.tensors(DType::Bf16);
        let settings = Settings::new().with("chunk_size", 48);
        let of = |dtype: DType| {
            let settings = settings.clone().with("state_dtype", dtype.as_str());
            launch_all(&SsdOp, &with_states_in(&tensors, dtype), &settings)
        };
        for ((variant, wide), (_, narrow)) in of(DType::F32).into_iter().zip(of(DType::Bf16)) {
            let bits = |tensor: &Tensor| -> Vec<u64> {
                tensor.to_f64().into_iter().map(f64::to_bits).collect()
            };
            assert_eq!(bits(&narrow["o"]), bits(&wide["o"]), "{variant} {:?}", case.tokens);
            assert_eq!(narrow["final_state"].dtype(), DType::Bf16);
            let wide = wide["final_state"].view::<f32>().unwrap().iter();
            let rounded: Vec<bf16> = wide.map(|x| bf16::from_f32(*x)).collect();
            let last = narrow["final_state"].view::<bf16>().unwrap();
            assert_eq!(last, rounded, "{variant} {:?}", case.tokens);
        }
    }
}
