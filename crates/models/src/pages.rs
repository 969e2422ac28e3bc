//! Which blocks of the key/value pools each sequence has. One table serves all attention layers.

use crate::ModelError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Tokens of a block: few enough that a short sequence wastes little, many enough that a kernel walks long rows.
pub(crate) const BLOCK: usize = 64;

/// Which rows of a pool are a sequence's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The one of its slot.
    Slot,
    /// Those of its blocks.
    Block,
}

/// Block tables and lengths of the sequences of an engine, by slot. Blocks are counted by their users, so that sequences which
/// begin alike can share the blocks of what they have in common.
#[derive(Debug)]
pub struct Pages {
    /// The lowest is taken first: what grows by many has blocks side by side, which are copied together.
    free: BinaryHeap<Reverse<usize>>,
    /// Sequences that have each block.
    users: Vec<u32>,
    /// Those of them that somebody waits for.
    busy: Vec<u32>,
    /// Blocks that have such a one.
    taken: usize,
    sequences: Vec<Sequence>,
}

#[derive(Debug, Default, Clone)]
struct Sequence {
    blocks: Vec<usize>,
    tokens: usize,
    /// Whether it is there for those that may begin alike, and gives way to others.
    kept: bool,
}

impl Pages {
    /// Blocks for so many sequences of so many tokens each, given out as they grow.
    pub(crate) fn new(sequences: usize, tokens: usize) -> Self {
        let blocks = sequences.saturating_mul(tokens.div_ceil(BLOCK));
        Self {
            free: (0..blocks).map(Reverse).collect(),
            users: vec![0; blocks],
            busy: vec![0; blocks],
            taken: 0,
            sequences: vec![Sequence::default(); sequences],
        }
    }

    /// Blocks of the pools, with the one for padding.
    pub(crate) fn pooled(&self) -> usize {
        self.users.len() + 1
    }

    /// The block that no sequence ever has: rows of a step that only fill it up to a recorded size keep their keys there.
    pub(crate) fn padding(&self) -> usize {
        self.users.len()
    }

    /// Blocks that sequences can have.
    pub fn blocks(&self) -> usize {
        self.users.len()
    }

    /// Blocks that no sequence has.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks that some sequence has which does not give way to others.
    pub fn taken_blocks(&self) -> usize {
        self.taken
    }

    /// Blocks that so many tokens take.
    pub fn blocks_for(tokens: usize) -> usize {
        tokens.div_ceil(BLOCK)
    }

    /// Tokens of a block.
    pub fn tokens_of_a_block() -> usize {
        BLOCK
    }

    /// Tokens that all blocks hold.
    pub fn tokens(&self) -> usize {
        self.blocks() * BLOCK
    }

    /// Slots for sequences.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Tokens of a sequence so far.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].tokens
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, sequence: usize) -> bool {
        self.len(sequence) == 0
    }

    /// Blocks that a sequence lacks to grow by so many tokens.
    pub fn lacking(&self, sequence: usize, tokens: usize) -> usize {
        let held = &self.sequences[sequence];
        Self::blocks_for(held.tokens + tokens).saturating_sub(held.blocks.len())
    }

    /// Where a token of a sequence lies: a row of the pools.
    pub(crate) fn row(&self, sequence: usize, token: usize) -> usize {
        self.sequences[sequence].blocks[token / BLOCK] * BLOCK + token % BLOCK
    }

    /// Gives sequences room for more tokens: all of them, or none where the blocks do not suffice.
    ///
    /// # Errors
    /// [`ModelError::Call`] with what was asked and what is free.
    pub(crate) fn grow(&mut self, more: &[(usize, usize)]) -> Result<(), ModelError> {
        let wanted: usize =
            more.iter().map(|(sequence, tokens)| self.lacking(*sequence, *tokens)).sum();
        if wanted > self.free.len() {
            let what = format!(
                "the cache has {} of {} tokens free, this step wants {} more",
                self.free.len() * BLOCK,
                self.tokens(),
                wanted * BLOCK
            );
            return Err(ModelError::call(
                what,
                "open the model for more tokens, or shorten the prompt",
            ));
        }
        for (sequence, tokens) in more {
            let held = &mut self.sequences[*sequence];
            held.tokens += tokens;
            while held.blocks.len() * BLOCK < held.tokens {
                // There are enough, counted above.
                let Some(Reverse(block)) = self.free.pop() else { break };
                (self.users[block], self.busy[block]) = (1, 1);
                self.taken += 1;
                held.blocks.push(block);
            }
        }
        Ok(())
    }

    /// Lets an empty sequence begin with the first whole blocks of another one, up to so many tokens; gives how many tokens
    /// these are. Nobody writes to them again: a sequence grows behind its last whole block.
    pub fn share(&mut self, from: usize, to: usize, tokens: usize) -> usize {
        if from == to || !self.is_empty(to) {
            return 0;
        }
        let whole = tokens.min(self.len(from)) / BLOCK;
        let blocks = self.sequences[from].blocks[..whole].to_vec();
        for block in &blocks {
            self.users[*block] += 1;
            self.busy[*block] += 1;
            self.taken += usize::from(self.busy[*block] == 1);
        }
        self.sequences[to] = Sequence { blocks, tokens: whole * BLOCK, kept: false };
        whole * BLOCK
    }

    /// Counts a sequence among those that give way to others.
    pub(crate) fn keep(&mut self, sequence: usize) {
        let held = &mut self.sequences[sequence];
        if !std::mem::replace(&mut held.kept, true) {
            for block in &held.blocks {
                self.busy[*block] -= 1;
                self.taken -= usize::from(self.busy[*block] == 0);
            }
        }
    }

    /// Lets an empty sequence begin where another one ends: it has the same whole blocks. What the other one has of a block more
    /// goes to a block of its own, into which the first of the two that come back is to be copied. One that is to `keep` gives way
    /// to others.
    ///
    /// # Errors
    /// [`ModelError`] when it is not empty, or no block is free.
    pub(crate) fn fork(
        &mut self,
        from: usize,
        to: usize,
        keep: bool,
    ) -> Result<Option<[usize; 2]>, ModelError> {
        let tokens = self.len(from);
        let (whole, more) = (tokens / BLOCK, tokens % BLOCK);
        if from == to || !self.is_empty(to) || (more > 0 && self.free.is_empty()) {
            let what =
                format!("slot {to} cannot begin where slot {from} ends, after {tokens} tokens");
            return Err(ModelError::fault(what));
        }
        self.share(from, to, tokens);
        self.grow(&[(to, more)])?;
        if keep {
            self.keep(to);
        }
        let last = |slot: usize| self.sequences[slot].blocks[whole];
        Ok((more > 0).then(|| [last(from), last(to)]))
    }

    /// Gives an empty sequence blocks of its own for so many tokens, which it is to have.
    ///
    /// # Errors
    /// [`ModelError`] when it is not empty, or the blocks do not suffice.
    pub(crate) fn take_up(&mut self, sequence: usize, tokens: usize) -> Result<(), ModelError> {
        if !self.is_empty(sequence) {
            return Err(ModelError::fault(format!("slot {sequence} is not empty")));
        }
        self.grow(&[(sequence, tokens)])
    }

    /// Forgets a sequence; blocks that nobody else has are free again.
    pub(crate) fn release(&mut self, sequence: usize) {
        self.cut(sequence, 0);
        self.sequences[sequence].kept = false;
    }

    /// Forgets what a sequence has behind so many tokens; blocks that nobody else has are free again.
    pub(crate) fn cut(&mut self, sequence: usize, tokens: usize) {
        let held = &mut self.sequences[sequence];
        held.tokens = held.tokens.min(tokens);
        let over = held.blocks.split_off(held.blocks.len().min(Self::blocks_for(tokens)));
        for block in over {
            self.users[block] -= 1;
            if !held.kept {
                self.busy[block] -= 1;
                self.taken -= usize::from(self.busy[block] == 0);
            }
            if self.users[block] == 0 {
                self.free.push(Reverse(block));
            }
        }
    }

    /// Blocks that nobody has but this sequence: those that are free once it is forgotten.
    pub(crate) fn own_blocks(&self, sequence: usize) -> usize {
        let blocks = &self.sequences[sequence].blocks;
        blocks.iter().filter(|block| self.users[**block] == 1).count()
    }

    /// Blocks of a sequence so far.
    pub(crate) fn blocks_of(&self, sequence: usize) -> usize {
        self.sequences[sequence].blocks.len()
    }

    /// The rows of a pool that are a sequence's, in its order: each range has rows that lie side by side.
    pub(crate) fn rows_of(&self, by: By, sequence: usize) -> Vec<Range<usize>> {
        match by {
            By::Slot => std::iter::once(sequence..sequence + 1).collect(),
            By::Block => {
                let blocks = &self.sequences[sequence].blocks;
                let runs = blocks.chunk_by(|one, next| one + 1 == *next);
                runs.map(|run| run[0]..run[0] + run.len()).collect()
            }
        }
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

    fn rows<const N: usize>(pages: &Pages, by: By, sequence: usize) -> [[usize; 2]; N] {
        let rows = pages.rows_of(by, sequence).into_iter().map(|rows| [rows.start, rows.end]);
        rows.collect::<Vec<_>>().try_into().unwrap()
    }

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
        pages.cut(1, BLOCK + 1);
        pages.cut(1, BLOCK);
        assert_eq!((pages.len(1), pages.blocks_of(1), pages.free_blocks()), (BLOCK, 1, 2));
        pages.release(1);
        pages.grow(&[(0, 4 * BLOCK - 1)]).unwrap();
        assert_eq!(pages.table(&[0]), ([1, 4], vec![0, 1, 2, 3]));
        assert!(pages.grow(&[(1, 1)]).is_err());
        assert_eq!((rows(&pages, By::Slot, 1), rows(&pages, By::Block, 0)), ([[1, 2]], [[0, 4]]));
        assert!(pages.rows_of(By::Block, 1).is_empty());
        // The block for padding is nobody's.
        assert_eq!((pages.free_blocks(), pages.padding(), pages.pooled()), (0, 4, 5));
    }

    #[test]
    fn shared_blocks_are_free_once_the_last_user_is_gone() {
        let mut pages = Pages::new(3, 2 * BLOCK);
        pages.grow(&[(0, 2 * BLOCK + 5)]).unwrap();
        assert_eq!(pages.share(0, 1, 2 * BLOCK + 3), 2 * BLOCK, "whole blocks alone");
        assert_eq!((pages.share(0, 1, BLOCK), pages.share(0, 0, BLOCK)), (0, 0));
        pages.grow(&[(1, 1)]).unwrap();
        assert_eq!(pages.table(&[0, 1]), ([2, 3], vec![0, 1, 2, 0, 1, 3]));
        assert_eq!(rows(&pages, By::Block, 1), [[0, 2], [3, 4]]);
        pages.release(0);
        assert_eq!((pages.free_blocks(), pages.row(1, 0)), (3, 0), "block 2 alone came back");
        // What is kept gives way, but for what somebody else has.
        pages.share(1, 2, 2 * BLOCK);
        pages.keep(2);
        pages.keep(2);
        assert_eq!((pages.taken_blocks(), pages.own_blocks(1), pages.own_blocks(2)), (3, 1, 0));
        pages.release(1);
        assert_eq!((pages.taken_blocks(), pages.free_blocks(), pages.own_blocks(2)), (0, 4, 2));
        pages.share(2, 1, BLOCK);
        assert_eq!(pages.taken_blocks(), 1);
        pages.release(2);
        assert_eq!((pages.taken_blocks(), pages.free_blocks()), (1, 5));
        pages.release(1);
        assert_eq!(pages.free_blocks(), pages.blocks());
    }
}
