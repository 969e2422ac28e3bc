use super::Param;

/// The layout of a parameter's matrices `[matrices, rows, columns]`, or vectors `[vectors, values]`, in a checkpoint
/// that does not store rows consecutively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatrixLayout {
    /// Rows, or values of a vector, of the first and the second half are interleaved.
    pub turns: bool,
    /// Each matrix is stored as its transpose.
    pub transposed: bool,
}

impl MatrixLayout {
    /// Index in the file of a row of a matrix with `rows` rows.
    pub fn place(self, row: usize, rows: usize) -> usize {
        match row.checked_sub(rows / 2) {
            _ if !self.turns => row,
            None => 2 * row,
            Some(of_second) => 2 * of_second + 1,
        }
    }
}

impl Param {
    /// Its shape in a checkpoint.
    pub fn laid_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.layout.transposed && shape.len() > 2 {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_lie_in_turns() {
        let layout = MatrixLayout { turns: true, transposed: false };
        let places: Vec<usize> = (0..6).map(|row| layout.place(row, 6)).collect();
        assert_eq!(places, [0, 2, 4, 1, 3, 5]);
        assert!((0..6).all(|row| MatrixLayout::default().place(row, 6) == row));
    }
}
