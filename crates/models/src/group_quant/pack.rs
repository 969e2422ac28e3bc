//! Packs integers in compressed-tensors' format.

use super::Integers;
use safetensors::tensor::Dtype;

/// The tensors of such a weight: name suffix, type and shape. The integers are first.
pub(crate) fn packed(of: &Integers) -> Vec<(&'static str, Dtype, Vec<usize>)> {
    let (in_word, groups) = (32 / of.bits, of.groups());
    let (outer, rows) = of.shape[..of.shape.len() - 1].split_at(of.shape.len() - 2);
    let shape = |tail: &[usize]| [outer, tail].concat();
    let zeros = ("weight_zero_point", Dtype::I32, shape(&[rows[0].div_ceil(in_word), groups]));
    let packed = shape(&[rows[0], of.columns.div_ceil(in_word)]);
    let mut tensors = vec![
        ("weight_packed", Dtype::I32, packed),
        ("weight_scale", Dtype::BF16, shape(&[rows[0], groups])),
        ("weight_shape", Dtype::I64, vec![of.shape.len()]),
    ];
    if of.zeros {
        tensors.push(zeros);
    }
    tensors
}

/// A weight's shape, stored as a tensor.
pub(crate) fn shape_bytes(shape: &[usize]) -> Vec<u8> {
    shape.iter().flat_map(|side| (*side as i64).to_le_bytes()).collect()
}

/// Packs integers relative to the middle of their range `[rows, columns]`: whole words per row, low bits first.
pub(crate) fn pack_rows(numbers: &[i8], columns: usize, bits: usize) -> Vec<u8> {
    let (in_word, middle) = (32 / bits, 1i32 << (bits - 1));
    let word = |numbers: &[i8]| {
        let place =
            |(at, number): (usize, &i8)| ((i32::from(*number) + middle) as u32) << (at * bits);
        numbers.iter().enumerate().map(place).fold(0u32, |word, bits| word | bits).to_le_bytes()
    };
    let rows = numbers.chunks(columns.max(1));
    rows.flat_map(|row| row.chunks(in_word).flat_map(word)).collect()
}

/// Packs along the other dimension of each matrix of `rows` rows: words `[rows, columns]`.
pub(crate) fn pack_columns(numbers: &[i8], [rows, columns]: [usize; 2], bits: usize) -> Vec<u8> {
    let (in_word, middle) = (32 / bits, 1i32 << (bits - 1));
    let matrix = |matrix: &[i8]| {
        let mut words = vec![0u32; rows.div_ceil(in_word) * columns];
        for (row, numbers) in matrix.chunks(columns).enumerate() {
            for (column, number) in numbers.iter().enumerate() {
                let bits = ((i32::from(*number) + middle) as u32) << (row % in_word * bits);
                words[row / in_word * columns + column] |= bits;
            }
        }
        words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()
    };
    numbers.chunks((rows * columns).max(1)).flat_map(matrix).collect()
}
