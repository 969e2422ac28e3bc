//! The dimensions of shapes by name.

use facts::BenchRow;
use facts::CompactCollect;
use std::collections::BTreeSet;

/// Dimensions that mean the same in every op that does not override them in [`OPS`].
const COMMON: &[(&str, &str)] = &[
    ("B", "sequences"),
    ("T", "tokens of each sequence"),
    ("H", "heads"),
    ("D", "channels of a head"),
    ("G", "groups"),
    ("N", "sequences"),
    ("total", "tokens of all sequences"),
    ("block_size", "tokens of a page"),
];

const QUERIES_AND_KEYS: &[(&str, &str)] = &[
    ("Tq", "queries of each sequence"),
    ("Tk", "keys of each sequence"),
    ("H", "query heads"),
    ("HQ", "query heads"),
    ("Hkv", "key and value heads"),
    ("D", "channels of a query or key head"),
    ("Dv", "channels of a value head"),
];

const DELTA_RULE: &[(&str, &str)] = &[
    ("H", "key heads"),
    ("HV", "value heads"),
    ("K", "channels of a key head"),
    ("V", "channels of a value head"),
];

const OPS: &[(&str, &[(&str, &str)])] = &[
    ("attention", QUERIES_AND_KEYS),
    ("nsa", QUERIES_AND_KEYS),
    ("kda", DELTA_RULE),
    ("gated_delta", DELTA_RULE),
    ("ssd", &[("P", "channels of a head"), ("N", "state size")]),
    ("selective_scan", &[("E", "channels"), ("N", "state size")]),
    ("conv1d", &[("C", "channels"), ("W", "taps")]),
    ("rmsnorm", &[("D", "channels of a group")]),
    ("linear", &[("T", "rows"), ("K", "input channels"), ("N", "output channels")]),
    (
        "moe",
        &[
            ("T", "tokens"),
            ("H", "hidden size"),
            ("E", "experts"),
            ("I", "width of an expert"),
            ("K", "experts of a token"),
        ],
    ),
    ("sampling", &[("R", "rows"), ("V", "vocabulary")]),
];

/// The meaning of a dimension of an op's shape.
fn meaning(op: &str, letter: &str) -> Option<&'static str> {
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(known, _)| *known == letter).map(|(_, words)| *words)
    };
    let own = OPS.iter().find(|(known, _)| *known == op).and_then(|(_, table)| of(table));
    own.or_else(|| of(COMMON))
}

/// A line for each op of the rows: `attention: B sequences, Tq queries of each sequence`.
pub(crate) fn lines(rows: &[BenchRow]) -> Vec<String> {
    let mut ops: Vec<&str> = Vec::new();
    for row in rows {
        if !ops.contains(&row.op.as_str()) {
            ops.push(&row.op);
        }
    }
    let line = |op: &&str| {
        let of_op = rows.iter().filter(|row| row.op == **op);
        let letters: BTreeSet<&str> =
            of_op.flat_map(|row| row.shape.keys().map(String::as_str)).compact_set();
        let words = letters.iter().filter_map(|letter| Some((letter, meaning(op, letter)?)));
        let words: Vec<String> = words.map(|(letter, words)| format!("{letter} {words}")).collect();
        (!words.is_empty()).then(|| format!("{op}: {}", words.join(", ")))
    };
    ops.iter().filter_map(line).collect()
}
