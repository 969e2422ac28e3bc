//! Checks that a split does not cut through the groups of a quantized weight.

use crate::params::Param;
use crate::{BLOCK, Fp8, Fp8Scales, GroupQuantization, Packing, StorageFormat};

/// Checks a rank's part of a parameter against the whole one's format. Rows can be cut anywhere: each has its scales.
///
/// # Errors
/// A sentence that names the parameter, its format and the column.
pub(super) fn hold(param: &Param) -> Result<(), String> {
    let Some(cut) = &param.cut else { return Ok(()) };
    let (columns, width) = cut.columns();
    let (shared, what) = match param.stored {
        StorageFormat::Int(GroupQuantization { act_order: true, .. }) if columns.len() < width => {
            return Err(format!(
                "columns of `{}` belong to groups in a permuted order",
                param.name
            ));
        }
        StorageFormat::Fp8(Fp8 { scales: Fp8Scales::Block, .. }) => {
            (BLOCK, format!("float8 in blocks of {BLOCK} columns"))
        }
        StorageFormat::Int(GroupQuantization { packing: Packing::Gguf(block), .. }) => {
            (block.values(), format!("{} in blocks of {} columns", block.name(), block.values()))
        }
        // bitsandbytes weights are dequantized value by value.
        StorageFormat::Int(GroupQuantization { bits, group: Some(group), packing, .. })
            if packing != Packing::BitsAndBytes =>
        {
            (group, format!("int{bits} in groups of {group} columns"))
        }
        _ => return Ok(()),
    };
    let through = |column: &usize| !column.is_multiple_of(shared) && *column != width;
    match [columns.start, columns.end].into_iter().find(through) {
        Some(column) => {
            Err(format!("`{}` is in {what}, and column {column} is inside one", param.name))
        }
        None => Ok(()),
    }
}
