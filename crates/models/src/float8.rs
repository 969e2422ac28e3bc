//! Scales of float8 weights.

use crate::params::Param;
use architectures::params::TensorSlice;
use architectures::{BLOCK, Fp8Scales};
use std::ops::Range;

/// The scales of a tensor `[.., rows, columns]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scales {
    layout: ScaleLayout,
    /// Rows of each matrix of the tensor, and columns.
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

/// The layout of scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleLayout {
    /// One for the tensor, or one for each matrix.
    Matrices,
    Rows,
    Blocks,
}

impl Scales {
    /// Scales of this shape for a weight of that shape; otherwise a description of the expected shape.
    pub(crate) fn new(weight: &[usize], shape: &[usize], values: Vec<f32>) -> Result<Self, String> {
        let (columns, rows, matrices) = match weight {
            [.., rows, columns] => {
                (*columns, *rows, weight[..weight.len() - 2].iter().product::<usize>())
            }
            _ => return Err("a weight of at least two dimensions".to_owned()),
        };
        let blocks = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let layout = if values.len() == 1 || values.len() == matrices {
            ScaleLayout::Matrices
        } else if values.len() == matrices * rows && (shape.len() == 1 || shape.ends_with(&[1])) {
            ScaleLayout::Rows
        } else if shape.ends_with(&blocks) && values.len() == matrices * blocks[0] * blocks[1] {
            ScaleLayout::Blocks
        } else {
            return Err(format!("[1], [{rows}, 1] or {blocks:?} for weights {weight:?}"));
        };
        if !values.iter().all(|scale| scale.is_finite()) {
            return Err("finite numbers".to_owned());
        }
        Ok(Self { layout, rows, columns, values })
    }

    /// Random scales of a parameter.
    pub(crate) fn drawn(of: &Param, scales: Fp8Scales, draw: impl FnMut(usize) -> f32) -> Self {
        let layout = match scales {
            Fp8Scales::Tensor => ScaleLayout::Matrices,
            Fp8Scales::Row => ScaleLayout::Rows,
            Fp8Scales::Block => ScaleLayout::Blocks,
        };
        let [rows, columns] = of.sides();
        let values = (0..scales.count(rows, columns)).map(draw).collect();
        Self { layout, rows, columns, values }
    }

    /// The values in file order.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Their shape in files, for a weight's shape.
    pub(crate) fn shape(&self, weight: &[usize]) -> Vec<usize> {
        match self.layout {
            ScaleLayout::Matrices => vec![self.values.len()],
            ScaleLayout::Rows => [&weight[..weight.len() - 1], &[1]].concat(),
            ScaleLayout::Blocks => {
                [self.rows, self.columns].map(|side| side.div_ceil(BLOCK)).to_vec()
            }
        }
    }

    /// Whether there is one scale per row.
    pub(crate) fn is_of_rows(&self) -> bool {
        self.layout != ScaleLayout::Blocks || self.columns <= BLOCK
    }

    /// The scale of a row, counted over all matrices, and a column.
    pub(crate) fn at(&self, row: usize, column: usize) -> f32 {
        let (matrix, inside) = (row / self.rows, row % self.rows);
        let place = match self.layout {
            ScaleLayout::Matrices if self.values.len() == 1 => 0,
            ScaleLayout::Matrices => matrix,
            ScaleLayout::Rows => row,
            ScaleLayout::Blocks => {
                let [down, across] = [self.rows, self.columns].map(|side| side.div_ceil(BLOCK));
                (matrix * down + inside / BLOCK) * across + column / BLOCK
            }
        };
        self.values[place]
    }

    /// Iterates over consecutive values starting at `first`: a scale and the range of values it applies to.
    pub(crate) fn each(
        &self,
        first: usize,
        len: usize,
        mut of: impl FnMut(f32, std::ops::Range<usize>),
    ) {
        let mut at = 0;
        while at < len {
            let (row, column) = ((first + at) / self.columns, (first + at) % self.columns);
            let whole = if self.is_of_rows() { self.columns } else { (column / BLOCK + 1) * BLOCK };
            let end = len.min(at + whole.min(self.columns) - column);
            of(self.at(row, column), at..end);
            at = end;
        }
    }
}

/// The scales of a rank's part of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct ScalesOf<'a> {
    pub(crate) all: &'a Scales,
    /// `None` for the whole tensor.
    pub(crate) cut: Option<&'a TensorSlice>,
}

impl ScalesOf<'_> {
    /// Whether there is one scale per row.
    pub(crate) fn is_of_rows(self) -> bool {
        self.all.is_of_rows()
    }

    /// The scales of some rows of the part, at one of its columns.
    pub(crate) fn at(self, rows: Range<usize>, column: usize) -> impl Iterator<Item = f32> {
        let runs = match self.cut {
            None => vec![rows],
            Some(cut) => cut.rows(rows).collect(),
        };
        let column = column + self.cut.map_or(0, |cut| cut.columns().0.start);
        runs.into_iter().flatten().map(move |row| self.all.at(row, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_match_their_weights() {
        let two_experts = [2, 130, 300];
        let row = |expert: usize, row: usize| expert * 130 + row;
        for (shape, wanted) in [
            (vec![1], [0, 0, 0, 0]),
            (vec![2, 1, 1], [0, 0, 1, 1]),
            (vec![2, 130, 1], [0, 129, 130, 259]),
            (vec![2, 2, 3], [0, 5, 6, 10]),
        ] {
            let count = shape.iter().product::<usize>();
            let values = (0..count).map(|at| at as f32).collect();
            let scales = Scales::new(&two_experts, &shape, values).unwrap();
            let places = [(row(0, 0), 127), (row(0, 129), 299), (row(1, 0), 5), (row(1, 129), 140)];
            let found = places.map(|(row, column)| scales.at(row, column) as usize);
            assert_eq!(found, wanted, "{shape:?}");
            // Runs have no gaps, and the first and last value of each have its scale.
            let mut next = 0;
            scales.each(777, 1000, |scale, run| {
                assert_eq!(run.start, next);
                for at in [777 + run.start, 777 + run.end - 1] {
                    assert_eq!(scale, scales.at(at / 300, at % 300), "{shape:?} {at}");
                }
                next = run.end;
            });
            assert_eq!(next, 1000);
        }
        for (shape, count) in [(vec![3], 3), (vec![130, 2], 260), (vec![2, 3, 2], 12)] {
            assert!(Scales::new(&two_experts, &shape, vec![1.0; count]).is_err(), "{shape:?}");
        }
        assert!(Scales::new(&[4, 4], &[1], vec![f32::NAN]).is_err());
    }
}
