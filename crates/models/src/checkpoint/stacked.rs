//! Splits tensors that some checkpoints stack; each part gets its published name.

use super::TensorLocation;
use std::collections::BTreeMap;

/// Name suffix of a stacked tensor and the suffixes of its parts, in order.
const STACKED: &[(&str, &[&str])] = &[(
    // Kimi Linear as transformers 5 saves it with save_original_format=False.
    ".self_attn.conv1d.weight",
    &[".self_attn.q_conv1d.weight", ".self_attn.k_conv1d.weight", ".self_attn.v_conv1d.weight"],
)];

/// Splits stacked tensors along their first dimension, which is the slowest in the file.
pub(super) fn split(tensors: &mut BTreeMap<String, TensorLocation>) {
    for (end, parts) in STACKED {
        let names: Vec<String> =
            tensors.keys().filter(|name| name.ends_with(end)).cloned().collect();
        for name in names {
            let Some(rows) = tensors.get(&name).and_then(|of| of.shape.first().copied()) else {
                continue;
            };
            if rows == 0 || !rows.is_multiple_of(parts.len()) {
                continue;
            }
            let Some(whole) = tensors.remove(&name) else { continue };
            let module = name.strip_suffix(end).unwrap_or(&name);
            let bytes = whole.bytes.len() / parts.len();
            for (nth, part) in parts.iter().enumerate() {
                let start = whole.bytes.start + nth * bytes;
                let mut shape = whole.shape.clone();
                shape[0] = rows / parts.len();
                let own = TensorLocation { shape, bytes: start..start + bytes, ..whole.clone() };
                tensors.insert(format!("{module}{part}"), own);
            }
        }
    }
}
