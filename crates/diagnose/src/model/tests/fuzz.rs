//! Published configs after random edits: a report or an error, never a panic, and never a list as long as a number in
//! the file.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

const CONFIGS: [&str; 12] = [
    GRANITE_MICRO,
    KIMI_LINEAR,
    LLAMA_8B,
    MIXTRAL,
    MAMBA_28B,
    MAMBA2_27B,
    JAMBA,
    BAMBA_9B,
    FALCON_H1_05B,
    NEMOTRON_H_8B,
    QWEN3_NEXT,
    GPT_OSS_20B,
];

/// Invalid and extreme values of a key.
fn odd(kind: u8) -> Value {
    match kind % 14 {
        0 => json!(0),
        1 => json!(1),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1_u64 << 40),
        5 => json!(4096),
        6 => json!(0.5),
        7 => json!(1e300),
        8 => Value::Null,
        9 => json!(""),
        10 => json!("M*-E\u{e9}"),
        11 => json!([]),
        12 => json!([u64::MAX, 0, 3, "attention"]),
        _ => json!({"kda_layers": [1, u64::MAX], "full_attn_layers": [0], "bits": 0}),
    }
}

/// Changes one value at any depth; removes its key if `new` is `None`.
fn change(value: &mut Value, path: &[Index], new: Option<Value>) {
    let Some((first, rest)) = path.split_first() else { return };
    match value {
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(first.index(map.len())).cloned().unwrap_or_default();
            let deeper = map.get(&key).is_some_and(|it| it.is_object() || it.is_array());
            match (map.get_mut(&key), new) {
                (Some(inner), new) if deeper && !rest.is_empty() => change(inner, rest, new),
                (Some(inner), Some(new)) => *inner = new,
                _ => drop(map.remove(&key)),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let place = first.index(items.len());
            match new {
                Some(new) => items[place] = new,
                None => drop(items.remove(place)),
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_configs_give_a_report_or_an_error(
        which in any::<Index>(),
        changes in proptest::collection::vec(
            (proptest::collection::vec(any::<Index>(), 1..3), proptest::option::of(any::<u8>())),
            1..8,
        ),
        context_tokens in prop_oneof![Just(0), Just(4096), Just(u64::MAX)],
        sequences in prop_oneof![Just(0), Just(1), Just(u64::MAX)],
    ) {
        let mut config = few_experts(CONFIGS[which.index(CONFIGS.len())]);
        for (path, new) in changes {
            change(&mut config, &path, new.map(odd));
        }
        let options = ModelOptions { context_tokens, sequences, ..options() };
        match model(&config.to_string(), &options, &machines::a10(), &[], &[]) {
            Ok((report, findings)) => {
                let layers: usize = report.layers.iter().map(|group| group.indices.len()).sum();
                prop_assert!((1..=3 * 4096).contains(&layers), "{} layers", layers);
                prop_assert!(findings.len() < 100);
                // A model fits if and only if no bytes are missing.
                if let (Some(fits), Some(left)) = (report.memory.fits, report.memory.left_bytes) {
                    prop_assert_eq!(fits, left >= 0);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "[\\[\\]{}:,\"0-9a-z_ .-]{0,200}") {
        let _ = model(&text, &options(), &machines::a10(), &[], &[]);
    }
}
