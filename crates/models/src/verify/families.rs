use super::{row, verify};
use crate::{ENGINES, ModelError, ModelSource, StateType, Storage, shape};
use facts::{BackendKind, ParityRow};
use std::collections::BTreeMap;

/// Reduced shapes that together have layers of every kind.
const REDUCED: [&str; 11] = [
    "granite-hybrid-mini",
    "granite-moe-mini",
    "kimi-linear-mini",
    "qwen3-next-mini",
    "bamba-mini",
    "jamba-mini",
    "nemotron-mini",
    "falcon-h1-mini",
    "lfm2-moe-mini",
    "gpt-oss-mini",
    "qwen2-mini",
];

/// Verifies a backend's engine against the reference on a reduced random model of every family: one row per check, and
/// a failed row if an engine does not open. No rows for a backend without an engine.
///
/// `begins` is called for each model, with its index and the number of models.
pub fn verify_families(
    backend: BackendKind,
    mut begins: impl FnMut(&str, usize, usize),
) -> Vec<ParityRow> {
    if ENGINES.iter().all(|engine| engine.backend != backend) {
        return Vec::new();
    }
    let storage = Storage::Bf16;
    let of = |name: &str| -> Result<Vec<ParityRow>, ModelError> {
        let source = ModelSource::Random { config: shape(name)?, seed: 0 };
        // Three sequences, whose prompts start and end within cache blocks.
        Ok(verify(name, &source, backend, (storage, StateType::F32), 3, &[70], None)?.rows)
    };
    let rows = |name: &str| {
        let failed = |error| row(name, "load", backend, storage, Err(error), &BTreeMap::new(), 0.0);
        of(name).unwrap_or_else(|error| vec![failed(error)])
    };
    let mut all = Vec::new();
    for (at, name) in REDUCED.into_iter().enumerate() {
        begins(name, at, REDUCED.len());
        all.extend(rows(name));
    }
    all
}
