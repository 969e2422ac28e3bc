//! Tile table of `decode.cu`, and the selection from it.

use ops::ChoiceTable;
use ops::attention::AttentionProblem;

/// A row of the tile table. The fields from `block_rows` on are macros of `decode.cu`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    /// Maximum of max(D, Dv).
    channels: usize,
    /// Maximum number of rows (queries times query heads per key head) of a sequence.
    rows: usize,
    pub(super) block_rows: usize,
    pub(super) block_keys: usize,
    pub(super) warps: usize,
    pub(super) split_rows: usize,
    pub(super) stages: usize,
    pub(super) key_stages: usize,
    pub(super) value_splits: usize,
    /// Minimum number of resident blocks per SM, which limits the registers.
    pub(super) blocks: usize,
}

pub(super) const ANY: usize = usize::MAX;

/// A tile for up to 16 rows.
const fn few(channels: usize, [block_keys, warps, stages, blocks]: [usize; 4]) -> Tile {
    Tile { rows: 16, ..many(channels, [16, block_keys, warps, 1, stages, blocks]) }
}

/// A tile for any number of rows.
const fn many(
    channels: usize,
    [block_rows, block_keys, warps, split_rows, stages, blocks]: [usize; 6],
) -> Tile {
    Tile {
        channels,
        rows: ANY,
        block_rows,
        block_keys,
        warps,
        split_rows,
        stages,
        key_stages: stages,
        value_splits: 1,
        blocks,
    }
}

/// The first row that fits and whose shared memory the GPU has is used; measured in `README-decode.md` (few rows) and
/// `README-mma.md` (many). Among rows with the same channels, later ones need less shared memory.
const TILES: &[Tile] = &[
    few(32, [128, 8, 3, 2]),
    few(64, [64, 4, 2, 4]),
    few(96, [64, 4, 2, 3]),
    few(128, [64, 4, 2, 2]),
    few(192, [32, 4, 4, 2]),
    few(192, [32, 4, 2, 2]),
    few(256, [32, 4, 2, 2]),
    few(512, [32, 8, 2, 1]),
    few(512, [16, 4, 2, 1]),
    few(1024, [16, 8, 2, 1]),
    few(960, [16, 4, 1, 1]),
    many(128, [64, 64, 4, 1, 2, 2]),
    many(128, [32, 32, 4, 1, 2, 2]),
    many(256, [64, 32, 8, 1, 1, 1]),
    many(256, [32, 32, 4, 1, 1, 1]),
    many(320, [64, 64, 8, 1, 1, 1]),
    many(320, [64, 32, 8, 2, 1, 1]),
    many(320, [32, 32, 4, 2, 1, 1]),
    many(384, [64, 64, 16, 2, 1, 1]),
    many(384, [64, 32, 8, 2, 1, 1]),
    many(384, [32, 16, 4, 2, 1, 1]),
    many(512, [64, 32, 8, 1, 1, 1]),
    many(512, [64, 32, 8, 2, 1, 1]),
    many(512, [32, 16, 4, 2, 1, 1]),
    many(576, [64, 32, 16, 2, 1, 1]),
    many(576, [32, 16, 8, 2, 1, 1]),
    many(576, [32, 16, 4, 2, 1, 1]),
    many(640, [64, 32, 8, 2, 1, 1]),
    Tile { key_stages: 2, ..many(768, [32, 32, 16, 2, 1, 1]) },
    many(768, [32, 16, 8, 2, 1, 1]),
    many(896, [32, 32, 8, 1, 1, 1]),
    many(960, [32, 32, 8, 1, 1, 1]),
    many(1024, [32, 32, 16, 2, 1, 1]),
    many(1024, [32, 16, 8, 2, 1, 1]),
    many(960, [16, 16, 4, 1, 1, 1]),
    Tile { value_splits: 2, ..many(1024, [16, 16, 4, 1, 1, 1]) },
];

/// Tiles for latent caches (values stored in the keys, D 513 to 576), tried before [`TILES`].
const LATENT: &[Tile] =
    &[Tile { rows: 32, ..many(576, [32, 32, 8, 1, 4, 1]) }, many(576, [64, 32, 8, 2, 2, 1])];

/// Channels per head of keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// Whether the values are the first channels of the keys.
    pub(super) in_keys: bool,
}

impl Widths {
    pub(super) const fn apart((head_dim, value_dim): (usize, usize)) -> Self {
        Self { head_dim, value_dim, in_keys: false }
    }

    pub(super) fn of(problem: &AttentionProblem) -> Self {
        let AttentionProblem { head_dim, value_dim, values_in_keys: in_keys, .. } = *problem;
        Self { head_dim, value_dim, in_keys }
    }
}

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile, form: &str| {
        let most = |limit: usize| if limit == ANY { "any".to_owned() } else { limit.to_string() };
        vec![
            format!("{form}{}", most(tile.channels)),
            most(tile.rows),
            tile.block_rows.to_string(),
            tile.block_keys.to_string(),
            tile.warps.to_string(),
            tile.split_rows.to_string(),
            tile.stages.to_string(),
            tile.key_stages.to_string(),
            tile.value_splits.to_string(),
        ]
    };
    ChoiceTable {
        title: "tile of decode: the first row that fits and whose shared memory the GPU has",
        columns: &[
            "channels up to",
            "rows up to",
            "rows",
            "keys",
            "warps",
            "split rows",
            "stages",
            "key stages",
            "value splits",
        ],
        rows: LATENT
            .iter()
            .map(|tile| row(tile, "values in keys of 513 to "))
            .chain(TILES.iter().map(|tile| row(tile, "")))
            .collect(),
    }
}

/// Bytes of a row of `channels` in shared memory, padded so that a column's rows are in different banks.
pub(super) fn row_bytes(channels: usize) -> usize {
    let padded = channels.next_multiple_of(16);
    2 * padded + if padded.is_multiple_of(64) { 0 } else { 16 }
}

impl Tile {
    /// The same tile for values stored in the keys: twice the key stages, no value stages.
    fn in_keys(&self) -> Self {
        let stages = 2 * self.stages;
        Self { stages, key_stages: stages, ..*self }
    }

    /// `SHARED_BYTES` of `decode.cu`.
    pub(super) fn shared_bytes(&self, Widths { head_dim, value_dim, in_keys }: Widths) -> usize {
        let key_warps = self.warps / self.split_rows;
        let split_keys = key_warps.min(self.block_keys / 16);
        let split_depth = key_warps / split_keys;
        let scores = self.block_rows * (self.block_keys + 8);
        let keys = self.key_stages * row_bytes(head_dim);
        let values = if in_keys { 0 } else { row_bytes(value_dim / self.value_splits) };
        self.block_keys * (keys + self.stages * values)
            + self.block_rows * row_bytes(head_dim)
            + 4 * split_depth * scores
            + 2 * scores
            + 12 * self.block_rows
            + 4 * (self.key_stages + 1) * self.block_keys
    }

    /// Whether it supports these widths: value columns split among blocks must be whole vectors.
    fn takes(&self, Widths { head_dim, value_dim, .. }: Widths) -> bool {
        head_dim.max(value_dim) <= self.channels
            && (self.value_splits == 1 || value_dim.is_multiple_of(16 * self.value_splits))
    }
}

/// The tile for these widths and this number of rows on a GPU with `shared_bytes` of shared memory per block.
pub(super) fn choose(widths: Widths, rows: usize, shared_bytes: u32) -> Option<Tile> {
    let fits = |tile: &Tile| {
        tile.takes(widths)
            && rows <= tile.rows
            && tile.shared_bytes(widths) <= shared_bytes as usize
    };
    if !widths.in_keys {
        return TILES.iter().copied().find(fits);
    }
    let latent = LATENT.iter().filter(|_| widths.head_dim > 512).copied();
    latent.chain(TILES.iter().map(Tile::in_keys)).find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::cuda::BundledArch;

    #[test]
    fn every_width_has_a_tile_on_every_bundled_gpu() {
        let has = |widths: Widths| {
            for gpu in BundledArch::ALL {
                for rows in [1, 16, 17, 4096] {
                    let tile = choose(widths, rows, gpu.shared_bytes);
                    assert!(tile.is_some(), "{} {widths:?} rows {rows}", gpu.arch());
                }
            }
        };
        for dim in (16..=960).step_by(16) {
            has(Widths::apart((dim, dim)));
            has(Widths { in_keys: true, ..Widths::apart((dim, dim)) });
        }
        // Not with values stored in the keys: two key tiles of this width do not fit in 99 KB.
        has(Widths::apart((1024, 1024)));
    }

    #[test]
    fn shared_bytes_equal_those_of_the_kernel() {
        // `SHARED_BYTES` of decode.cu for the tiles of README-decode.md, as computed by its compiler.
        for (dims, expect) in [
            ((32, 32), 78_016),
            ((64, 64), 42_688),
            ((96, 96), 64_448),
            ((128, 128), 77_504),
            ((192, 192), 111_680),
            ((256, 256), 80_704),
            ((512, 512), 159_552),
            ((1024, 1024), 177_280),
        ] {
            let widths = Widths::apart(dims);
            let tile = choose(widths, 16, 227 << 10).unwrap();
            assert_eq!(tile.shared_bytes(widths), expect, "{dims:?}");
        }
        assert_eq!(row_bytes(60), 128);
        assert_eq!(row_bytes(72), 176);
    }
}
