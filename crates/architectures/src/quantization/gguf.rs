//! Weights in GGUF blocks. The config is derived from the file's header: `{"quant_method": "gguf", "types": {NAME:
//! TYPE}}`.

use super::{GroupQuantization, Kind, Packing};
use crate::{Config, ConfigError};
use std::collections::BTreeMap;

/// A block format, by the formulas of ggml's `ggml-quants.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    /// 32 4-bit values: `d (q - 8)`.
    Q4_0,
    /// 32 8-bit values: `d q`.
    Q8_0,
    /// 256 4-bit values in groups of 32: `d sc q - dmin m`.
    Q4K,
    /// 256 5-bit values in groups of 32: `d sc q - dmin m`.
    Q5K,
    /// 256 6-bit values in groups of 16: `d sc (q - 32)`.
    Q6K,
    /// 32 values of E2M1 with a power-of-two scale.
    Mxfp4,
}

impl GgmlType {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Q4_0, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K, Self::Mxfp4];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Values per block.
    pub fn values(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q8_0 | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
        }
    }

    /// The integer format in engines: 4 bits, or 8 for more than 4. The offset of a K-quant group is a zero point that
    /// is not a whole number.
    pub fn int(self) -> GroupQuantization {
        let (bits, group, symmetric) = match self {
            Self::Q4_0 | Self::Mxfp4 => (4, 32, true),
            Self::Q8_0 => (8, 32, true),
            Self::Q4K => (4, 32, false),
            Self::Q5K => (8, 32, false),
            Self::Q6K => (8, 16, true),
        };
        let packing = Packing::Gguf(self);
        GroupQuantization { bits, group: Some(group), symmetric, act_order: false, packing }
    }
}

/// The format of each quantized parameter, by its name.
pub(super) fn gguf(part: &Config) -> Result<Kind, ConfigError> {
    let Some(types) = part.part("types")? else {
        return Err(part.missing("types", "the type of each parameter"));
    };
    let mut stored = BTreeMap::new();
    for name in types.keys() {
        let word = types.text(name)?;
        let Some(block) = GgmlType::ALL.into_iter().find(|block| word == Some(block.name())) else {
            let read = GgmlType::ALL.map(GgmlType::name).join(", ");
            return Err(types.wrong(name, format!("{read}, the types that are read")));
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        stored.insert(module.to_owned(), block.int().into());
    }
    Ok(Box::new(move |module| stored.get(module).copied()))
}
