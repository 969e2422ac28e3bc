//! Weights in the blocks of a GGUF file, whose config is made of the file's header: `{"quant_method": "gguf", "types": {NAME: TYPE}}`.

use super::{Int, Kind, Packing};
use crate::{Config, ConfigError};
use std::collections::BTreeMap;

/// A type of blocks of numbers that share scales, by the formulas of ggml's `ggml-quants.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// 32 numbers of 4 bits: `d (q - 8)`.
    Q4_0,
    /// 32 numbers of 8 bits: `d q`.
    Q8_0,
    /// 256 numbers of 4 bits in groups of 32: `d sc q - dmin m`.
    Q4K,
    /// The same with 5 bits.
    Q5K,
    /// 256 numbers of 6 bits in groups of 16: `d sc (q - 32)`.
    Q6K,
    /// 32 numbers of E2M1 beside a power of two.
    Mxfp4,
}

impl Block {
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

    /// Values of a block.
    pub fn values(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q8_0 | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
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

    /// How engines see its numbers: in 4 bits, or in 8 where they have more than 4. What is subtracted from a group of the K types
    /// is a zero point, and no whole number.
    pub fn int(self) -> Int {
        let (bits, group, symmetric) = match self {
            Self::Q4_0 | Self::Mxfp4 => (4, 32, true),
            Self::Q8_0 => (8, 32, true),
            Self::Q4K => (4, 32, false),
            Self::Q5K => (8, 32, false),
            Self::Q6K => (8, 16, true),
        };
        let packing = Packing::Gguf(self);
        Int { bits, group: Some(group), symmetric, ordered: false, packing }
    }
}

/// By the type of each parameter that is in blocks, by its name.
pub(super) fn gguf(part: &Config) -> Result<Kind, ConfigError> {
    let Some(types) = part.part("types")? else {
        return Err(part.missing("types", "the type of each parameter"));
    };
    let mut stored = BTreeMap::new();
    for name in types.keys() {
        let word = types.text(name)?;
        let Some(block) = Block::ALL.into_iter().find(|block| word == Some(block.name())) else {
            let read = Block::ALL.map(Block::name).join(", ");
            return Err(types.wrong(name, format!("{read}, the types that are read")));
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        stored.insert(module.to_owned(), block.int().into());
    }
    Ok(Box::new(move |module| stored.get(module).copied()))
}
