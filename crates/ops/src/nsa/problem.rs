use super::NsaOptions;
use crate::settings::refused;
use crate::{DType, Dim, Inputs, OpError, Sequences, Tensor};

const OP: &str = "nsa";
/// Keeps products of sizes and positions from overflowing.
const LARGEST_COUNT: usize = 1 << 30;
/// Bounds the `indices` output, which is allocated before anything runs.
const LARGEST_SELECT_COUNT: usize = 1 << 16;

/// The branches of a call: those whose gates were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branches {
    /// `g_cmp` was given.
    pub compressed: bool,
    /// `g_slc` was given.
    pub selected: bool,
    /// `g_swa` was given.
    pub window: bool,
}

/// How `l` tokens become one compressed token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// A matrix over the concatenated tokens, after adding a position embedding if given.
    Learned,
}

/// Interpretation of the gate tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gate {
    /// The gates themselves.
    #[default]
    Given,
    /// Logits, with a sigmoid each.
    Sigmoid,
    /// Logits, with a softmax over the branches given.
    Softmax,
}

/// A checked NSA call: sizes, branches and settings.
#[derive(Debug, Clone, PartialEq)]
pub struct NsaProblem {
    /// Storage type of q, k, v and o.
    pub dtype: DType,
    /// Query rows of each sequence; query `i` of `Tq` has position `i + Tk - Tq`.
    pub queries: Sequences,
    /// Key rows of each sequence.
    pub keys: Sequences,
    /// Query heads HQ.
    pub heads: usize,
    /// Key heads Hkv; query heads `h * HQ / Hkv ..` share key head `h`.
    pub kv_heads: usize,
    /// Size D of queries and keys.
    pub head_dim: usize,
    /// Size Dv of values.
    pub value_dim: usize,
    /// Branches present.
    pub branches: Branches,
    /// `l`, tokens.
    pub compress_block: usize,
    /// `d`, tokens.
    pub compress_stride: usize,
    /// `l'`, tokens.
    pub select_block: usize,
    /// `n`, blocks.
    pub select_count: usize,
    /// First blocks always selected.
    pub initial_blocks: usize,
    /// Last blocks up to the query's own, always selected.
    pub local_blocks: usize,
    /// `w`, tokens.
    pub window: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// How blocks are compressed.
    pub pooling: Pooling,
    /// Interpretation of the gate tensors.
    pub gate: Gate,
    /// Whether importance is weighted by token overlap; if false, compressed and selectable blocks coincide.
    pub overlap: bool,
    /// The selection was given as `block_indices`.
    pub given_blocks: bool,
    /// Compressed tokens were given as `k_cmp` and `v_cmp`, a cache between decode steps: the wider of their types.
    pub given_compressed: Option<DType>,
    /// Tokens that the selected branch reads, over all queries and key heads.
    pub selected_tokens: u64,
}

impl NsaProblem {
    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Whether queries are scored against compressed keys: for their branch, or to select.
    pub fn scores_compressed(&self) -> bool {
        self.branches.compressed || self.selects()
    }

    /// Whether the op selects blocks itself.
    pub fn selects(&self) -> bool {
        self.branches.selected && !self.given_blocks
    }

    /// Compressed tokens of `tokens` tokens: one for each full block of `l` tokens, in strides of `d`.
    pub fn compressed_tokens(&self, tokens: usize) -> usize {
        match tokens.checked_sub(self.compress_block) {
            Some(rest) => rest / self.compress_stride + 1,
            None => 0,
        }
    }

    pub(super) fn parse(inputs: Inputs<'_>, options: &NsaOptions) -> Result<Self, OpError> {
        let dtype = inputs.storage("q")?;
        inputs.same_storage(&["k", "v"], dtype)?;
        let (queries, keys) = sequences(inputs)?;
        let [heads, head_dim] =
            inputs.token_dims("q", &queries, [Dim::free("HQ"), Dim::free("D")])?;
        let [kv_heads, _] =
            inputs.token_dims("k", &keys, [Dim::free("Hkv"), Dim::fixed("D", head_dim)])?;
        let [_, value_dim] =
            inputs.token_dims("v", &keys, [Dim::fixed("Hkv", kv_heads), Dim::free("Dv")])?;
        if head_dim == 0 {
            return Err(inputs.shape_error("q", "a head size D of 1 or more"));
        }
        if value_dim == 0 {
            return Err(inputs.shape_error("v", "a value size Dv of 1 or more"));
        }
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(inputs.shape_error(
                "q",
                &format!("a number of heads HQ divisible by the {kv_heads} of `k`"),
            ));
        }
        let gates = ["g_cmp", "g_slc", "g_swa"];
        let [compressed, selected, window] = gates.map(|gate| inputs.get(gate).is_some());
        let branches = Branches { compressed, selected, window };
        if !(compressed || selected || window) {
            return Err(OpError::MissingTensor {
                op: OP,
                tensor: "g_cmp, g_slc or g_swa",
                shape: "[B, Tq, HQ]",
            });
        }
        for gate in gates.into_iter().filter(|gate| inputs.get(gate).is_some()) {
            inputs.token_dims(gate, &queries, [Dim::fixed("HQ", heads)])?;
            f32_or(inputs, gate, dtype)?;
        }

        let count = |name: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                Err(wrong(name, value, format!("{least} to {most}")))
            }
        };
        let scale = options.scale.unwrap_or((head_dim as f64).powf(-0.5));
        let compress_block = count("compress_block", options.compress_block, 1, LARGEST_COUNT)?;
        let compress_stride = count("compress_stride", options.compress_stride, 1, LARGEST_COUNT)?;
        if compress_stride > compress_block {
            let wanted = format!("at most compress_block = {compress_block}, or tokens are lost");
            return Err(wrong("compress_stride", compress_stride, wanted));
        }
        let select_block = count("select_block", options.select_block, 1, LARGEST_COUNT)?;
        let initial_blocks = count("initial_blocks", options.initial_blocks, 0, LARGEST_COUNT)?;
        let local_blocks = count("local_blocks", options.local_blocks, 0, LARGEST_COUNT)?;
        let window = count("window", options.window, 1, LARGEST_COUNT)?;
        let given = given_count(inputs, &queries, &branches, kv_heads)?;
        let select_count = count(
            "select_count",
            options.select_count.or(given).unwrap_or(16),
            usize::from(given.is_none()),
            LARGEST_SELECT_COUNT,
        )?;
        if let Some(given) = given
            && given != select_count
        {
            let wanted = format!("the {given} of `block_indices`");
            return Err(wrong("select_count", select_count, wanted));
        }
        let forced = initial_blocks + local_blocks;
        if selected && given.is_none() && forced > select_count {
            let wanted = format!("initial_blocks + local_blocks = {forced} or more");
            return Err(wrong("select_count", select_count, wanted));
        }
        let NsaOptions { pooling, gate, overlap, .. } = *options;
        let aligned = compress_block == compress_stride && compress_block == select_block;
        if !overlap && !aligned {
            let wanted = format!(
                "true unless compress_block, compress_stride and select_block are equal, they are \
                 {compress_block}, {compress_stride} and {select_block}"
            );
            return Err(wrong("overlap", overlap, wanted));
        }
        let mut problem = Self {
            dtype,
            queries,
            keys,
            heads,
            kv_heads,
            head_dim,
            value_dim,
            branches,
            compress_block,
            compress_stride,
            select_block,
            select_count,
            initial_blocks,
            local_blocks,
            window,
            scale,
            pooling,
            gate,
            overlap,
            given_blocks: given.is_some(),
            given_compressed: inputs.get("k_cmp").map(Tensor::dtype),
            selected_tokens: 0,
        };
        problem.check_pooling(inputs)?;
        problem.check_compressed(inputs)?;
        problem.selected_tokens = problem.count_selected(inputs)?;
        Ok(problem)
    }

    fn check_pooling(&self, inputs: Inputs<'_>) -> Result<(), OpError> {
        let (l, heads) = (Dim::fixed("l", self.compress_block), Dim::fixed("Hkv", self.kv_heads));
        let sides = [
            ("cmp_k_weight", "cmp_k_pos", self.head_dim, "D", "l * D"),
            ("cmp_v_weight", "cmp_v_pos", self.value_dim, "Dv", "l * Dv"),
        ];
        for (weight, position, size, letter, rows) in sides {
            let given = [weight, position].into_iter().filter(|name| inputs.get(name).is_some());
            for name in given {
                if self.pooling == Pooling::Mean {
                    return Err(inputs.value_error(name, "needs `pooling=learned`"));
                }
                if self.given_compressed.is_some() {
                    return Err(inputs.value_error(name, "is not read where `k_cmp` is given"));
                }
                f32_or(inputs, name, self.dtype)?;
            }
            if inputs.get(position).is_some() {
                inputs.dims(position, [heads, l, Dim::fixed(letter, size)])?;
            }
            // Values are pooled for their branch only; keys also to select.
            let needed = self.pooling == Pooling::Learned
                && self.given_compressed.is_none()
                && if letter == "D" { self.scores_compressed() } else { self.branches.compressed };
            if inputs.get(weight).is_some() {
                let rows = Dim::fixed(rows, self.compress_block * size);
                inputs.dims(weight, [heads, rows, Dim::fixed(letter, size)])?;
            } else if needed {
                let shape = if letter == "D" { "[Hkv, l * D, D]" } else { "[Hkv, l * Dv, Dv]" };
                return Err(OpError::MissingTensor { op: OP, tensor: weight, shape });
            }
        }
        Ok(())
    }

    /// `k_cmp` and `v_cmp`: one row for each compressed token of the keys, so of dense sequences only.
    fn check_compressed(&mut self, inputs: Inputs<'_>) -> Result<(), OpError> {
        let sides = [("k_cmp", self.head_dim, "D"), ("v_cmp", self.value_dim, "Dv")];
        let given = sides.into_iter().filter(|(name, ..)| inputs.get(name).is_some());
        for (name, size, letter) in given {
            if self.given_compressed.is_none() {
                return Err(inputs.value_error(name, "needs `k_cmp` as well"));
            }
            let Some((batch, tokens)) = self.keys.batch_and_tokens() else {
                return Err(inputs.value_error(name, "needs dense sequences, not `cu_seqlens`"));
            };
            if !self.scores_compressed() {
                let what =
                    "needs a branch that reads compressed tokens: `g_cmp`, or `g_slc` that selects";
                return Err(inputs.value_error(name, what));
            }
            let count = Dim::fixed("Nc", self.compressed_tokens(tokens));
            let rest = [count, Dim::fixed("Hkv", self.kv_heads), Dim::fixed(letter, size)];
            inputs.dims(name, [Dim::fixed("B", batch), rest[0], rest[1], rest[2]])?;
            f32_or(inputs, name, self.dtype)?;
            if inputs.tensor(name).dtype() == DType::F32 {
                self.given_compressed = Some(DType::F32);
            }
        }
        if self.given_compressed.is_some()
            && self.branches.compressed
            && inputs.get("v_cmp").is_none()
        {
            return Err(OpError::MissingTensor {
                op: OP,
                tensor: "v_cmp",
                shape: "[B, Nc, Hkv, Dv]",
            });
        }
        Ok(())
    }

    /// Positions of the queries of each sequence, with the sequence's index; negative for queries before the first key.
    pub(super) fn positions(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.queries.iter().zip(self.keys.iter()).flat_map(|(queries, keys)| {
            let first = keys.len() as i64 - queries.len() as i64;
            queries.enumerate().map(move |(i, row)| (row, first + i as i64))
        })
    }

    fn count_selected(&self, inputs: Inputs<'_>) -> Result<u64, OpError> {
        let (block, n) = (self.select_block as i64, self.select_count as i64);
        if !self.branches.selected {
            return Ok(0);
        }
        if !self.given_blocks {
            let tokens = self.positions().map(|(_, t)| {
                // Only the query's own block may be read in part. If it is not forced it may also be left out; then this
                // is an upper bound.
                let all = t + 1;
                let blocks = (t.max(0) / block + 1).min(n);
                let own =
                    if self.local_blocks > 0 { all - t.max(0) / block * block } else { block };
                all.min((blocks - 1) * block + own).max(0) as u64
            });
            return Ok(tokens.sum::<u64>() * self.kv_heads as u64);
        }
        let name = "block_indices";
        let tensor = inputs.tensor(name);
        let Some(indices) = tensor.view::<i32>() else {
            return Err(inputs.dtype_error(name, "i32"));
        };
        if let Some((at, index)) = indices.iter().enumerate().find(|(_, index)| **index < -1) {
            let what = format!("is {index} at element {at}, wanted a block index, or -1 for none");
            return Err(inputs.value_error(name, what));
        }
        let per_query = self.kv_heads * self.select_count;
        let mut tokens = 0;
        let mut set = Vec::new();
        for (row, t) in self.positions() {
            for given in indices[row * per_query..][..per_query].chunks(self.select_count.max(1)) {
                set.clear();
                set.extend(
                    given.iter().map(|j| i64::from(*j)).filter(|j| *j >= 0 && j * block <= t),
                );
                set.sort_unstable();
                set.dedup();
                tokens += set.iter().map(|j| block.min(t + 1 - j * block) as u64).sum::<u64>();
            }
        }
        Ok(tokens)
    }
}

/// Query and key sequences: dense, packed alike, or packed with offsets each.
fn sequences(inputs: Inputs<'_>) -> Result<(Sequences, Sequences), OpError> {
    let queries = inputs.sequences("q", 4, "cu_seqlens")?;
    let packed = inputs.get("cu_seqlens").is_some();
    let key_offsets = match inputs.get("cu_seqlens_k").is_some() {
        true if !packed => {
            return Err(inputs.value_error("cu_seqlens_k", "needs `cu_seqlens` too"));
        }
        true => "cu_seqlens_k",
        false => "cu_seqlens",
    };
    let keys = inputs.sequences("k", 4, key_offsets)?;
    if keys.count() != queries.count() {
        return Err(match packed {
            true => inputs.value_error(
                key_offsets,
                format!(
                    "has {} sequences, wanted the {} of `cu_seqlens`",
                    keys.count(),
                    queries.count()
                ),
            ),
            false => inputs.shape_error("k", &format!("[B={}, Tk, Hkv, D]", queries.count())),
        });
    }
    Ok((queries, keys))
}

/// `n` of `block_indices`, if given.
fn given_count(
    inputs: Inputs<'_>,
    queries: &Sequences,
    branches: &Branches,
    kv_heads: usize,
) -> Result<Option<usize>, OpError> {
    let name = "block_indices";
    if inputs.get(name).is_none() {
        return Ok(None);
    }
    if !branches.selected {
        return Err(inputs.value_error(name, "needs `g_slc`, the gate of the branch that reads it"));
    }
    let [_, n] = inputs.token_dims(name, queries, [Dim::fixed("Hkv", kv_heads), Dim::free("n")])?;
    Ok(Some(n))
}

fn f32_or(inputs: Inputs<'_>, name: &str, dtype: DType) -> Result<(), OpError> {
    match inputs.tensor(name).dtype() {
        DType::F32 => Ok(()),
        other if other == dtype => Ok(()),
        _ if dtype == DType::F32 => Err(inputs.dtype_error(name, "f32")),
        _ => Err(inputs.dtype_error(name, &format!("f32, or {dtype} like `q`"))),
    }
}

fn wrong(name: &str, value: impl ToString, wanted: impl Into<String>) -> OpError {
    refused(OP, name, value, wanted)
}
