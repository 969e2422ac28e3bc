//! Quantized weights split over ranks: each rank reads its own values and their scales.

use crate::gguf::{Kind, write};
use crate::ranks::split_stored;
use crate::subject::{
    AWQ, FLOAT8_BLOCKS, FLOAT8_ROWS, FLOAT8_TENSORS, GPTQ_ORDERED, GPTQ_SECOND, INTEGERS_MIXED,
    SampledTokens, Subject, advance, check, tokens,
};
use models::{Engine, Model, ShardRank, Storage};
use std::path::Path;

/// Every quantization format, with widths that do not cut groups, and the number of ranks.
const FLOATS: &[(SampledTokens<'static>, usize)] = &[
    (("granite-hybrid-mini", FLOAT8_ROWS), 4),
    (("falcon-h1-mini", FLOAT8_ROWS), 2),
    (("lfm2-mini", FLOAT8_ROWS), 4),
    (("llama-mini", FLOAT8_TENSORS), 2),
    (("qwen3-mini", &[FLOAT8_BLOCKS[0], ("head_dim", "64"), ("intermediate_size", "256")]), 2),
];
const INTEGERS: &[(SampledTokens<'static>, usize)] = &[
    (("granite-moe-mini", INTEGERS_MIXED), 2),
    (("granite-hybrid-mini", &[INTEGERS_MIXED[0], ("shared_intermediate_size", "128")]), 2),
    (("qwen3-moe-mini", &[GPTQ_SECOND[0], ("intermediate_size", "128")]), 2),
    (("llama-mini", &[AWQ[0], ("intermediate_size", "128")]), 2),
    (
        (
            "falcon-h1-mini",
            &[INTEGERS_MIXED[0], WIDE, ("mamba_n_heads", "8"), ("mamba_d_ssm", "128")],
        ),
        2,
    ),
    (("lfm2-moe-mini", &[INTEGERS_MIXED[0], WIDE, ("moe_intermediate_size", "64")]), 2),
];

/// A feed-forward part whose halves are whole groups.
const WIDE: (&str, &str) = ("intermediate_size", "128");

/// Logits of two passes over a prompt, with all rows together and one by one.
fn logits(engine: &mut dyn Engine) -> Vec<f32> {
    let tokens = tokens(1, 40);
    let whole = advance(engine, 0, &tokens, 40);
    engine.reset(0);
    [whole, advance(engine, 0, &tokens[..6], 1)].concat()
}

fn whole(path: &Path, storage: Storage) -> Vec<f32> {
    let device = backends::open(facts::BackendKind::Cpu).unwrap();
    let capacity = models::Capacity { sequences: 4, tokens: 300 };
    logits(&mut *models::open(Model::read(path).unwrap(), device, storage, capacity).unwrap())
}

#[test]
fn split_quantized_weights_give_the_same_logits() {
    for (drawn, count) in FLOATS.iter().chain(INTEGERS) {
        let subject = Subject::draw(*drawn);
        let (path, name) = (subject.folder(), &subject.name);
        let want: Vec<f64> = whole(path, Storage::F32).into_iter().map(f64::from).collect();
        split_stored((path, Storage::F32), (*count, false), |engine, [read, own, all]| {
            // Scales are read in addition to the values.
            assert!((own..own * 3 / 2).contains(&read), "{name}: {read} of {own}");
            assert!(own < all * 3 / 4, "{name} reads {own} of {all}");
            check(name, &logits(engine), &want);
        });
        split_stored((path, Storage::F32), (2, true), |engine, _| {
            check(&format!("{name} in stages"), &logits(engine), &want);
        });
    }
}

/// Blocks of GGUF files, which contain their scales.
#[test]
fn split_gguf_blocks_give_the_same_logits() {
    let widths: &[_] = &[
        ("hidden_size", "256"),
        ("shared_intermediate_size", "512"),
        ("mamba_n_heads", "32"),
        ("num_key_value_heads", "4"),
    ];
    let subject = Subject::draw(("granite-hybrid-mini", widths));
    for (kind, refused) in [
        (Kind::Q8_0, None),
        (Kind::Q4_0, None),
        (Kind::Q4_1, None),
        (Kind::Q5_0, None),
        (Kind::Q5_1, None),
        (Kind::Iq4Nl, None),
        (Kind::Nvfp4, None),
        (Kind::Q4K, Some("Q4_K in blocks of 256 columns, and column 128 is inside one")),
    ] {
        let path = subject.folder().join("model.gguf");
        write(subject.folder(), &path, |_| kind);
        if let Some(words) = refused {
            let model = Model::read(&path).unwrap();
            let error = model.part(ShardRank { rank: 0, ranks: 2 }).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            continue;
        }
        let want: Vec<f64> = whole(&path, Storage::F32).into_iter().map(f64::from).collect();
        split_stored((&path, Storage::F32), (2, false), |engine, _| {
            check(&format!("{kind:?}"), &logits(engine), &want);
        });
    }
}

/// Integers that the CPU does not expand give the same logits when split.
#[test]
fn split_integers_give_the_same_logits() {
    for (drawn, count) in INTEGERS {
        let subject = Subject::draw(*drawn);
        let path = subject.folder();
        let want = whole(path, Storage::Bf16);
        split_stored((path, Storage::Bf16), (*count, false), |engine, _| {
            let error = models::relative_error(&logits(engine), &want);
            let most = Storage::Bf16.tolerance_between(engine.architecture());
            assert!(error <= most, "{}: {error} of {most}", subject.name);
        });
    }
}

#[test]
fn splits_within_a_group_are_refused_by_name() {
    let refusals: [(SampledTokens<'_>, &str); 4] = [
        (
            ("llama-mini", AWQ),
            "`model.layers.0.mlp.down_proj.weight` is in int4 in groups of 32 columns, and column 48 is inside one",
        ),
        (
            ("qwen3-mini", FLOAT8_BLOCKS),
            "`model.layers.0.self_attn.o_proj.weight` is in float8 in blocks of 128 columns, and column 48 is inside one",
        ),
        (
            ("granite-hybrid-mini", GPTQ_ORDERED),
            "columns of `model.layers.0.mamba.out_proj.weight` belong to groups in a permuted order",
        ),
        (
            ("granite-hybrid-mini", INTEGERS_MIXED),
            "`model.layers.0.shared_mlp.output_linear.weight` is in int4 in groups of 32 columns, and column 48 is inside one",
        ),
    ];
    for (drawn, words) in refusals {
        let subject = Subject::draw(drawn);
        let model = Model::read(subject.folder()).unwrap();
        let error = model.part(ShardRank { rank: 0, ranks: 2 }).unwrap_err();
        assert_eq!(error.to_string(), format!("the model cannot be split: {words}"));
    }
}
