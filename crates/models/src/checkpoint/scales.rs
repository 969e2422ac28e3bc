//! Scales of float8 weights, and the names of scales that are not read.

use super::{Shard, TensorLocation};
use crate::float8::Scales;
use crate::values::{ValueSource, Values};
use crate::{ModelError, nvfp4};
use architectures::{SCALE, SCALE_INV};
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

/// Name suffixes of the scales of activations and of cached keys and values, which are not quantized here.
const UNREAD: [&str; 3] = [".input_scale", ".k_proj.k_scale", ".v_proj.v_scale"];

/// The scales of float8 weights by weight name, and the names of tensors that belong to weights.
///
/// # Errors
/// [`ModelError::Weights`] naming scales that are missing or of the wrong shape.
pub(super) fn read(
    tensors: &BTreeMap<String, TensorLocation>,
    shards: &[Shard],
) -> Result<(BTreeMap<String, Scales>, BTreeSet<String>), ModelError> {
    let unread = |name: &&String| UNREAD.iter().any(|end| name.ends_with(end));
    let mut beside: BTreeSet<String> = tensors.keys().filter(unread).cloned().collect();
    let mut scales = BTreeMap::new();
    let narrow = tensors.iter().filter(|(_, found)| found.dtype == Dtype::F8_E4M3);
    for (name, weight) in narrow.filter(|(name, _)| !nvfp4::is_scale(name, tensors)) {
        let names = [SCALE, SCALE_INV].map(|suffix| format!("{name}{suffix}"));
        let scale = names.iter().find_map(|name| Some((name, tensors.get(name)?)));
        let Some((scale_name, scale)) = scale else {
            let what = format!("tensor `{name}` is float8 without `{}`", names[0]);
            return Err(ModelError::weights(&shards[weight.shard].path, what));
        };
        let shard = &shards[scale.shard];
        let mut values = vec![0f32; scale.shape.iter().product()];
        let of = ValueSource::File(shard, scale, None);
        // Scales are small and not counted as progress.
        Values::whole(scale_name, of, &AtomicU64::new(0)).fill(0, &mut values)?;
        let own = Scales::new(&weight.shape, &scale.shape, values).map_err(|wanted| {
            let what = format!("tensor `{scale_name}` {:?}, expected {wanted}", scale.shape);
            ModelError::weights(&shard.path, what)
        })?;
        beside.insert(scale_name.clone());
        scales.insert(name.clone(), own);
    }
    Ok((scales, beside))
}
