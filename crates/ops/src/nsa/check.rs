//! Checks the blocks that a kernel selected. Nearly equal scores may be ordered differently in float32 and float64, so a kernel may
//! swap them; all other rules are exact.

use super::NsaProblem;

/// Tolerance on the scores of swapped blocks, relative to the lowest selected score.
pub const SCORE_MARGIN: f64 = 1e-3;
/// Scores below this are zero in float32.
const SCORE_FLOOR: f64 = 1e-30;

/// Checks the blocks that a kernel selected for one query at `position` (negative: before the first key).
///
/// `scores` holds the importance of each block in float64, `chosen` the kernel's blocks, padded with -1 to
/// `select_count`. The blocks must ascend, start at or before the query, contain the forced ones, and number
/// `select_count` or all visible blocks. Among the others, the threshold is the score of the last block that fits: a
/// selected block may be below it, and an unselected one above it, by at most [`SCORE_MARGIN`] of it. If scores are
/// equal, the lower block must be selected.
///
/// # Errors
/// One sentence about the first violated rule.
pub fn check_selection(
    problem: &NsaProblem,
    position: i64,
    scores: &[f64],
    chosen: &[i32],
) -> Result<(), String> {
    let count = chosen.iter().take_while(|block| **block != -1).count();
    let (blocks, padding) = chosen.split_at(count);
    if padding.iter().any(|block| *block != -1) {
        return Err(format!("blocks follow the -1 that ends them: {chosen:?}"));
    }
    if !blocks.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(format!("blocks do not ascend: {chosen:?}"));
    }
    let visible = visible_blocks(problem, position);
    if let Some(block) =
        blocks.iter().find(|block| !(0..visible as i64).contains(&i64::from(**block)))
    {
        return Err(format!("block {block} is not one of the {visible} at or before the query"));
    }
    let wanted = problem.select_count.min(visible);
    if count != wanted {
        return Err(format!("{count} blocks were selected, wanted {wanted}"));
    }
    let mut selected = vec![false; visible];
    for block in blocks {
        selected[*block as usize] = true;
    }
    if let Some(block) =
        (0..visible).find(|block| is_forced(problem, visible, *block) && !selected[*block])
    {
        return Err(format!("block {block} must always be selected and was not"));
    }
    let free: Vec<usize> =
        (0..visible).filter(|block| !is_forced(problem, visible, *block)).collect();
    let places = free.iter().filter(|block| selected[**block]).count();
    if places == 0 || places == free.len() {
        return Ok(());
    }
    let mut descending: Vec<f64> = free.iter().map(|block| scores[*block]).collect();
    descending.sort_by(|a, b| b.total_cmp(a));
    let threshold = descending[places - 1];
    let margin = SCORE_MARGIN * threshold + SCORE_FLOOR;
    for block in &free {
        let score = scores[*block];
        if selected[*block] && score < threshold - margin {
            return Err(format!(
                "block {block} of importance {score:e} was selected, the threshold is {threshold:e}"
            ));
        }
        if !selected[*block] && score > threshold + margin {
            return Err(format!(
                "block {block} of importance {score:e} was not selected, the threshold is {threshold:e}"
            ));
        }
    }
    // Scores that are equal in float64 come from equal terms, so they are equal in float32 too.
    for (index, unselected) in free.iter().enumerate().filter(|(_, block)| !selected[**block]) {
        let later = free[index..].iter();
        if let Some(higher) =
            later.clone().find(|block| selected[**block] && scores[**block] == scores[*unselected])
        {
            return Err(format!(
                "blocks {unselected} and {higher} tie, and the higher one was selected"
            ));
        }
    }
    Ok(())
}

/// Blocks that start at or before the query.
pub(super) fn visible_blocks(problem: &NsaProblem, position: i64) -> usize {
    (0..).take_while(|block| block * problem.select_block as i64 <= position).count()
}

/// Whether a block is selected regardless of its importance: one of the initial or of the local blocks.
pub(super) fn is_forced(problem: &NsaProblem, visible: usize, block: usize) -> bool {
    block < problem.initial_blocks || block + problem.local_blocks >= visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Inputs, Options, Settings, Tensor, TensorMap, nsa::NsaOp};

    /// Six blocks of 4 tokens, four selected, the first and the last forced.
    fn problem() -> NsaProblem {
        let mut tensors = TensorMap::new();
        for name in ["q", "k", "v"] {
            tensors.insert(name.into(), Tensor::new(&[1, 24, 1, 1], vec![0f32; 24]));
        }
        tensors.insert("g_slc".into(), Tensor::new(&[1, 24, 1], vec![1f32; 24]));
        let settings =
            Settings::new().with("select_block", 4).with("select_count", 4).with("local_blocks", 1);
        NsaOp::parse(Inputs::of_map(NsaOp::SPEC, &tensors), &Options::read(&settings).unwrap())
            .unwrap()
    }

    #[track_caller]
    fn check(position: i64, scores: [f64; 6], chosen: [i32; 4], expect: &str) {
        let got = check_selection(&problem(), position, &scores, &chosen);
        assert_eq!(got.err().unwrap_or_default(), expect);
    }

    #[test]
    fn only_near_ties_may_be_swapped() {
        let scores = [0.0, 0.5, 0.2, 0.2001, 0.1, 0.0];
        check(23, scores, [0, 1, 3, 5], "");
        check(23, scores, [0, 1, 2, 5], "");
        check(
            23,
            scores,
            [0, 1, 4, 5],
            "block 4 of importance 1e-1 was selected, the threshold is 2.001e-1",
        );
        check(
            23,
            scores,
            [0, 2, 3, 5],
            "block 1 of importance 5e-1 was not selected, the threshold is 2.001e-1",
        );
    }

    #[test]
    fn exact_ties_take_the_lower_block() {
        let scores = [0.0, 0.5, 0.2, 0.1, 0.2, 0.0];
        check(23, scores, [0, 1, 2, 5], "");
        check(23, scores, [0, 1, 4, 5], "blocks 2 and 4 tie, and the higher one was selected");
        check(23, [0.0; 6], [0, 2, 3, 5], "blocks 1 and 2 tie, and the higher one was selected");
        // Scores below the float32 range count as zero.
        check(23, [0.0, 0.0, 1e-40, 0.5, 0.0, 0.0], [0, 1, 3, 5], "");
    }

    #[test]
    fn forced_count_order_and_range_have_no_tolerance() {
        let scores = [0.0, 0.5, 0.2, 0.1, 0.1, 0.0];
        check(23, scores, [1, 2, 3, 5], "block 0 must always be selected and was not");
        check(23, scores, [0, 1, 2, 3], "block 5 must always be selected and was not");
        check(23, scores, [0, 1, 5, -1], "3 blocks were selected, wanted 4");
        check(23, scores, [0, 1, 1, 5], "blocks do not ascend: [0, 1, 1, 5]");
        check(23, scores, [5, 1, 2, 0], "blocks do not ascend: [5, 1, 2, 0]");
        check(23, scores, [0, -1, 1, 5], "blocks follow the -1 that ends them: [0, -1, 1, 5]");
        check(19, scores, [0, 1, 2, 5], "block 5 is not one of the 5 at or before the query");
        check(
            19,
            scores,
            [i32::MIN, 0, 1, 4],
            "block -2147483648 is not one of the 5 at or before the query",
        );
        check(5, scores, [0, 1, -1, -1], "");
        check(-1, scores, [-1; 4], "");
    }
}
