//! Products of bfloat16 matrices by the AVX512-BF16 dot product: pairs along the depth, float32 sums.

use super::{Mat, MatMut, Store};
use device::Isa;
use half::bf16;

/// Columns of a packed panel: two AVX-512 vectors of f32 sums.
const PANEL_COLUMNS: usize = 32;

/// B in panels of 32 columns, two rows of B to a 32-bit word: `[panel][ceil(depth / 2)][32]`, padded with zeros.
#[derive(Debug, Default)]
pub struct PackedBf16 {
    data: Vec<u32>,
    depth: usize,
    columns: usize,
}

impl PackedBf16 {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows of B.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of B.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Words of all panels.
    pub fn words(&self) -> &[u32] {
        &self.data
    }

    /// Packs `b`; its buffer is kept between calls.
    pub fn pack(&mut self, b: Mat<'_, bf16>) {
        b.check();
        (self.depth, self.columns) = (b.rows, b.columns);
        let pairs = b.rows.div_ceil(2);
        let panels = b.columns.div_ceil(PANEL_COLUMNS);
        self.data.resize(panels * pairs * PANEL_COLUMNS, 0);
        let at = |row: usize, column: usize| -> u32 {
            if row < b.rows {
                b.data[row * b.row_stride + column * b.column_stride].to_bits().into()
            } else {
                0
            }
        };
        for panel in 0..panels {
            let first = panel * PANEL_COLUMNS;
            let columns = PANEL_COLUMNS.min(b.columns - first);
            let out =
                &mut self.data[panel * pairs * PANEL_COLUMNS..(panel + 1) * pairs * PANEL_COLUMNS];
            if b.row_stride == 1 && b.column_stride > 1 {
                // A transposed operand: each column's pairs are already neighbours in memory.
                out.fill(0);
                for column in 0..columns {
                    let start = (first + column) * b.column_stride;
                    let from = &b.data[start..start + b.rows];
                    for (pair, values) in from.chunks(2).enumerate() {
                        let high = values.get(1).map_or(0, |x| u32::from(x.to_bits()));
                        out[pair * PANEL_COLUMNS + column] =
                            u32::from(values[0].to_bits()) | high << 16;
                    }
                }
                continue;
            }
            for (pair, out) in out.chunks_exact_mut(PANEL_COLUMNS).enumerate() {
                if b.column_stride == 1 && columns == PANEL_COLUMNS && 2 * pair + 1 < b.rows {
                    // Two whole rows side by side: slices of known length become vector instructions.
                    let start = 2 * pair * b.row_stride + first;
                    let even = &b.data[start..start + PANEL_COLUMNS];
                    let odd = &b.data[start + b.row_stride..start + b.row_stride + PANEL_COLUMNS];
                    for ((out, even), odd) in out.iter_mut().zip(even).zip(odd) {
                        *out = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
                    }
                    continue;
                }
                for (column, out) in out[..columns].iter_mut().enumerate() {
                    *out = at(2 * pair, first + column) | at(2 * pair + 1, first + column) << 16;
                }
                out[columns..].fill(0);
            }
        }
    }
}

/// C = alpha A B, or C += alpha A B, on one thread, with A row-major (`column_stride` 1) and B packed before.
///
/// # Panics
/// When sizes disagree, A is not row-major, or this processor lacks AVX512-BF16.
pub fn gemm_bf16(alpha: f32, a: Mat<'_, bf16>, b: &PackedBf16, store: Store, c: MatMut<'_>) {
    a.check();
    assert_eq!((a.rows, a.columns, b.columns), (c.rows, b.depth, c.columns), "sizes of C = A B");
    assert!(a.column_stride == 1 || a.columns <= 1, "A must be row-major");
    assert!(Isa::Avx512Bf16.is_here(), "this processor has no bfloat16 dot product");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected above; sizes asserted above.
    unsafe {
        x86::product(alpha, a, b, store, c)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (alpha, store);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Mat, MatMut, PANEL_COLUMNS, PackedBf16, Store, bf16};
    use std::arch::x86_64::*;

    /// Rows of a register tile: 12 x 2 sums, 2 of B and 1 broadcast are 27 of 32 registers.
    const ROWS: usize = 12;

    /// # Safety
    /// The processor must have AVX512-BF16; sizes must agree.
    pub(super) unsafe fn product(
        alpha: f32,
        a: Mat<'_, bf16>,
        b: &PackedBf16,
        store: Store,
        c: MatMut<'_>,
    ) {
        // A short A takes a tile of its own height, as with float32; rows are summed in the same order in every tile.
        // SAFETY: the caller's contract.
        unsafe {
            match a.rows {
                0 | 1 => tiles::<1>(alpha, a, b, store, c),
                2..=4 => tiles::<4>(alpha, a, b, store, c),
                _ => tiles::<ROWS>(alpha, a, b, store, c),
            }
        }
    }

    /// # Safety
    /// As [`product`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn tiles<const ROWS: usize>(
        alpha: f32,
        a: Mat<'_, bf16>,
        b: &PackedBf16,
        store: Store,
        c: MatMut<'_>,
    ) {
        let pairs = a.columns.div_ceil(2);
        for (panel, column) in (0..c.columns).step_by(PANEL_COLUMNS).enumerate() {
            let columns = PANEL_COLUMNS.min(c.columns - column);
            let words = &b.data[panel * pairs * PANEL_COLUMNS..(panel + 1) * pairs * PANEL_COLUMNS];
            let masks = [mask(columns), mask(columns.saturating_sub(16))];
            for row in (0..a.rows).step_by(ROWS) {
                let rows = ROWS.min(a.rows - row);
                // SAFETY: the tile reads `rows` rows of A inside its slice and writes `rows` x `columns` of C.
                unsafe {
                    let start = a.data.as_ptr().add(row * a.row_stride);
                    let sums = tile::<ROWS>(start, a.row_stride, rows, a.columns, words.as_ptr());
                    let to = c.data.as_mut_ptr().add(row * c.row_stride + column);
                    for (i, sums) in sums.iter().enumerate().take(rows) {
                        for (j, sum) in sums.iter().enumerate() {
                            let to = to.add(i * c.row_stride).wrapping_add(16 * j);
                            let scale = _mm512_set1_ps(alpha);
                            let value = match store {
                                Store::Replace => _mm512_mul_ps(*sum, scale),
                                Store::Add => _mm512_fmadd_ps(
                                    *sum,
                                    scale,
                                    _mm512_maskz_loadu_ps(masks[j], to),
                                ),
                            };
                            _mm512_mask_storeu_ps(to, masks[j], value);
                        }
                    }
                }
            }
        }
    }

    fn mask(columns: usize) -> __mmask16 {
        if columns >= 16 { 0xffff } else { (1u16 << columns) - 1 }
    }

    /// # Safety
    /// `rows` rows of `depth` values must be readable, and the panel's words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn tile<const ROWS: usize>(
        a: *const bf16,
        stride: usize,
        rows: usize,
        depth: usize,
        words: *const u32,
    ) -> [[__m512; 2]; ROWS] {
        let a_rows: [*const bf16; ROWS] =
            std::array::from_fn(|i| a.wrapping_add(i.min(rows - 1) * stride));
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        // SAFETY: the caller's contract; the odd last value is read alone.
        unsafe {
            let dot = |sums: &mut [__m512; 2], pair: i32, b: &[__m512bh; 2]| {
                let a: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair));
                sums[0] = _mm512_dpbf16_ps(sums[0], a, b[0]);
                sums[1] = _mm512_dpbf16_ps(sums[1], a, b[1]);
            };
            let b_at = |pair: usize| -> [__m512bh; 2] {
                let word = words.add(pair * PANEL_COLUMNS);
                [
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(word.cast())),
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(
                        word.add(16).cast(),
                    )),
                ]
            };
            for pair in 0..depth / 2 {
                let b = b_at(pair);
                for (sums, a_row) in sums.iter_mut().zip(&a_rows) {
                    dot(sums, a_row.add(2 * pair).cast::<i32>().read_unaligned(), &b);
                }
            }
            if depth % 2 == 1 {
                let b = b_at(depth / 2);
                for (sums, a_row) in sums.iter_mut().zip(&a_rows) {
                    dot(sums, i32::from((*a_row.add(depth - 1)).to_bits()), &b);
                }
            }
        }
        sums
    }
}
