//! Values of a parameter that its file stores in another order than row by row.

use crate::ModelError;
use crate::params::Param;

/// Fills a slice with values of a parameter starting at `first`; `read` reads consecutive values of the file. Returns
/// the number of values read but not wanted.
///
/// # Errors
/// Those of `read`.
pub(super) fn fill<V: Copy + Default>(
    param: &Param,
    first: usize,
    into: &mut [V],
    read: impl Fn(usize, &mut [V]) -> Result<(), ModelError>,
) -> Result<usize, ModelError> {
    if let Some(pairs) = param.layout.pairs {
        let columns = if param.shape.len() > 1 { param.sides()[1] } else { 1 };
        let mut rest = into;
        let mut at = first;
        while !rest.is_empty() {
            let (row, inside) = (at / columns, at % columns);
            let count = rest.len().min(columns - inside);
            let (own, behind) = std::mem::take(&mut rest).split_at_mut(count);
            read(pairs.place(row) * columns + inside, own)?;
            (rest, at) = (behind, at + count);
        }
        return Ok(0);
    }
    // Vectors are matrices of one column, which are stored as their transposes.
    let (rows, columns, transposed) = match param.shape[..] {
        [_, rows, columns] => (rows, columns, param.layout.transposed),
        _ => (param.sides()[1], 1, true),
    };
    let (half, size) = (if param.layout.turns { rows / 2 } else { rows }, rows * columns);
    let mut rest = into;
    let (mut at, mut beside) = (first, 0);
    while !rest.is_empty() {
        // Consecutive rows of one half of one matrix, the first and the last possibly partial.
        let (matrix, inside) = (at / size, at % size);
        let row = inside / columns;
        let end = (row / half + 1) * half;
        // Without a transpose, one row at a time.
        let end = if transposed { end } else { row + 1 };
        let count = rest.len().min(end * columns - inside);
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(count);
        if transposed {
            beside += turned(param, [matrix, rows, columns], inside, own, &read)?;
        } else {
            let place = param.layout.place(row, rows);
            read((matrix * rows + place) * columns + inside % columns, own)?;
        }
        (rest, at) = (behind, at + count);
    }
    Ok(beside)
}

/// Consecutive values of one half of a matrix `[rows, columns]` that is stored as its transpose.
fn turned<V: Copy + Default>(
    param: &Param,
    [matrix, rows, columns]: [usize; 3],
    first: usize,
    into: &mut [V],
    read: impl Fn(usize, &mut [V]) -> Result<(), ModelError>,
) -> Result<usize, ModelError> {
    let own = first / columns..(first + into.len()).div_ceil(columns);
    let place = |row: usize| param.layout.place(row, rows);
    let low = place(own.start);
    let mut along = vec![V::default(); place(own.end - 1) + 1 - low];
    for column in 0..columns {
        read((matrix * columns + column) * rows + low, &mut along)?;
        for row in own.clone() {
            let to = (row * columns + column).checked_sub(first).and_then(|at| into.get_mut(at));
            if let Some(to) = to {
                *to = along[place(row) - low];
            }
        }
    }
    Ok(columns * along.len() - into.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{ExpandedBy, HeadPairs, MatrixLayout, ParamInit};
    use architectures::StorageFormat;

    fn param(shape: &[usize], layout: MatrixLayout) -> Param {
        Param {
            name: "w".to_owned(),
            shape: shape.to_vec(),
            cut: None,
            layout,
            draw: ParamInit::Normal(1.0),
            stored: StorageFormat::Wide,
            expanded: ExpandedBy::Nowhere,
            of_experts: false,
        }
    }

    #[test]
    fn pairs_of_a_head_are_separated() {
        for columns in [1, 3] {
            let pairs = Some(HeadPairs { head_dim: 4, first: 0, width: 4 });
            let shape = if columns == 1 { vec![8] } else { vec![8, columns] };
            let param = param(&shape, MatrixLayout { pairs, ..MatrixLayout::default() });
            let mut into = vec![usize::MAX; 6 * columns];
            let read = |at: usize, into: &mut [usize]| {
                into.iter_mut().enumerate().for_each(|(nth, into)| *into = at + nth);
                Ok(())
            };
            fill(&param, columns, &mut into, read).unwrap();
            let rows = [2, 1, 3, 4, 6, 5];
            let want: Vec<usize> =
                rows.iter().flat_map(|row| row * columns..(row + 1) * columns).collect();
            assert_eq!(into, want);
        }
    }

    #[test]
    fn ranges_of_reordered_values_are_found() {
        for (shape, turns, transposed) in [
            (&[3, 6, 5][..], true, true),
            (&[3, 6, 5], true, false),
            (&[3, 7, 5], false, true),
            (&[3, 6], true, false),
        ] {
            let param = param(shape, MatrixLayout { turns, transposed, ..MatrixLayout::default() });
            let [rows, columns] = [shape[1], shape.get(2).copied().unwrap_or(1)];
            // Each value is its index in the file.
            let want = |at: usize| {
                let (matrix, row, column) =
                    (at / (rows * columns), at / columns % rows, at % columns);
                let place = match turns {
                    true => row % (rows / 2) * 2 + row / (rows / 2),
                    false => row,
                };
                let inside = match transposed {
                    true => column * rows + place,
                    false => place * columns + column,
                };
                matrix * rows * columns + inside
            };
            let len: usize = shape.iter().product();
            for first in 0..len {
                for end in first..=len {
                    let mut into = vec![usize::MAX; end - first];
                    let read = |at: usize, into: &mut [usize]| {
                        into.iter_mut().enumerate().for_each(|(nth, into)| *into = at + nth);
                        Ok(())
                    };
                    let all = std::cell::Cell::new(0);
                    let counted = |at: usize, into: &mut [usize]| {
                        all.set(all.get() + into.len());
                        read(at, into)
                    };
                    let beside = fill(&param, first, &mut into, counted).unwrap();
                    assert_eq!(all.get(), end - first + beside);
                    let want: Vec<usize> = (first..end).map(want).collect();
                    assert_eq!(into, want, "{shape:?} {turns} {transposed} {first}..{end}");
                }
            }
        }
    }
}
