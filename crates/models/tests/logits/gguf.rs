//! GGUF files with the values of model folders give the same logits, in little memory.

mod writer;

use crate::subject::{SampledTokens, Subject, advance, check, tokens};
use facts::BackendKind;
use models::{
    Batch, Capacity, Engine, LogitsSelection, Model, Storage, is_gguf, open, read_config,
};
use std::path::{Path, PathBuf};
pub(crate) use writer::{Kind, write};

/// Shapes without the features that llama.cpp lacks.
const SUBJECTS: &[SampledTokens<'static>] = &[
    ("granite-hybrid-mini", &[]),
    ("granite-moe-mini", &[]),
    ("granite-rope-mini", &[]),
    ("granite-dense-mini", &[]),
    ("llama-mini", &[]),
    ("llama-mini", &[("attention_bias", "true"), ("tie_word_embeddings", "true")]),
    (
        "qwen3-moe-mini",
        &[
            ("model_type", r#""mixtral""#),
            ("architectures", r#"["MixtralForCausalLM"]"#),
            ("mlp_only_layers", "[]"),
        ],
    ),
    ("qwen2-mini", &[("use_sliding_window", "false")]),
    ("qwen3-mini", &[]),
    ("qwen3-moe-mini", &[]),
    ("kimi-linear-mini", &[]),
    ("mamba2-mini", &[]),
    ("gpt-oss-mini", &[("swiglu_limit", "7.0")]),
    ("mamba-mini", &[("use_bias", "false")]),
    ("falcon-mamba-mini", &[("mixer_rms_eps", "1e-6")]),
    ("jamba-mini", &[]),
    ("falcon-h1-mini", &[]),
    ("falcon-h1-mini", &[("mamba_rms_norm", "true")]),
    ("lfm2-mini", &[]),
    ("lfm2-moe-mini", &[("routed_scaling_factor", "1.0")]),
    ("nemotron-mini", &[]),
    ("nemotron-mini", &[("moe_latent_size", "32")]),
    ("nemotron-mini", &[("hybrid_override_pattern", r#""M-*-M""#), ("n_routed_experts", "0")]),
];

fn written(subject: &Subject, kind: impl Fn(&str) -> Kind) -> PathBuf {
    let path = subject.folder().join("model.gguf");
    write(subject.folder(), &path, kind);
    path
}

fn engine(path: &Path, storage: Storage) -> Box<dyn Engine> {
    let device = backends::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences: 1, tokens: 300 };
    open(Model::read(path).unwrap(), device, storage, capacity).unwrap()
}

#[test]
fn gguf_logits_match_the_original_folder() {
    for subject in SUBJECTS {
        let subject = Subject::draw(*subject);
        let path = written(&subject, |_| Kind::F32);
        assert!(is_gguf(&path) && !is_gguf(subject.folder()));
        let tokens = tokens(3, 70);
        let got = advance(&mut *engine(&path, Storage::F32), 0, &tokens, 33);
        check(&subject.name, &got, &subject.oracle().logits(&tokens));
        let (file, folder) = (Model::read(&path).unwrap(), Model::read(subject.folder()).unwrap());
        assert_eq!(file.checkpoint.parameters(), folder.checkpoint.parameters());
        assert_eq!(file.architecture.context, folder.architecture.context);
    }
}

/// Rows of 256 columns, which K-quant blocks require.
const WIDE: &[(&str, &str)] = &[
    ("hidden_size", "256"),
    ("shared_intermediate_size", "256"),
    ("intermediate_size", "256"),
    ("mamba_d_head", "64"),
    ("head_dim", "64"),
];

#[test]
fn quantized_blocks_are_not_expanded() {
    let all = Kind::BLOCKS;
    // Mixed types as llama.cpp chooses them, and a single type.
    let mixed = |name: &str| match name {
        name if name.contains("attn_v") || name.contains("ffn_down") => Kind::Q6K,
        name if name.contains("attn_k") => Kind::Q8_0,
        _ => Kind::Q4K,
    };
    let tokens = tokens(5, 40);
    for name in ["granite-hybrid-mini", "llama-mini", "granite-moe-mini"] {
        let subject = Subject::draw((name, WIDE));
        for of in 0..=all.len() {
            let path =
                written(&subject, |name| all.get(of).copied().unwrap_or_else(|| mixed(name)));
            let wide = advance(&mut *engine(&path, Storage::F32), 0, &tokens, 40);
            let mut narrow = engine(&path, Storage::Bf16);
            let mut got = advance(&mut *narrow, 0, &tokens[..30], 30);
            got.extend(advance(&mut *narrow, 0, &tokens[30..], 1));
            let off = got.iter().zip(&wide).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let size = wide.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let error = (off / size).sqrt();
            let said = format!("{name} {:?}: {error:.2e}", all.get(of));
            // Rounding may route a token to another expert with a nearly equal score.
            let most = if name.contains("moe") { 0.5 } else { 2e-2 };
            assert!(error < most && error > 1e-5, "{said}");
            let launches = narrow.device().launches().snapshot();
            assert!(launches.keys().any(|name| name.starts_with("linear.int")), "{said}");
            // The sizes of the file and of the config agree.
            let model = Model::read(&path).unwrap();
            let stored = model.architecture.params.iter().map(|param| param.stored_bytes(4));
            assert_eq!(stored.sum::<u64>(), model.checkpoint.bytes(), "{said}");
        }
    }
}

#[test]
fn unsupported_gguf_types_are_refused_by_name() {
    let subject = Subject::draw(("llama-mini", &[]));
    let path = written(&subject, |_| Kind::F32);
    let bytes = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], words: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = Model::read(&path).unwrap_err().to_string();
        assert!(error.contains(words), "{error}, expected {words}");
    };
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    refused(b"GGML", "is no GGUF file");
    refused(&bytes[..bytes.len() - 1], &format!("expected {} bytes", bytes.len()));
    refused(&bytes[..100], "is truncated");
    refused(&replaced("llama", "gemma"), "is of the architecture `gemma`");
    refused(&replaced("llama.block_count", "llama.block_ccunt"), "`llama.block_count` is missing");
    refused(&replaced("blk.2.ffn_up.weight", "blk.2.ffn_xx.weight"), "lacks `blk.2.ffn_up.weight`");
    // Another type for the same tensor: its number follows the name, the number of dimensions and the dimensions.
    let name = b"blk.1.attn_v.weight";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len();
    let mut other = bytes.clone();
    other[at + 4 + 16] = 21;
    refused(&other, "tensor `blk.1.attn_v.weight` is in IQ3_S");
    let mut other = bytes.clone();
    other[at + 4 + 16] = 12;
    refused(&other, "tensor `blk.1.attn_v.weight` has a shape");
    // Blocks that need more bytes than the file has: the last tensor, and one of another size.
    for kind in [Kind::Q4_1, Kind::Q5_0, Kind::Q5_1, Kind::Iq4Nl] {
        let path = written(&subject, |_| kind);
        let whole = std::fs::read(&path).unwrap();
        let short = format!("expected {} bytes", whole.len());
        refused(&whole[..whole.len() - 1], &short);
        refused(&whole[..whole.len() - kind.sizes().2], &short);
    }
    std::fs::write(&path, &bytes).unwrap();
    let step = engine(&path, Storage::F32).step(&Batch::new().with(0, &[1]), LogitsSelection::Last);
    assert!(step.is_ok());
    assert_eq!(read_config(&path).unwrap().model_type(), Some("llama"));
}
