use super::Param;

/// How a checkpoint lays the matrices of a parameter `[matrices, rows, columns]`, or the vectors of one `[vectors, values]`, where their
/// rows do not lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lie {
    /// Rows, or values of a vector, of the first half of each and of the second half lie in turns.
    pub turns: bool,
    /// Each matrix lies as its transpose.
    pub transposed: bool,
}

impl Lie {
    /// Where a row of a matrix with so many lies among them.
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
        if self.lie.transposed && shape.len() > 2 {
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
        let lie = Lie { turns: true, transposed: false };
        let places: Vec<usize> = (0..6).map(|row| lie.place(row, 6)).collect();
        assert_eq!(places, [0, 2, 4, 1, 3, 5]);
        assert!((0..6).all(|row| Lie::default().place(row, 6) == row));
    }
}
