use super::Param;

/// The layout of a parameter's matrices `[matrices, rows, columns]`, or vectors `[vectors, values]`, in a checkpoint
/// that does not store rows consecutively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatrixLayout {
    /// Rows, or values of a vector, of the first and the second half are interleaved.
    pub turns: bool,
    /// Each matrix is stored as its transpose.
    pub transposed: bool,
    /// Rows of heads that a rotation takes in pairs.
    pub pairs: Option<HeadPairs>,
}

/// Heads of which some rows, or values of a vector, are stored as pairs; their first members precede the second ones
/// here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPairs {
    /// Rows of a head.
    pub head_dim: usize,
    /// The first row of a head that is in a pair.
    pub first: usize,
    /// Rows in pairs.
    pub width: usize,
}

impl HeadPairs {
    /// Index in the file of a row.
    pub fn place(self, row: usize) -> usize {
        let start = row - row % self.head_dim + self.first;
        let Some(inside) = row.checked_sub(start).filter(|inside| *inside < self.width) else {
            return row;
        };
        match inside.checked_sub(self.width / 2) {
            None => start + 2 * inside,
            Some(of_second) => start + 2 * of_second + 1,
        }
    }
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
        let layout = MatrixLayout { turns: true, ..MatrixLayout::default() };
        let places: Vec<usize> = (0..6).map(|row| layout.place(row, 6)).collect();
        assert_eq!(places, [0, 2, 4, 1, 3, 5]);
        assert!((0..6).all(|row| MatrixLayout::default().place(row, 6) == row));
    }

    #[test]
    fn the_second_half_of_a_pair_follows_all_first_ones() {
        let pairs = HeadPairs { head_dim: 6, first: 0, width: 4 };
        let places: Vec<usize> = (0..12).map(|row| pairs.place(row)).collect();
        assert_eq!(places, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
        let pairs = HeadPairs { first: 1, ..pairs };
        let places: Vec<usize> = (0..7).map(|row| pairs.place(row)).collect();
        assert_eq!(places, [0, 1, 3, 2, 4, 5, 6]);
    }
}
