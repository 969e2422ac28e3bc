//! Checks a head that the config ties to the embedding in a checkpoint that has both.

use super::{Files, TensorLocation};
use crate::values::{ValueSource, Values};
use crate::{Architecture, ModelError};
use std::sync::atomic::AtomicU64;

const HEAD: &str = "lm_head.weight";

/// Number of values compared at the beginning and at the end.
const COMPARED: usize = 4096;

impl Files {
    /// Refuses a head that differs from the embedding although the config ties them: either the config or the weights
    /// are wrong.
    ///
    /// # Errors
    /// [`ModelError::Weights`] naming the key.
    pub(super) fn check_tie(&self, architecture: &Architecture) -> Result<(), ModelError> {
        let embedding = &architecture.params.get(architecture.embedding).name;
        let both = (self.tensors.get(HEAD), self.tensors.get(embedding));
        let (Some(head), Some(table), true) = (both.0, both.1, architecture.is_tied()) else {
            return Ok(());
        };
        let len: usize = head.shape.iter().product();
        if head.shape == table.shape {
            let count = len.min(COMPARED);
            let ends = |name: &str, of: &TensorLocation| -> Result<Vec<f32>, ModelError> {
                let read = AtomicU64::new(0);
                let scales = self.scales.get(name);
                let values = Values::whole(
                    name,
                    ValueSource::File(&self.shards[of.shard], of, scales),
                    &read,
                );
                Ok([values.read::<f32>(0, count)?, values.read(len - count, count)?].concat())
            };
            if ends(HEAD, head)? == ends(embedding, table)? {
                return Ok(());
            }
        }
        let what = format!(
            "`{HEAD}` is not the embedding, but config.json: `tie_word_embeddings` is true"
        );
        Err(ModelError::weights(&self.shards[head.shard].path, what))
    }
}
