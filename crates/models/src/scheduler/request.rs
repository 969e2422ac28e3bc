use super::Guide;
use crate::choice::{MAX_STOPS, mask_words};
use crate::pages::BLOCK;
use crate::{Choice, ModelError, Sampling, SavedSequence, TokenLogprobs};

/// A sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Maximum number of generated tokens.
    pub limit: usize,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Stop tokens, which end the sequence and are not returned.
    pub stop_ids: Vec<u32>,
    /// Whether the sequence stays in its slot when it ends or is cancelled, until the slot or its blocks are needed: a
    /// request that starts with the same tokens continues there and prefills only the rest. The device then samples one
    /// token at a time, because it must not read beyond the end.
    pub keep: bool,
    /// Length of the prompt's prefix that other requests share, 0 if unknown: the prefix cache snapshots its state.
    pub shared: usize,
    /// Whether another request is likely to continue where this one ends, as the next turn of a conversation does: the
    /// prefix cache snapshots its final state.
    pub turn: bool,
    /// Whether it bypasses the prefix cache: it prefills its whole prompt and is not cached.
    pub bypass_cache: bool,
    /// Which tokens are returned with logits.
    pub logits: LogitsOf,
}

/// Tokens of a request that are returned with their logits. The device samples each of them in a separate step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogitsOf {
    /// None.
    #[default]
    None,
    /// The first.
    First,
    /// The first two, and the last one that the limit allows.
    Ends,
    /// Every one.
    All,
}

impl Request {
    /// Checks what does not depend on the engine, before anything is loaded.
    ///
    /// # Errors
    /// [`ModelError::Call`] when the prompt is empty or the sampling parameters are invalid.
    pub fn check(&self) -> Result<(), ModelError> {
        if self.prompt.is_empty() {
            let hint = "give some text with -p, or token ids with --ids";
            return Err(ModelError::call("the prompt has no tokens", hint));
        }
        self.sampling.check()
    }
}

/// Log-probabilities of a prompt's tokens, starting at the second.
pub(super) struct Scores {
    /// Number of most likely tokens returned with each.
    pub(super) likeliest: usize,
    pub(super) known: Vec<TokenLogprobs>,
}

/// A request of a scheduler, numbered in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A token of `stop_ids` was sampled, or the guide allows nothing more.
    StopId,
    /// It has the requested number of tokens.
    Limit,
    /// No token can be sampled: a logit is NaN, or the mask allows no token.
    NoToken,
    /// The caller ended it, for example after a stop string.
    Caller,
}

/// An active request.
pub(super) struct ActiveRequest {
    pub(super) id: RequestId,
    request: Request,
    guide: Option<Box<dyn Guide>>,
    /// Log-probabilities of its prompt, if requested and not returned yet.
    pub(super) scores: Option<Scores>,
    /// Allowed next tokens, if there is a guide.
    mask: Vec<u32>,
    /// Generated tokens.
    added: Vec<u32>,
    /// Tokens that the engine has read, of prompt and generated tokens.
    read: usize,
    /// Tokens that were not prefilled because a kept sequence or a snapshot has them.
    pub(super) reused: usize,
    /// Hashes of its prompt's prefixes that end at a block boundary.
    pub(super) ends: Vec<u64>,
    /// Lengths at which it is snapshotted, in descending order.
    marks: Vec<usize>,
    /// Whether it never had a slot.
    new: bool,
    /// Its copy on the host, while it waits.
    pub(super) saved: Option<SavedSequence>,
    /// Hash of the snapshot that it started from.
    pub(super) behind: Option<u64>,
    /// Whether it is being swapped in; it takes part in steps after that.
    pub(super) arriving: bool,
    /// Its slot; undefined while it waits.
    pub(super) slot: usize,
}

impl ActiveRequest {
    pub(super) fn new(id: RequestId, request: Request) -> Self {
        Self {
            id,
            request,
            guide: None,
            scores: None,
            mask: Vec::new(),
            added: Vec::new(),
            read: 0,
            reused: 0,
            ends: Vec::new(),
            marks: Vec::new(),
            new: true,
            saved: None,
            behind: None,
            arriving: false,
            slot: 0,
        }
    }

    /// Adds a guide.
    pub(super) fn guided(mut self, guide: Option<Box<dyn Guide>>) -> Self {
        self.guide = guide;
        self
    }

    /// Number of known tokens: prompt and generated.
    pub(super) fn tokens(&self) -> usize {
        self.request.prompt.len() + self.added.len()
    }

    /// Number of known tokens that the engine has not computed yet.
    pub(super) fn pending_tokens(&self) -> usize {
        self.tokens() - self.read
    }

    /// Whether its next step is one token: the token just sampled, or the last token of its prompt.
    pub(super) fn decodes(&self) -> bool {
        self.pending_tokens() == 1 && !self.arriving
    }

    /// Whether its next step is a chunk of its prompt.
    pub(super) fn prefills(&self) -> bool {
        self.pending_tokens() > 1 && !self.arriving && self.scores.is_none()
    }

    /// Whether its next step is a chunk of its prompt whose following tokens get log-probabilities.
    pub(super) fn is_scored(&self) -> bool {
        self.pending_tokens() > 1 && !self.arriving && self.scores.is_some()
    }

    /// Whether only the log-probabilities of its prompt are wanted.
    pub(super) fn has_no_answer(&self) -> bool {
        self.request.limit == 0
    }

    /// The tokens that follow each of the next `count` tokens to read.
    pub(super) fn targets(&self, count: usize) -> impl Iterator<Item = u32> {
        self.all().skip(self.read + 1).take(count)
    }

    /// Tokens that the engine has read.
    pub(super) fn read(&self) -> usize {
        self.read
    }

    /// The next `count` tokens to read.
    pub(super) fn next(&self, count: usize) -> impl Iterator<Item = u32> {
        self.all().skip(self.read).take(count)
    }

    /// Tokens that may be prefilled in one pass: up to the next snapshot.
    pub(super) fn readable(&self) -> usize {
        self.marks.last().map_or(self.pending_tokens(), |mark| mark - self.read)
    }

    /// The hash of the prefix that it has just prefilled, if it is to be snapshotted there.
    pub(super) fn hash_at_snapshot(&mut self) -> Option<u64> {
        self.marks.pop_if(|mark| *mark == self.read)?;
        self.ends.get(self.read / BLOCK - 1).copied()
    }

    /// The tokens that the engine has read.
    pub(super) fn known(&self) -> impl Iterator<Item = u32> {
        self.all().take(self.read)
    }

    /// Whether it has yet to prefill at least `least` tokens of a common prefix with another request; then a snapshot
    /// is scheduled at the end of that prefix.
    pub(super) fn joins(&mut self, other: &ActiveRequest, least: usize) -> bool {
        let same = self.ends.iter().zip(&other.ends).take_while(|(own, theirs)| own == theirs);
        let length = same.count() * BLOCK;
        let comes = length > self.read && length >= least;
        if comes && let Err(at) = self.marks.binary_search_by(|mark| length.cmp(mark)) {
            self.marks.insert(at, length);
        }
        comes
    }

    /// Whether it bypasses the prefix cache.
    pub(super) fn bypasses_cache(&self) -> bool {
        self.request.bypass_cache
    }

    /// Disables snapshots of this request.
    pub(super) fn disable_snapshots(&mut self) {
        self.ends.clear();
        self.marks.clear();
    }

    /// Whether it never had a slot.
    pub(super) fn is_new(&self) -> bool {
        self.new
    }

    /// The prompt, and the length of its shared prefix.
    pub(super) fn prompt(&self) -> (&[u32], usize) {
        (&self.request.prompt, self.request.shared)
    }

    /// Adds tokens that the engine has read.
    pub(super) fn advance(&mut self, count: usize) {
        self.read += count;
    }

    /// Releases its slot. Without a copy on the host all of its tokens are unread again.
    pub(super) fn release_slot(&mut self) {
        (self.new, self.arriving) = (false, false);
        if self.saved.is_none() {
            (self.read, self.reused) = (0, 0);
            self.scores.iter_mut().for_each(|scores| scores.known.clear());
            self.marks.clear();
        }
    }

    /// Whether it can continue from a sequence of these tokens: they are a proper prefix.
    pub(super) fn continues_from(&self, tokens: &[u32]) -> bool {
        tokens.len() < self.tokens() && self.all().zip(tokens).all(|(own, kept)| own == *kept)
    }

    /// Starts after `tokens` tokens, which its slot has already. It is snapshotted at the lengths `marks`.
    pub(super) fn start_after(&mut self, tokens: usize, mut marks: Vec<usize>) {
        marks.reverse();
        (self.read, self.reused, self.marks) = (tokens, tokens, marks);
    }

    /// The tokens that the engine has read, if the sequence is to be kept. The device samples one token at a time for
    /// such a request, so that it has read nothing beyond the end.
    pub(super) fn to_keep(&self) -> Option<Vec<u32>> {
        let kept = self.request.keep && self.read > 0;
        kept.then(|| self.known().collect())
    }

    /// Whether another request is likely to continue where it ends.
    pub(super) fn is_turn(&self) -> bool {
        self.request.turn && !self.request.bypass_cache
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.request.prompt.iter().chain(&self.added).copied()
    }

    /// Maximum number of tokens that may be sampled before the first of them is delivered.
    pub(super) fn ahead(&self) -> usize {
        let left = self.request.limit - self.added.len();
        let alone = match self.request.logits {
            LogitsOf::None | LogitsOf::First => 0,
            LogitsOf::Ends => 1,
            LogitsOf::All => left,
        };
        let several = self.added.len() > 1
            && self.guide.is_none()
            && self.request.sampling.logit_bias.is_empty()
            && self.request.stop_ids.len() <= MAX_STOPS;
        if several { (left - alone).max(1) } else { 1 }
    }

    /// Whether its next token is returned with logits.
    fn wants_logits(&self) -> bool {
        let added = self.added.len();
        match self.request.logits {
            LogitsOf::None => false,
            LogitsOf::First => added == 0,
            LogitsOf::Ends => added < 2 || added + 1 == self.request.limit,
            LogitsOf::All => true,
        }
    }

    /// Whether its sequence is kept when it ends.
    pub(super) fn keeps_sequence(&self) -> bool {
        self.request.keep
    }

    /// Computes the mask of its guide.
    pub(super) fn compute_mask(&mut self, vocabulary: usize) {
        if let Some(guide) = &mut self.guide {
            self.mask.clear();
            self.mask.resize(mask_words(vocabulary), u32::MAX);
            guide.mask(&mut self.mask);
        }
    }

    /// How its next token is chosen.
    pub(super) fn choice(&self) -> Choice<'_> {
        Choice {
            sampling: &self.request.sampling,
            prompt: &self.request.prompt,
            added: &self.added,
            mask: self.guide.as_ref().map(|_| self.mask.as_slice()),
            stop_ids: &self.request.stop_ids,
            logits: self.wants_logits(),
        }
    }

    /// Adds a sampled token; returns whether it belongs to the sequence, and why the sequence ended.
    pub(super) fn take(&mut self, token: u32) -> (bool, Option<FinishReason>) {
        if self.request.stop_ids.contains(&token) {
            return (false, Some(FinishReason::StopId));
        }
        self.added.push(token);
        if self.guide.as_mut().is_some_and(|guide| guide.take(token)) {
            return (true, Some(FinishReason::StopId));
        }
        (true, (self.added.len() == self.request.limit).then_some(FinishReason::Limit))
    }
}
