//! Which blocks of the key/value pools each sequence has. One table serves all attention layers.

use crate::ModelError;

/// Tokens of a block: few enough that a short sequence wastes little, many enough that a kernel walks long rows.
pub(crate) const BLOCK: usize = 64;

/// Block tables and lengths of the sequences of an engine.
#[derive(Debug)]
pub(crate) struct Pages {
    free: Vec<usize>,
    blocks: usize,
    sequences: Vec<Sequence>,
}

#[derive(Debug, Default, Clone)]
struct Sequence {
    blocks: Vec<usize>,
    tokens: usize,
}

impl Pages {
    /// Blocks for so many sequences of so many tokens each, shared out as they grow.
    pub(crate) fn new(sequences: usize, tokens: usize) -> Self {
        let blocks = Self::needed(sequences, tokens);
        Self {
            // The lowest block is taken first.
            free: (0..blocks).rev().collect(),
            blocks,
            sequences: vec![Sequence::default(); sequences],
        }
    }

    /// Blocks that so many sequences of so many tokens take.
    pub(crate) fn needed(sequences: usize, tokens: usize) -> usize {
        sequences.saturating_mul(tokens.div_ceil(BLOCK))
    }

    /// Blocks of the pools.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Sequences there is place for.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Tokens of a sequence so far.
    pub(crate) fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].tokens
    }

    /// Where a token of a sequence lies: a row of the pools.
    pub(crate) fn row(&self, sequence: usize, token: usize) -> usize {
        self.sequences[sequence].blocks[token / BLOCK] * BLOCK + token % BLOCK
    }

    /// Gives sequences place for more tokens: all of them, or none where the blocks do not suffice.
    ///
    /// # Errors
    /// [`ModelError::Call`] with what was asked and what is free.
    pub(crate) fn grow(&mut self, more: &[(usize, usize)]) -> Result<(), ModelError> {
        let missing = |(sequence, tokens): &(usize, usize)| {
            let held = &self.sequences[*sequence];
            (held.tokens + tokens).div_ceil(BLOCK).saturating_sub(held.blocks.len())
        };
        let wanted: usize = more.iter().map(missing).sum();
        if wanted > self.free.len() {
            return Err(ModelError::Call(format!(
                "the cache has {} of {} tokens free, this step wants {} more",
                self.free.len() * BLOCK,
                self.blocks * BLOCK,
                wanted * BLOCK
            )));
        }
        for (sequence, tokens) in more {
            let held = &mut self.sequences[*sequence];
            held.tokens += tokens;
            while held.blocks.len() * BLOCK < held.tokens {
                // There are enough, counted above.
                held.blocks.extend(self.free.pop());
            }
        }
        Ok(())
    }

    /// Forgets a sequence; its blocks are free again.
    pub(crate) fn release(&mut self, sequence: usize) {
        let held = std::mem::take(&mut self.sequences[sequence]);
        self.free.extend(held.blocks.into_iter().rev());
    }

    /// Blocks of a sequence so far.
    pub(crate) fn blocks_of(&self, sequence: usize) -> usize {
        self.sequences[sequence].blocks.len()
    }

    /// The block tables of some sequences, as wide as the longest and filled up with -1.
    pub(crate) fn table(&self, sequences: &[usize]) -> ([usize; 2], Vec<i32>) {
        let width = sequences.iter().map(|sequence| self.blocks_of(*sequence)).max().unwrap_or(0);
        ([sequences.len(), width], self.table_of_width(sequences, width))
    }

    /// The same of a given width.
    pub(crate) fn table_of_width(&self, sequences: &[usize], width: usize) -> Vec<i32> {
        let rows = || sequences.iter().map(|sequence| &self.sequences[*sequence].blocks);
        let entry = |row: &Vec<usize>, at: usize| row.get(at).map_or(-1, |block| *block as i32);
        rows().flat_map(|row| (0..width).map(move |at| entry(row, at))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_to_sequences_as_they_grow_and_come_back() {
        let mut pages = Pages::new(2, 2 * BLOCK);
        pages.grow(&[(0, 1), (1, BLOCK + 1)]).unwrap();
        assert_eq!(pages.table(&[1, 0]), ([2, 2], vec![1, 2, 0, -1]));
        assert_eq!((pages.len(1), pages.row(1, BLOCK), pages.row(0, 0)), (BLOCK + 1, 2 * BLOCK, 0));
        // One sequence may take what the others leave; what does not suffice changes nothing.
        let error = pages.grow(&[(0, BLOCK), (1, 2 * BLOCK)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the cache has 64 of 256 tokens free, this step wants 192 more"
        );
        assert_eq!((pages.len(0), pages.len(1)), (1, BLOCK + 1));
        pages.release(1);
        pages.grow(&[(0, 4 * BLOCK - 1)]).unwrap();
        assert_eq!(pages.table(&[0]), ([1, 4], vec![0, 1, 2, 3]));
        assert!(pages.grow(&[(1, 1)]).is_err());
    }
}
