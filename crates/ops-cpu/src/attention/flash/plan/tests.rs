use super::*;
use ops::attention::{KeyLayout, Mask};
use ops::{DType, Sequences};

fn problem(
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
) -> AttentionProblem {
    AttentionProblem {
        dtype: DType::F32,
        heads,
        kv_heads,
        head_dim: 128,
        value_dim: 128,
        values_in_keys: false,
        queries: Sequences::dense(batch, queries),
        keys: KeyLayout::contiguous(&Sequences::dense(batch, keys), None),
        mask: Mask { causal: true, ..Mask::default() },
        scale: 1.0,
        softcap: None,
    }
}

fn tiling(most_panels: usize) -> Tiling {
    Tiling { panel_rows: 32, most_panels, stream_rows: 8 }
}

/// Exactly one item covers each visible key of every (sequence, head, row), and partial rows never overlap.
fn check(problem: &AttentionProblem, most_panels: usize) {
    let plan = Plan::new(problem, tiling(most_panels));
    let mut written = vec![0; plan.partial_rows];
    for sequence in 0..problem.queries.count() {
        let queries = problem.queries.range(sequence).len();
        let keys = problem.keys.len(sequence);
        for kv_head in 0..problem.kv_heads {
            for row in 0..queries * problem.group() {
                let holds = |item: &&Item| {
                    item.sequence == sequence
                        && item.kv_heads.contains(&kv_head)
                        && item.rows.contains(&row)
                };
                let items: Vec<&Item> = plan.items.iter().filter(holds).collect();
                for key in problem.mask.visible(queries, keys, row / problem.group()) {
                    let count = items.iter().filter(|item| item.keys.contains(&key)).count();
                    assert_eq!(count, 1, "sequence {sequence} head {kv_head} row {row} key {key}");
                }
                let merges = plan.merges.iter().filter(|merge| {
                    (merge.sequence, merge.kv_head) == (sequence, kv_head)
                        && merge.rows.contains(&row)
                });
                let merges: Vec<&Merge> = merges.collect();
                if let [Item { partial: None, .. }] = items[..] {
                    assert!(merges.is_empty());
                    continue;
                }
                let [merge] = merges[..] else { panic!("{} merges", merges.len()) };
                assert_eq!(merge.splits, items.len());
                let mut from: Vec<usize> = items
                    .iter()
                    .map(|item| {
                        let head = kv_head - item.kv_heads.start;
                        item.partial.unwrap() + head * item.rows.len() + row - item.rows.start
                    })
                    .collect();
                from.sort_unstable();
                from.iter().for_each(|at| written[*at] += 1);
                let merged = (0..merge.splits)
                    .map(|split| merge.partial + split * merge.stride + row - merge.rows.start);
                assert_eq!(from, merged.collect::<Vec<_>>());
            }
        }
    }
    assert!(written.iter().all(|count| *count == 1));
    let work: Vec<usize> = plan
        .items
        .iter()
        .map(|item| item.kv_heads.len() * item.rows.len() * item.keys.len())
        .collect();
    assert!(work.is_sorted_by(|a, b| a >= b));
}

#[test]
fn items_cover_every_visible_pair_once() {
    for (batch, queries, keys, heads, kv_heads) in [
        (1, 1, 5000, 8, 8),
        (2, 1, 700, 12, 3),
        (1, 40, 2000, 4, 2),
        (3, 300, 300, 2, 1),
        (1, 50, 30, 4, 4),
        (0, 5, 5, 1, 1),
        (1, 0, 5, 1, 1),
        (1, 5, 0, 1, 1),
    ] {
        for most_panels in [1, 4] {
            check(&problem(batch, queries, keys, heads, kv_heads), most_panels);
        }
    }
}

#[test]
fn long_decodes_are_split_and_short_or_many_are_not() {
    let blocks = |problem: &AttentionProblem| Plan::new(problem, tiling(4)).items.len();
    assert!(blocks(&problem(1, 1, 32768, 8, 8)) >= 48);
    assert_eq!(blocks(&problem(1, 1, 128, 8, 8)), 1);
    assert_eq!(blocks(&problem(64, 1, 8192, 8, 8)), 64);
}
