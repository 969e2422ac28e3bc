//! Config keys that change the computation: read, or refused by name.

use crate::layers::RouterScore;
use crate::{Architecture, Config, Mixer, Rope, shape};
use serde_json::{Value, json};

fn of(name: &str, changes: &[(&str, Value)]) -> Result<Architecture, String> {
    let change = |config: Config, (key, value): &(&str, Value)| config.with(key, value.clone());
    let config = changes.iter().fold(shape(name).unwrap(), change);
    Architecture::of(&config).map_err(|error| error.to_string())
}

#[track_caller]
fn refuses(name: &str, key: &str, value: Value, words: &str) {
    let error = of(name, &[(key, value)]).map(drop).unwrap_err();
    assert!(error.contains(words), "{error}");
}

fn rope(of: &Architecture) -> Rope {
    let rope = of.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => attention.rope.clone(),
        _ => None,
    });
    rope.unwrap()
}

#[test]
fn a_share_of_channels_is_refused_where_all_are_rotated() {
    let half = json!({ "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5 });
    let words = "`rope_parameters.partial_rotary_factor` is 0.5, expected 1";
    for name in
        ["llama-mini", "mistral-mini", "qwen2-mini", "qwen3-mini", "lfm2-mini", "gpt-oss-mini"]
    {
        refuses(name, "rope_parameters", half.clone(), words);
    }
    let own = of("qwen3-next-mini", &[("rope_parameters", half)]).unwrap();
    assert_eq!(rope(&own).width, 16);
}

#[test]
fn rotations_of_kinds_of_layers_are_refused() {
    let each = json!({ "full_attention": { "rope_theta": 1e6 }, "sliding_attention": { "rope_theta": 1e4 } });
    refuses("mistral-mini", "rope_parameters", each, "expected one rotation for all layers");
}

#[test]
fn yarn_takes_0_for_a_value_that_is_left_out() {
    let yarn = |more: &str| {
        let text = format!(
            r#"{{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512{more}}}"#
        );
        let value: Value = serde_json::from_str(&text).unwrap();
        rope(&of("llama-mini", &[("rope_parameters", value)]).unwrap())
    };
    let usual = yarn("");
    for more in
        [r#", "beta_fast": 0"#, r#", "beta_slow": 0"#, r#", "mscale": 0, "mscale_all_dim": 1"#]
    {
        assert_eq!(yarn(more), usual, "{more}");
    }
    assert_ne!(yarn(r#", "beta_slow": 30"#), usual);
}

#[test]
fn a_config_without_a_rotation_has_that_of_its_class() {
    let without = |name: &str, kind: &str| {
        let text = shape(name).unwrap().to_text();
        let mut keys: Value = serde_json::from_str(&text).unwrap();
        let map = keys.as_object_mut().unwrap();
        for key in ["rope_theta", "rope_parameters", "rope_scaling"] {
            map.remove(key);
        }
        map.insert("model_type".to_owned(), json!(kind));
        rope(
            &Architecture::describe(&Config::parse("config.json", &keys.to_string()).unwrap())
                .unwrap(),
        )
    };
    let second = |rope: &Rope| rope.frequencies[1].powf(-(rope.width as f64) / 2.0).round();
    assert_eq!(second(&without("lfm2-mini", "lfm2")), 1e6);
    assert_eq!(second(&without("mistral-mini", "mistral")), 1e4);
    assert!(without("gpt-oss-mini", "gpt_oss").factor > 1.0, "YaRN, as in the published models");
}

#[test]
fn weights_of_chosen_experts_are_renormalized_as_the_config_says() {
    let score = |name: &str, value: bool| {
        let of = of(name, &[("norm_topk_prob", json!(value))]).unwrap();
        of.layers.iter().find_map(|layer| layer.experts.as_ref()).unwrap().score
    };
    for name in ["qwen3-moe-mini", "qwen3-next-mini"] {
        assert_eq!(score(name, true), RouterScore::SoftmaxOfChosen);
        assert_eq!(score(name, false), RouterScore::SoftmaxOfAll);
    }
}

#[test]
fn layers_with_experts_are_those_that_the_config_names() {
    let routed = |of: Architecture| -> Vec<bool> {
        of.layers.iter().map(|layer| layer.experts.is_some()).collect()
    };
    let next = |step: usize| {
        let keys = [("decoder_sparse_step", json!(step)), ("mlp_only_layers", json!([1]))];
        routed(of("qwen3-next-mini", &keys).unwrap())
    };
    assert!(next(1).iter().enumerate().all(|(index, routed)| *routed == (index != 1)));
    assert!(
        next(2).iter().enumerate().all(|(index, routed)| *routed == (index % 2 == 1 && index != 1))
    );
    let layers = of("kimi-linear-mini", &[]).unwrap().layers.len();
    let words: Vec<&str> =
        (0..layers).map(|index| if index == 1 { "dense" } else { "sparse" }).collect();
    let kimi = routed(of("kimi-linear-mini", &[("mlp_layer_types", json!(words))]).unwrap());
    assert!(kimi.iter().enumerate().all(|(index, routed)| *routed == (index != 1)));
    let wrong = json!(vec!["moe"; layers]);
    refuses("kimi-linear-mini", "mlp_layer_types", wrong, "expected dense or sparse");
}

#[test]
fn gpt_oss_reads_both_numbers_of_its_activation() {
    let keys = [("swiglu_alpha", json!(2.5)), ("swiglu_limit", json!(3.0))];
    let of = of("gpt-oss-mini", &keys).unwrap();
    let clamped = of.layers[0].experts.as_ref().unwrap().clamped.unwrap();
    assert_eq!((clamped.alpha, clamped.limit), (2.5, 3.0));
}

#[test]
fn sizes_that_no_engine_has_are_refused() {
    refuses(
        "jamba-mini",
        "mamba_d_state",
        json!(0),
        "`mamba_d_state` is 0, expected a whole number",
    );
    refuses("mamba-mini", "state_size", json!(0), "`state_size` is 0, expected a whole number");
    refuses(
        "lfm2-moe-mini",
        "num_experts",
        json!(0),
        "`num_experts` is 0, expected a whole number",
    );
    refuses(
        "kimi-linear-mini",
        "topk_group",
        json!(0),
        "`topk_group` is 0, expected a whole number",
    );
    refuses("kimi-linear-mini", "attention_bias", json!(true), "`attention_bias` is true");
    refuses("qwen3-next-mini", "linear_conv_kernel_dim", json!(8), "expected 2 to 4 taps");
}

#[test]
fn the_whole_models_tie_goes_before_its_text_parts() {
    let text = shape("qwen3.5-moe-mini").unwrap().to_text();
    let tied = |outer: bool, inner: bool| {
        let mut keys: Value = serde_json::from_str(&text).unwrap();
        keys["tie_word_embeddings"] = json!(outer);
        keys["text_config"]["tie_word_embeddings"] = json!(inner);
        let config = Config::parse("config.json", &keys.to_string()).unwrap();
        Architecture::of(&config).unwrap().is_tied()
    };
    assert!(tied(true, false) && !tied(false, true));
}

#[test]
fn a_language_model_in_another_model_is_refused_by_the_whole_models_name() {
    let text = shape("qwen3.5-moe-mini").unwrap().to_text();
    let mut keys: Value = serde_json::from_str(&text).unwrap();
    keys["model_type"] = json!("fun_asr_nano");
    keys["architectures"] = json!(["FunAsrNanoForConditionalGeneration"]);
    let config = Config::parse("config.json", &keys.to_string()).unwrap();
    let error = Architecture::of(&config).unwrap_err().to_string();
    assert!(error.contains("fun_asr_nano") && error.contains("is no model family"), "{error}");
}

/// A model of no family, recognized by its keys, is refused with its own name, not with a missing key of another
/// family.
#[test]
fn a_config_of_no_family_is_refused_by_its_name() {
    let text =
        r#"{"model_type": "opt", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}"#;
    let config = Config::parse("config.json", text).unwrap();
    let error = Architecture::of(&config).unwrap_err().to_string();
    assert_eq!(error, "config.json: opt is no model family that firstlight knows");
}
