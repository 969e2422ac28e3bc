use super::*;
use crate::params::Param;
use crate::{SHAPES, shape};

/// Whether a parameter belongs to routed experts only.
fn is_routed(param: &Param) -> bool {
    let named = |parts: &[&str]| parts.iter().any(|part| param.name.contains(part));
    let experts = ["experts.", "sparse_moe.input", "sparse_moe.output", "latent_proj"];
    (named(&experts) || named(&["router", ".gate.", "expert_bias"])) && !named(&["shared_experts"])
}

#[test]
fn parameters_of_absent_layers_are_empty() {
    let (mut kept, mut left) = (0, 0);
    for name in SHAPES.iter().map(|shape| shape.name) {
        let config = shape(name).unwrap().with("quantization_config", serde_json::Value::Null);
        let whole = Architecture::of(&config).unwrap();
        let few = whole.clone().one_layer_of_each_kind();
        let kept_layer = |at: usize| {
            let norm = whole.layers[at].input_norm;
            few.layers.iter().find(|layer| layer.input_norm == norm)
        };
        for (own, param) in few.params.iter().zip(whole.params.iter()) {
            // Parameter names contain the layer's number.
            let number: Option<usize> = param.name.split('.').find_map(|part| part.parse().ok());
            let there = number.is_none_or(|at| {
                kept_layer(at).is_some_and(|layer| layer.experts.is_some() || !is_routed(param))
            });
            let expect = if there { param.len() } else { 0 };
            assert_eq!(own.len(), expect, "{name}: {}", param.name);
            *(if there { &mut kept } else { &mut left }) += 1;
        }
    }
    assert!(kept > 300 && left > 3000, "{kept} {left}");
}
