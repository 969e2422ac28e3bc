use super::{AttentionOptions, KeyLayout, Mask};
use crate::settings::refused;
use crate::spec::{setting, tensor};
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, Sequences, SettingKind};

const OP: &str = "attention";
const VALUE_SHAPE: &str = "[B, Tk, Hkv, Dv], [total, Hkv, Dv] or [blocks, block_size, Hkv, Dv]";

pub(super) static SPEC: OpSpec = OpSpec {
    name: OP,
    summary: "softmax(scale Q K^T + mask) V, with the log-sum-exp of each query",
    inputs: &[
        tensor("q", "[B, Tq, H, D] or [total, H, D]", true, "queries"),
        tensor(
            "k",
            "[B, Tk, Hkv, D], [total, Hkv, D] or [blocks, block_size, Hkv, D]",
            true,
            "keys; H is a multiple of Hkv",
        ),
        tensor(
            "v",
            VALUE_SHAPE,
            false,
            "values; Dv may differ from D. Absent with `value_width`: the keys hold them",
        ),
        tensor("cu_seqlens", "[sequences + 1]", false, "i32 offsets of packed queries (and keys)"),
        tensor(
            "cu_seqlens_k",
            "[sequences + 1]",
            false,
            "i32 offsets of packed keys, where they differ from the queries'",
        ),
        tensor(
            "block_table",
            "[B, max_blocks]",
            false,
            "i32 block numbers of paged keys and values; needs cache_seqlens",
        ),
        tensor("cache_seqlens", "[B]", false, "i32 number of keys in use of each sequence"),
    ],
    outputs: &[
        tensor(
            "o",
            "[B, Tq, H, Dv] or [total, H, Dv]",
            true,
            "storage type of q; 0 where no key is visible",
        ),
        tensor("lse", "[B, H, Tq] or [H, total]", true, "f32; -inf where no key is visible"),
    ],
    settings: &[
        setting(
            "causal",
            SettingKind::Bool,
            "false",
            "key j is visible to query i when j <= i + Tk - Tq (bottom-right aligned)",
        ),
        setting("scale", SettingKind::Number, "D^-1/2", "factor of q k^T"),
        setting(
            "window_left",
            SettingKind::Count,
            "unlimited",
            "keys visible before the query's own position i + Tk - Tq",
        ),
        setting("window_right", SettingKind::Count, "unlimited", "keys visible after it"),
        setting(
            "softcap",
            SettingKind::Number,
            "off",
            "logits become softcap * tanh(logit / softcap)",
        ),
        setting(
            "value_width",
            SettingKind::Count,
            "none",
            "Dv of values that are the first channels of the keys, up to D; instead of `v` (a latent cache)",
        ),
    ],
};

/// A call of attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionProblem {
    /// Storage type of q, k, v and o.
    pub dtype: DType,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads Hkv; query head h reads key head h / (H / Hkv).
    pub kv_heads: usize,
    /// D: channels of q and k.
    pub head_dim: usize,
    /// Dv: channels of v and o.
    pub value_dim: usize,
    /// Whether the values are the first Dv channels of the keys; there is no v then.
    pub values_in_keys: bool,
    /// Query rows of each sequence.
    pub queries: Sequences,
    /// Key rows of each sequence.
    pub keys: KeyLayout,
    /// The keys that a query sees.
    pub mask: Mask,
    /// Factor of q k^T.
    pub scale: f64,
    /// c in c tanh(logit / c), above 0.
    pub softcap: Option<f64>,
}

impl AttentionProblem {
    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The tensor whose rows hold the values.
    pub fn values(&self) -> &'static str {
        if self.values_in_keys { "k" } else { "v" }
    }

    /// Channels from one row of values to the next.
    pub fn value_stride(&self) -> usize {
        if self.values_in_keys { self.head_dim } else { self.value_dim }
    }

    /// Sequences with their numbers of queries and keys.
    pub fn lengths(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.queries.iter().enumerate().map(|(index, rows)| (rows.len(), self.keys.len(index)))
    }

    /// (query, key) pairs counted as work: all without a mask; half of them for a causal square, by the usual convention; for
    /// other masks exactly the visible ones.
    fn pairs(&self) -> f64 {
        let square_causal = self.mask.causal && self.mask.window_left.is_none();
        let pairs = |(queries, keys): (usize, usize)| {
            if square_causal && queries == keys {
                queries as f64 * keys as f64 / 2.0
            } else {
                self.mask.pairs(queries, keys)
            }
        };
        self.lengths().map(pairs).sum()
    }
}

impl Problem for AttentionProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let mut dims = vec![
            ("B", self.queries.count()),
            ("Tq", self.queries.longest()),
            ("Tk", self.keys.longest()),
            ("H", self.heads),
            ("Hkv", self.kv_heads),
            ("D", self.head_dim),
            ("Dv", self.value_dim),
        ];
        if self.queries.batch_and_tokens().is_none() {
            dims.push(("total", self.queries.total()));
        }
        if let Some(block_size) = self.keys.block_size() {
            dims.push(("block_size", block_size));
        }
        dims.into_iter().map(|(name, size)| (name, size as u64)).collect()
    }

    /// 2 (D + Dv) per (query, key) pair and head: 4 B H Tq Tk D where Dv = D, half of it for a causal square.
    fn flops(&self) -> f64 {
        2.0 * (self.head_dim + self.value_dim) as f64 * self.heads as f64 * self.pairs()
    }

    /// q once, each key and value row that some query sees once, o and lse once.
    fn bytes(&self) -> f64 {
        let storage = self.dtype.bytes();
        let query_heads = self.queries.total() * self.heads;
        let seen: usize = self
            .lengths()
            .map(|(queries, keys)| self.mask.visible_to_any(queries, keys, 0..queries).len())
            .sum();
        let row = (self.head_dim + self.value_dim) * storage;
        let cached = if self.values_in_keys { self.head_dim * storage } else { row };
        (query_heads * (row + DType::F32.bytes()) + seen * self.kv_heads * cached) as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let lse = match self.queries.batch_and_tokens() {
            Some((batch, tokens)) => vec![batch, self.heads, tokens],
            None => vec![self.heads, self.queries.total()],
        };
        vec![
            OutputSpec {
                name: "o",
                shape: self.queries.shape(&[self.heads, self.value_dim]),
                dtype: self.dtype,
            },
            OutputSpec { name: "lse", shape: lse, dtype: DType::F32 },
        ]
    }
}

pub(super) fn parse(
    inputs: Inputs<'_>,
    options: &AttentionOptions,
) -> Result<AttentionProblem, OpError> {
    let dtype = inputs.storage("q")?;
    inputs.same_storage(&["k", "v"], dtype)?;
    let queries = inputs.sequences("q", 4, "cu_seqlens")?;
    let [heads, head_dim] = inputs.token_dims("q", &queries, [Dim::free("H"), Dim::free("D")])?;
    let value_width = value_width(inputs, options, head_dim)?;
    let (keys, kv_heads, value_dim) = parse_keys(inputs, &queries, (head_dim, value_width))?;
    for (name, size, wanted) in [
        ("q", heads * head_dim, "at least one head and one channel"),
        ("k", kv_heads, "at least one head"),
        ("v", value_dim, "at least one channel"),
    ] {
        if size == 0 {
            return Err(inputs.shape_error(name, wanted));
        }
    }
    if heads % kv_heads != 0 {
        let wanted = format!("a number of heads that divides the {heads} heads of `q`");
        return Err(inputs.shape_error("k", &wanted));
    }
    if let Some(softcap) = options.softcap
        && softcap <= 0.0
    {
        let wanted = "a number above 0 (leave it out for no cap)";
        return Err(refused(OP, "softcap", softcap, wanted));
    }
    Ok(AttentionProblem {
        dtype,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        values_in_keys: value_width.is_some(),
        queries,
        keys,
        mask: options.mask,
        scale: options.scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5)),
        softcap: options.softcap,
    })
}

/// Dv if the values are the first channels of the keys; `None` if there is a tensor `v`.
fn value_width(
    inputs: Inputs<'_>,
    options: &AttentionOptions,
    head_dim: usize,
) -> Result<Option<usize>, OpError> {
    let Some(width) = options.value_width else {
        return match inputs.get("v") {
            Some(_) => Ok(None),
            None => Err(OpError::MissingTensor { op: OP, tensor: "v", shape: VALUE_SHAPE }),
        };
    };
    let wanted = match inputs.get("v") {
        Some(_) => "no tensor `v`: the values are channels of `k`".to_owned(),
        None if (1..=head_dim).contains(&width) => return Ok(Some(width)),
        None => format!("1 to D = {head_dim} channels of `k`"),
    };
    Err(refused(OP, "value_width", width, wanted))
}

/// The layout of the keys, Hkv and Dv.
fn parse_keys(
    inputs: Inputs<'_>,
    queries: &Sequences,
    (head_dim, value_width): (usize, Option<usize>),
) -> Result<(KeyLayout, usize, usize), OpError> {
    if inputs.get("block_table").is_some() {
        return parse_paged(inputs, queries, (head_dim, value_width));
    }
    let offsets = if inputs.get("cu_seqlens_k").is_some() { "cu_seqlens_k" } else { "cu_seqlens" };
    let rows = inputs.sequences("k", 4, offsets)?;
    if rows.count() != queries.count() {
        let wanted = format!("as many sequences as `q`: {}", queries.count());
        return Err(match inputs.get(offsets) {
            Some(_) => {
                let wanted = format!("{wanted}, so {} offsets", queries.count() + 1);
                inputs.shape_error(offsets, &wanted)
            }
            None => inputs.shape_error("k", &wanted),
        });
    }
    let [kv_heads, _] =
        inputs.token_dims("k", &rows, [Dim::free("Hkv"), Dim::fixed("D", head_dim)])?;
    let value_dim = match value_width {
        Some(width) => width,
        None => {
            let dims = [Dim::fixed("Hkv", kv_heads), Dim::free("Dv")];
            inputs.token_dims("v", &rows, dims)?[1]
        }
    };
    let lengths = match inputs.get("cache_seqlens") {
        None => None,
        Some(_) if rows.batch_and_tokens().is_none() => {
            let what = "does not go with packed keys, their offsets already give the lengths";
            return Err(inputs.value_error("cache_seqlens", what));
        }
        Some(_) => Some(parse_lengths(inputs, queries.count(), rows.longest(), "Tk")?),
    };
    Ok((KeyLayout::contiguous(&rows, lengths), kv_heads, value_dim))
}

fn parse_paged(
    inputs: Inputs<'_>,
    queries: &Sequences,
    (head_dim, value_width): (usize, Option<usize>),
) -> Result<(KeyLayout, usize, usize), OpError> {
    for (name, given) in [("cu_seqlens_k", true), ("cache_seqlens", false)] {
        if inputs.get(name).is_some() == given {
            let with = if given { "without" } else { "together with" };
            return Err(inputs.value_error("block_table", format!("is read {with} `{name}` only")));
        }
    }
    let [blocks, block_size, kv_heads, _] = inputs.dims(
        "k",
        [Dim::free("blocks"), Dim::free("block_size"), Dim::free("Hkv"), Dim::fixed("D", head_dim)],
    )?;
    let value_dim = match value_width {
        Some(width) => width,
        None => {
            let (blocks, size) =
                (Dim::fixed("blocks", blocks), Dim::fixed("block_size", block_size));
            let dims = [blocks, size, Dim::fixed("Hkv", kv_heads), Dim::free("Dv")];
            inputs.dims("v", dims)?[3]
        }
    };
    let [_, max_blocks] =
        inputs.dims("block_table", [Dim::fixed("B", queries.count()), Dim::free("max_blocks")])?;
    let Some(table) = inputs.tensor("block_table").view::<i32>() else {
        return Err(inputs.dtype_error("block_table", "i32"));
    };
    let limit = max_blocks * block_size;
    let lengths = parse_lengths(inputs, queries.count(), limit, "max_blocks * block_size")?;
    for (sequence, length) in lengths.iter().enumerate() {
        // Entries past the length are often -1; only those in use must name a block.
        let used = length.div_ceil(block_size.max(1));
        let entries = &table[sequence * max_blocks..][..used];
        if let Some(at) = entries.iter().position(|e| *e < 0 || *e as usize >= blocks) {
            let what = format!(
                "holds {} at [{sequence}, {at}], which cache_seqlens = {length} uses, but there are {blocks} blocks",
                entries[at]
            );
            return Err(inputs.value_error("block_table", what));
        }
    }
    let table = table.iter().map(|entry| usize::try_from(*entry).unwrap_or(usize::MAX)).collect();
    Ok((KeyLayout::paged(table, max_blocks, block_size, lengths), kv_heads, value_dim))
}

/// Lengths of caches, each at most `limit` keys.
fn parse_lengths(
    inputs: Inputs<'_>,
    sequences: usize,
    limit: usize,
    limit_name: &str,
) -> Result<Vec<usize>, OpError> {
    inputs.dims("cache_seqlens", [Dim::fixed("B", sequences)])?;
    let lengths = inputs.integers("cache_seqlens")?;
    match lengths.iter().position(|length| usize::try_from(*length).map_or(true, |l| l > limit)) {
        Some(at) => {
            let what = format!("holds {} at {at}, wanted 0 to {limit} ({limit_name})", lengths[at]);
            Err(inputs.value_error("cache_seqlens", what))
        }
        None => Ok(lengths.iter().map(|length| *length as usize).collect()),
    }
}
