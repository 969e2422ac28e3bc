//! Transposing a state between its layout in memory and the one that a kernel reads.
#![allow(unsafe_code)] // Square blocks through registers, bounds checked first.

use crate::simd::Simd;

/// `to[column][row] = from[row][column]`, both dense.
///
/// # Panics
/// When a slice does not have `rows * columns` values.
#[inline(always)]
pub(crate) fn transpose<S: Simd>(
    simd: S,
    from: &[f32],
    rows: usize,
    columns: usize,
    to: &mut [f32],
) {
    assert!(from.len() == rows * columns && to.len() == rows * columns, "sizes of a transpose");
    let block = S::TRANSPOSE;
    let (whole_rows, whole_columns) = (rows / block * block, columns / block * block);
    for row in (0..whole_rows).step_by(block) {
        for column in (0..whole_columns).step_by(block) {
            // SAFETY: the block's rows and columns are inside both matrices.
            unsafe {
                simd.transpose(
                    from.as_ptr().add(row * columns + column),
                    columns,
                    to.as_mut_ptr().add(column * rows + row),
                    rows,
                );
            }
        }
    }
    for row in 0..rows {
        let done = if row < whole_rows { whole_columns } else { 0 };
        for column in done..columns {
            to[column * rows + row] = from[row * columns + column];
        }
    }
}
