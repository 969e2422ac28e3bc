//! Dense attention, timed for comparison with sparse ops: their decode steps read part of the cache, a dense step
//! reads all of it.

use ops::{Op, Settings, TensorMap};

/// Ops whose decoding steps read part of the keys and values that dense attention reads.
const SPARSE: &[&str] = &["nsa"];

/// The op of dense attention.
pub(crate) const OP: &str = "attention";

/// The inputs of dense attention for the same step of `op`; `None` if that op is not sparse.
pub(crate) fn of(
    op: &dyn Op,
    inputs: &TensorMap,
    settings: &Settings,
) -> Option<(TensorMap, Settings)> {
    let name = op.spec().name;
    if !SPARSE.contains(&name) {
        return None;
    }
    let own = ["q", "k", "v"].into_iter().filter_map(|name| inputs.get_key_value(name));
    let inputs = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    // Sparse ops are causal by definition. Their settings are already validated.
    let causal = Settings::new().with("causal", true);
    let settings = match settings.number(name, "scale") {
        Ok(Some(scale)) => causal.with("scale", scale),
        _ => causal,
    };
    Some((inputs, settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::workloads::WORKLOADS;
    use ops::{Call, op};

    #[test]
    fn every_sparse_op_has_decode_steps_with_a_dense_call() {
        for sparse in SPARSE {
            let listed = WORKLOADS.iter().find(|of| of.op == *sparse).unwrap();
            let steps =
                (listed.cpu)(Size::Quick).into_iter().filter(|w| w.case.starts_with("decode"));
            let mut found = 0;
            for step in steps {
                let (inputs, settings) = (step.build)(step.dtype);
                let (sparse, dense) = (op(sparse).unwrap(), op(OP).unwrap());
                let (dense_inputs, dense_settings) =
                    of(sparse, &inputs, &settings.clone().with("scale", 0.5)).unwrap();
                let call = dense.bind(&dense_inputs, &dense_settings).unwrap();
                let of_sparse = sparse.bind(&inputs, &settings).unwrap();
                let keys = |call: &Call<'_>| {
                    call.problem().dims().into_iter().find(|(dim, _)| *dim == "Tk").unwrap()
                };
                assert_eq!(keys(&call), keys(&of_sparse));
                assert_eq!(dense_settings.number(OP, "scale").unwrap(), Some(0.5));
                found += 1;
            }
            assert!(found > 0, "{sparse} has no step");
        }
        let kda = op("kda").unwrap();
        assert!(of(kda, &TensorMap::new(), &Settings::new()).is_none());
    }
}
