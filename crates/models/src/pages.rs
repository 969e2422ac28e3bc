//! Block tables of the paged KV cache. One table serves all attention layers.

use crate::ModelError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Tokens per block: small enough that a short sequence wastes little, large enough that a kernel reads long contiguous
/// rows.
pub(crate) const BLOCK: usize = 64;

/// How rows of a pool are assigned to sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// One row per slot.
    Slot,
    /// Rows of the sequence's blocks.
    Block,
}

/// Block tables and lengths of an engine's sequences, by slot. Blocks have reference counts, so that sequences can
/// share the blocks of a common prefix.
#[derive(Debug)]
pub struct Pages {
    /// Free blocks. The lowest is allocated first, so that a prefill gets consecutive blocks, which are copied
    /// together.
    free: BinaryHeap<Reverse<usize>>,
    /// Number of sequences that use each block.
    users: Vec<u32>,
    /// Number of those that are active requests rather than cached prefixes.
    busy: Vec<u32>,
    /// Blocks used by at least one active request.
    taken: usize,
    sequences: Vec<Sequence>,
}

#[derive(Debug, Default, Clone)]
struct Sequence {
    blocks: Vec<usize>,
    tokens: usize,
    /// Whether it is a cached prefix, which can be evicted.
    kept: bool,
}

impl Pages {
    /// Blocks for `sequences` sequences of `tokens` tokens each, allocated as they grow.
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

    /// Blocks of the pools, with the padding block.
    pub(crate) fn pooled(&self) -> usize {
        self.users.len() + 1
    }

    /// The padding block, which no sequence uses: padding rows of a captured step write their keys there.
    pub(crate) fn padding(&self) -> usize {
        self.users.len()
    }

    /// Number of usable blocks.
    pub fn blocks(&self) -> usize {
        self.users.len()
    }

    /// Unused blocks.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks used by at least one active request.
    pub fn taken_blocks(&self) -> usize {
        self.taken
    }

    /// Blocks needed for this many tokens.
    pub fn blocks_for(tokens: usize) -> usize {
        tokens.div_ceil(BLOCK)
    }

    /// Tokens per block.
    pub fn tokens_of_a_block() -> usize {
        BLOCK
    }

    /// Capacity in tokens.
    pub fn tokens(&self) -> usize {
        self.blocks() * BLOCK
    }

    /// Number of slots.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Length of a sequence in tokens.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].tokens
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, sequence: usize) -> bool {
        self.len(sequence) == 0
    }

    /// Number of additional blocks that a sequence needs to grow by this many tokens.
    pub fn blocks_needed(&self, sequence: usize, tokens: usize) -> usize {
        let held = &self.sequences[sequence];
        Self::blocks_for(held.tokens + tokens).saturating_sub(held.blocks.len())
    }

    /// The pool row of a sequence's token.
    pub(crate) fn row(&self, sequence: usize, token: usize) -> usize {
        self.sequences[sequence].blocks[token / BLOCK] * BLOCK + token % BLOCK
    }

    /// Allocates blocks for more tokens: for all sequences, or for none if there are too few blocks.
    ///
    /// # Errors
    /// [`ModelError::Call`] with the required and the free blocks.
    pub(crate) fn grow(&mut self, more: &[(usize, usize)]) -> Result<(), ModelError> {
        let wanted: usize =
            more.iter().map(|(sequence, tokens)| self.blocks_needed(*sequence, *tokens)).sum();
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
                // The count was checked above.
                let Some(Reverse(block)) = self.free.pop() else { break };
                (self.users[block], self.busy[block]) = (1, 1);
                self.taken += 1;
                held.blocks.push(block);
            }
        }
        Ok(())
    }

    /// Shares the first whole blocks of another sequence, up to `tokens` tokens, with an empty one; returns the number
    /// of shared tokens. Shared blocks are never written: a sequence grows after its last whole block.
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

    /// Marks a sequence as a cached prefix, which can be evicted.
    pub(crate) fn keep(&mut self, sequence: usize) {
        let held = &mut self.sequences[sequence];
        if !std::mem::replace(&mut held.kept, true) {
            for block in &held.blocks {
                self.busy[*block] -= 1;
                self.taken -= usize::from(self.busy[*block] == 0);
            }
        }
    }

    /// Copies a sequence's table to an empty one: whole blocks are shared. The partly filled block gets a new block;
    /// the returned pair is the source and target block to copy. With `keep` the copy is a cached prefix.
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

    /// Allocates new blocks for an empty sequence that will have this many tokens.
    ///
    /// # Errors
    /// [`ModelError`] when it is not empty, or there are too few blocks.
    pub(crate) fn allocate_for(
        &mut self,
        sequence: usize,
        tokens: usize,
    ) -> Result<(), ModelError> {
        if !self.is_empty(sequence) {
            return Err(ModelError::fault(format!("slot {sequence} is not empty")));
        }
        self.grow(&[(sequence, tokens)])
    }

    /// Drops a sequence and frees the blocks that no other sequence uses.
    pub(crate) fn release(&mut self, sequence: usize) {
        self.cut(sequence, 0);
        self.sequences[sequence].kept = false;
    }

    /// Truncates a sequence and frees the blocks that no other sequence uses.
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

    /// Blocks that only this sequence uses, which become free when it is dropped.
    pub(crate) fn own_blocks(&self, sequence: usize) -> usize {
        let blocks = &self.sequences[sequence].blocks;
        blocks.iter().filter(|block| self.users[**block] == 1).count()
    }

    /// Blocks of a sequence.
    pub(crate) fn blocks_of(&self, sequence: usize) -> usize {
        self.sequences[sequence].blocks.len()
    }

    /// A sequence's rows of a pool in order, as ranges of consecutive rows.
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

    /// Block tables of some sequences, padded with -1 to the longest.
    pub(crate) fn table(&self, sequences: &[usize]) -> ([usize; 2], Vec<i32>) {
        let width = sequences.iter().map(|sequence| self.blocks_of(*sequence)).max().unwrap_or(0);
        ([sequences.len(), width], self.table_of_width(sequences, width))
    }

    /// Block tables of some sequences, padded with -1 to a given width.
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
    fn blocks_are_allocated_and_released() {
        let mut pages = Pages::new(2, 2 * BLOCK);
        pages.grow(&[(0, 1), (1, BLOCK + 1)]).unwrap();
        assert_eq!(pages.table(&[1, 0]), ([2, 2], vec![1, 2, 0, -1]));
        assert_eq!((pages.len(1), pages.row(1, BLOCK), pages.row(0, 0)), (BLOCK + 1, 2 * BLOCK, 0));
        // One sequence may use all blocks; a request that does not fit changes nothing.
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
        // The padding block belongs to no sequence.
        assert_eq!((pages.free_blocks(), pages.padding(), pages.pooled()), (0, 4, 5));
    }

    #[test]
    fn shared_blocks_are_freed_by_the_last_user() {
        let mut pages = Pages::new(3, 2 * BLOCK);
        pages.grow(&[(0, 2 * BLOCK + 5)]).unwrap();
        assert_eq!(pages.share(0, 1, 2 * BLOCK + 3), 2 * BLOCK, "whole blocks alone");
        assert_eq!((pages.share(0, 1, BLOCK), pages.share(0, 0, BLOCK)), (0, 0));
        pages.grow(&[(1, 1)]).unwrap();
        assert_eq!(pages.table(&[0, 1]), ([2, 3], vec![0, 1, 2, 0, 1, 3]));
        assert_eq!(rows(&pages, By::Block, 1), [[0, 2], [3, 4]]);
        pages.release(0);
        assert_eq!((pages.free_blocks(), pages.row(1, 0)), (3, 0), "block 2 alone came back");
        // A cached prefix counts as free, except for blocks that a request shares.
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
