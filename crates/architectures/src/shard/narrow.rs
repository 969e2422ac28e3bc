//! Where weights narrower than 16 bits can be cut: between numbers that share a scale.

use crate::params::Param;
use crate::{BLOCK, Fp8, Fp8Scales, Int, Packing, Stored};

/// Holds a rank's part of a parameter against how the whole one is stored. Rows can be cut anywhere: a rank finds the scales of each.
///
/// # Errors
/// A sentence that names the parameter, how it is stored and the column.
pub(super) fn hold(param: &Param) -> Result<(), String> {
    let Some(cut) = &param.cut else { return Ok(()) };
    let (columns, width) = cut.columns();
    let (shared, what) = match param.stored {
        Stored::Int(Int { ordered: true, .. }) if columns.len() < width => {
            return Err(format!(
                "columns of `{}` belong to groups in an order of their own",
                param.name
            ));
        }
        Stored::Fp8(Fp8 { scales: Fp8Scales::Block, .. }) => {
            (BLOCK, format!("float8 in blocks of {BLOCK} columns"))
        }
        Stored::Int(Int { packing: Packing::Gguf(block), .. }) => {
            (block.values(), format!("{} in blocks of {} columns", block.name(), block.values()))
        }
        // Numbers of bitsandbytes are expanded one by one.
        Stored::Int(Int { bits, group: Some(group), packing, .. })
            if packing != Packing::LookedUp =>
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
