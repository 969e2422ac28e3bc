use crate::spec::{setting, tensor};
use crate::{OpSpec, SettingKind};

pub(super) const POOLINGS: &[&str] = &["mean", "learned"];
pub(super) const GATES: &[&str] = &["given", "sigmoid", "softmax"];

/// Names, shapes and settings of the op.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "nsa",
    summary: "native sparse attention: compressed, selected and window branches, gated",
    inputs: &[
        tensor(
            "q",
            "[B, Tq, HQ, D]",
            true,
            "queries of the last Tq of the Tk positions; f32, bf16 or f16",
        ),
        tensor("k", "[B, Tk, Hkv, D]", true, "keys"),
        tensor("v", "[B, Tk, Hkv, Dv]", true, "values"),
        tensor("g_cmp", "[B, Tq, HQ]", false, "gate of the compressed branch; absent: no branch"),
        tensor("g_slc", "[B, Tq, HQ]", false, "gate of the selected branch; absent: no branch"),
        tensor("g_swa", "[B, Tq, HQ]", false, "gate of the window branch; absent: no branch"),
        tensor("cu_seqlens", "[N + 1]", false, "i32 offsets of packed queries (and keys)"),
        tensor("cu_seqlens_k", "[N + 1]", false, "i32 offsets of packed keys where they differ"),
        tensor(
            "block_indices",
            "[B, Tq, Hkv, n]",
            false,
            "i32 blocks to select, -1 for none; absent: the op selects",
        ),
        tensor(
            "k_cmp",
            "[B, Nc, Hkv, D]",
            false,
            "compressed keys of a cache; absent: pooled from k",
        ),
        tensor("v_cmp", "[B, Nc, Hkv, Dv]", false, "compressed values, with k_cmp"),
        tensor("cmp_k_weight", "[Hkv, l * D, D]", false, "learned pooling of keys"),
        tensor("cmp_v_weight", "[Hkv, l * Dv, Dv]", false, "learned pooling of values"),
        tensor("cmp_k_pos", "[Hkv, l, D]", false, "added to the keys of a block before pooling"),
        tensor("cmp_v_pos", "[Hkv, l, Dv]", false, "added to the values of a block before pooling"),
    ],
    outputs: &[
        tensor("o", "[B, Tq, HQ, Dv]", true, "attention, in the storage type of q"),
        tensor("indices", "[B, Tq, Hkv, n]", true, "i32 selected blocks, ascending, then -1"),
        tensor(
            "reads",
            "[B, Tq, Hkv, 3]",
            true,
            "i32 compressed, selected and window tokens that the query read",
        ),
    ],
    settings: &[
        setting("causal", SettingKind::Bool, "true", "only true: NSA is causal by definition"),
        setting("scale", SettingKind::Number, "D^-1/2", "factor of the scores"),
        setting("compress_block", SettingKind::Count, "32", "l, tokens of a compressed block"),
        setting(
            "compress_stride",
            SettingKind::Count,
            "16",
            "d, tokens from one compressed block to the next",
        ),
        setting("select_block", SettingKind::Count, "64", "l', tokens of a selectable block"),
        setting(
            "select_count",
            SettingKind::Count,
            "16, or n of block_indices",
            "n, blocks selected per query and key head, forced ones included",
        ),
        setting("initial_blocks", SettingKind::Count, "1", "first blocks that are always selected"),
        setting(
            "local_blocks",
            SettingKind::Count,
            "2",
            "blocks ending with the query's own that are always selected",
        ),
        setting("window", SettingKind::Count, "512", "w, last tokens of the window branch"),
        setting("pooling", SettingKind::Choice(POOLINGS), "mean", "how a block is compressed"),
        setting(
            "gate",
            SettingKind::Choice(GATES),
            "given",
            "gates are values, or logits of a sigmoid, or of a softmax over the branches given",
        ),
        setting(
            "overlap",
            SettingKind::Bool,
            "true",
            "importance by token overlap; false (fla's dialect) wants l = d = l', one block each",
        ),
    ],
};
