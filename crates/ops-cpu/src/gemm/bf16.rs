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
    /// An empty matrix.
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

    /// Packs `b` and reuses the buffer of earlier calls.
    pub fn pack(&mut self, b: Mat<'_, bf16>) {
        (self.depth, self.columns) = (b.rows, b.columns);
        self.data.resize(PanelsBf16::words(b.rows, b.columns), 0);
        PanelsBf16::pack(b, &mut self.data);
    }

    /// The packed panels.
    pub fn panels(&self) -> PanelsBf16<'_> {
        PanelsBf16::new(&self.data, self.depth, self.columns)
    }
}

/// Packed panels of B, in memory that the caller owns.
#[derive(Debug, Clone, Copy)]
pub struct PanelsBf16<'a> {
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "AVX512-BF16 alone multiplies pairs")
    )]
    words: &'a [u32],
    depth: usize,
    columns: usize,
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "AVX512-BF16 alone multiplies pairs")
    )]
    next: &'a [u32],
}

impl<'a> PanelsBf16<'a> {
    /// Words of a packed B, `[depth, columns]`.
    pub fn words(depth: usize, columns: usize) -> usize {
        columns.div_ceil(PANEL_COLUMNS) * depth.div_ceil(2) * PANEL_COLUMNS
    }

    /// The packed panels of B `[depth, columns]`.
    ///
    /// # Panics
    /// When there are not [`Self::words`] words.
    pub fn new(words: &'a [u32], depth: usize, columns: usize) -> Self {
        assert_eq!(words.len(), Self::words(depth, columns), "words of {columns} columns");
        Self { words, depth, columns, next: &[] }
    }

    /// The same panels, with the words of the next product, which are prefetched while the last panel is multiplied.
    #[must_use]
    pub fn before(self, next: &'a [u32]) -> Self {
        Self { next, ..self }
    }

    /// Packs `b` into `data`.
    ///
    /// # Panics
    /// When `data` does not have [`Self::words`] words.
    pub fn pack(b: Mat<'_, bf16>, data: &mut [u32]) {
        b.check();
        assert_eq!(data.len(), Self::words(b.rows, b.columns), "words of {} columns", b.columns);
        let pairs = b.rows.div_ceil(2);
        let panels = b.columns.div_ceil(PANEL_COLUMNS);
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
            let out = &mut data[panel * pairs * PANEL_COLUMNS..(panel + 1) * pairs * PANEL_COLUMNS];
            if b.row_stride == 1 && b.column_stride > 1 {
                // A transposed operand: each column's pairs are already neighbours in memory. A few rows at a time, so that
                // the destination lines stay in L1 until all columns have written to them.
                const BLOCK: usize = 32;
                if columns < PANEL_COLUMNS {
                    out.fill(0);
                }
                let blocks = out.chunks_mut(BLOCK / 2 * PANEL_COLUMNS);
                for (row, out) in (0..b.rows).step_by(BLOCK).zip(blocks) {
                    for column in 0..columns {
                        let start = (first + column) * b.column_stride;
                        let from = &b.data[start + row..start + b.rows.min(row + BLOCK)];
                        let rows = out.chunks_exact_mut(PANEL_COLUMNS);
                        for (values, out) in from.chunks(2).zip(rows) {
                            let high = values.get(1).map_or(0, |x| u32::from(x.to_bits()));
                            out[column] = u32::from(values[0].to_bits()) | high << 16;
                        }
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
    gemm_panels_bf16(alpha, a, b.panels(), store, c);
}

/// As [`gemm_bf16`], with B packed into memory of the caller.
///
/// # Panics
/// As [`gemm_bf16`].
pub fn gemm_panels_bf16(
    alpha: f32,
    a: Mat<'_, bf16>,
    b: PanelsBf16<'_>,
    store: Store,
    c: MatMut<'_>,
) {
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
    use super::{Mat, MatMut, PANEL_COLUMNS, PanelsBf16, Store, bf16};
    use std::arch::x86_64::*;

    /// Rows of a register tile: 12 x 2 sums, 2 of B and 1 broadcast are 27 of 32 registers.
    const ROWS: usize = 12;
    /// Words of a cache line.
    const LINE: usize = 16;
    /// Words of prefetch distance into L2 for products of one row: 16 KiB. The hardware prefetcher alone leaves a core waiting for
    /// memory, and L1 has 16 fill buffers, which at memory latency sustain only 7 or 8 GB/s. Products of 2560 by 8192 on 16 cores
    /// of a Xeon read 114 GB/s without prefetches, 129 and 141 with prefetches into L1 1 and 4 KiB ahead, and 138, 150, 150 and 157
    /// with prefetches into L2 2, 4, 8 and 16 KiB ahead; a plain sum reads 147.
    const DISTANCE: usize = 4096;

    /// # Safety
    /// The processor must have AVX512-BF16; sizes must agree.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn product(
        alpha: f32,
        a: Mat<'_, bf16>,
        b: PanelsBf16<'_>,
        store: Store,
        c: MatMut<'_>,
    ) {
        let of_panel = a.columns.div_ceil(2) * PANEL_COLUMNS;
        // Tiles of about equal height: a short tile takes nearly as long to read its panel as a full one.
        let tiles = a.rows.div_ceil(ROWS);
        for (panel, column) in (0..c.columns).step_by(PANEL_COLUMNS).enumerate() {
            let columns = PANEL_COLUMNS.min(c.columns - column);
            let (words, behind) = b.words[panel * of_panel..].split_at(of_panel);
            let next = if behind.is_empty() { b.next } else { behind };
            for tile in 0..tiles {
                let (row, end) = (tile * a.rows / tiles, (tile + 1) * a.rows / tiles);
                // Each of the last two tiles prefetches half of the next panel, one line per pair that it multiplies. A product
                // of one tile of several rows prefetches nothing: it is memory-bound, and sequential reads are fastest. A
                // product of one row prefetches both lines of a later pair per pair that it multiplies.
                let ahead = match (tile + 2).checked_sub(tiles) {
                    Some(half) if tiles > 1 && next.len() >= of_panel => {
                        PrefetchCursor { from: next[half * of_panel / 2..].as_ptr(), step: LINE }
                    }
                    _ if a.rows == 1 => PrefetchCursor {
                        from: words.as_ptr().wrapping_add(DISTANCE),
                        step: 2 * LINE,
                    },
                    _ => PrefetchCursor { from: words.as_ptr(), step: 0 },
                };
                // SAFETY: the tile reads its rows of A inside its slice and writes them x `columns` of C.
                unsafe {
                    let tile = Tile {
                        a: a.data.as_ptr().add(row * a.row_stride),
                        a_stride: a.row_stride,
                        depth: a.columns,
                        words: words.as_ptr(),
                        ahead,
                        to: c.data.as_mut_ptr().add(row * c.row_stride + column),
                        to_stride: c.row_stride,
                        masks: [mask(columns), mask(columns.saturating_sub(16))],
                        alpha,
                        store,
                    };
                    // Rows are summed in the same order in every tile.
                    match end - row {
                        1 => tile.run::<1>(),
                        2 => tile.run::<2>(),
                        3 => tile.run::<3>(),
                        4 => tile.run::<4>(),
                        5 => tile.run::<5>(),
                        6 => tile.run::<6>(),
                        7 => tile.run::<7>(),
                        8 => tile.run::<8>(),
                        9 => tile.run::<9>(),
                        10 => tile.run::<10>(),
                        11 => tile.run::<11>(),
                        _ => tile.run::<ROWS>(),
                    }
                }
            }
        }
    }

    /// One register tile: where it reads and writes.
    struct Tile {
        a: *const bf16,
        a_stride: usize,
        depth: usize,
        words: *const u32,
        ahead: PrefetchCursor,
        to: *mut f32,
        to_stride: usize,
        masks: [__mmask16; 2],
        alpha: f32,
        store: Store,
    }

    /// Addresses that a tile prefetches into L2: one line per pair, two for a tile of one row. With `step` 0 it prefetches the same
    /// line repeatedly, which costs nothing. The pointer is never dereferenced.
    #[derive(Clone, Copy)]
    struct PrefetchCursor {
        from: *const u32,
        step: usize,
    }

    impl Tile {
        /// # Safety
        /// The processor must have AVX512-BF16; `ROWS` rows of A of `depth` values must be readable, and the panel's words;
        /// the masked columns of as many rows of C writable.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn run<const ROWS: usize>(&self) {
            // SAFETY: the caller's contract.
            unsafe {
                let sums = tile::<ROWS>(self.a, self.a_stride, self.depth, self.words, self.ahead);
                for (i, sums) in sums.iter().enumerate() {
                    for (j, sum) in sums.iter().enumerate() {
                        let to = self.to.add(i * self.to_stride).wrapping_add(16 * j);
                        let scale = _mm512_set1_ps(self.alpha);
                        let value = match self.store {
                            Store::Replace => _mm512_mul_ps(*sum, scale),
                            Store::Add => _mm512_fmadd_ps(
                                *sum,
                                scale,
                                _mm512_maskz_loadu_ps(self.masks[j], to),
                            ),
                        };
                        _mm512_mask_storeu_ps(to, self.masks[j], value);
                    }
                }
            }
        }
    }

    fn mask(columns: usize) -> __mmask16 {
        if columns >= 16 { 0xffff } else { (1u16 << columns) - 1 }
    }

    /// # Safety
    /// `ROWS` rows of `depth` values must be readable, and the panel's words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn tile<const ROWS: usize>(
        a: *const bf16,
        stride: usize,
        depth: usize,
        words: *const u32,
        ahead: PrefetchCursor,
    ) -> [[__m512; 2]; ROWS] {
        let a_rows: [*const bf16; ROWS] = std::array::from_fn(|i| a.wrapping_add(i * stride));
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
                let later = ahead.from.wrapping_add(pair * ahead.step);
                _mm_prefetch::<_MM_HINT_T1>(later.cast());
                if ROWS == 1 {
                    _mm_prefetch::<_MM_HINT_T1>(later.wrapping_add(LINE).cast());
                }
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
