use super::Guide;
use crate::choice::{MOST_STOPS, mask_words};
use crate::pages::BLOCK;
use crate::{Choice, ModelError, Sampling, Saved, TokenLogprobs};

/// One sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Tokens to begin with, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to add.
    pub limit: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end it; the one that does is not given out.
    pub stop_ids: Vec<u32>,
    /// Whether its sequence stays in its slot when it ends or is cancelled, until the slot or its pages are wanted: a request that
    /// begins with the same tokens goes on there, and reads only the rest. The device then chooses one token at a time, because it
    /// must not read beyond the end.
    pub keep: bool,
    /// Tokens of the prompt that other requests begin with too, 0 where nothing is known of them: where there is a prefix cache, their
    /// state is kept for these.
    pub shared: usize,
    /// Whether another request is likely to go on where this one ends, as the next turn of a conversation does: where there is a prefix
    /// cache, its state stays for that.
    pub turn: bool,
    /// Whether it reads its whole prompt, whatever others have left, and leaves nothing itself.
    pub anew: bool,
    /// Which of its tokens come with the logits that they are chosen from.
    pub logits: LogitsOf,
}

/// Tokens of a request that come with the logits they are chosen from, each of which the device chooses alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogitsOf {
    /// None.
    #[default]
    None,
    /// The first.
    First,
    /// The first two, and the last that it may have.
    Ends,
    /// Every one.
    All,
}

impl Request {
    /// Whether it can be run by some engine: asked before anything is loaded for it.
    ///
    /// # Errors
    /// [`ModelError::Call`] when the prompt is empty, or the settings mean nothing.
    pub fn check(&self) -> Result<(), ModelError> {
        if self.prompt.is_empty() {
            let hint = "give some text with -p, or token ids with --ids";
            return Err(ModelError::call("the prompt has no tokens", hint));
        }
        self.sampling.check()
    }
}

/// Log-probabilities of the tokens of a prompt, from the second one on.
pub(super) struct Scores {
    /// How many of the likeliest come with each.
    pub(super) likeliest: usize,
    pub(super) known: Vec<TokenLogprobs>,
}

/// A request of a scheduler, by the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A token of `stop_ids` was chosen, or nothing may follow the last one.
    StopId,
    /// It has as many tokens as were asked for.
    Limit,
    /// No token can be chosen: the model's logits are not numbers, or no token may come next.
    NoToken,
    /// The listener of [`crate::generate`] wanted no more.
    Listener,
}

/// A request that has not ended.
pub(super) struct Live {
    pub(super) id: RequestId,
    request: Request,
    guide: Option<Box<dyn Guide>>,
    /// The log-probabilities of its prompt, where they are wanted and not given yet.
    pub(super) scores: Option<Scores>,
    /// What may come next, where there is a guide.
    mask: Vec<u32>,
    /// What was added to the prompt.
    added: Vec<u32>,
    /// Tokens that the engine was advanced by, of the prompt and what was added.
    read: usize,
    /// Tokens that it did not read, because a kept sequence or a snapshot began with them.
    pub(super) reused: usize,
    /// What names the beginnings of its prompt that end with a block.
    pub(super) ends: Vec<u64>,
    /// Lengths at which its state is to be kept for others, the last one first.
    marks: Vec<usize>,
    /// Whether it has had no slot yet.
    new: bool,
    /// What the engine has read of it, where it waits and need not read that again.
    pub(super) saved: Option<Saved>,
    /// What names the snapshot that it began with.
    pub(super) behind: Option<u64>,
    /// Whether its sequence is on its way from the host: it takes part in the next step.
    pub(super) arriving: bool,
    /// The engine's slot; where it has none yet this means nothing.
    pub(super) slot: usize,
}

impl Live {
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

    /// The same, kept to something.
    pub(super) fn guided(mut self, guide: Option<Box<dyn Guide>>) -> Self {
        self.guide = guide;
        self
    }

    /// Tokens of it that are known.
    pub(super) fn tokens(&self) -> usize {
        self.request.prompt.len() + self.added.len()
    }

    /// Tokens that are known and not read.
    pub(super) fn unread(&self) -> usize {
        self.tokens() - self.read
    }

    /// Whether its next step is one token: the one that was just chosen, or the only one that is left of its prompt.
    pub(super) fn decodes(&self) -> bool {
        self.unread() == 1 && !self.arriving
    }

    /// Whether its next step is many tokens of its prompt.
    pub(super) fn reads(&self) -> bool {
        self.unread() > 1 && !self.arriving && self.scores.is_none()
    }

    /// Whether its next step is tokens of its prompt of which the ones after them get log-probabilities.
    pub(super) fn is_scored(&self) -> bool {
        self.unread() > 1 && !self.arriving && self.scores.is_some()
    }

    /// Whether all that is wanted of it are the log-probabilities of its prompt.
    pub(super) fn has_no_answer(&self) -> bool {
        self.request.limit == 0
    }

    /// The tokens after the next `count` to read.
    pub(super) fn targets(&self, count: usize) -> impl Iterator<Item = u32> {
        self.all().skip(self.read + 1).take(count)
    }

    /// Tokens that the engine has read of it.
    pub(super) fn read(&self) -> usize {
        self.read
    }

    /// The next `count` tokens to read.
    pub(super) fn next(&self, count: usize) -> impl Iterator<Item = u32> {
        self.all().skip(self.read).take(count)
    }

    /// Tokens that may be read at once: up to where its state is to be kept.
    pub(super) fn readable(&self) -> usize {
        self.marks.last().map_or(self.unread(), |mark| mark - self.read)
    }

    /// What names the beginning that it has just read, where its state is to be kept.
    pub(super) fn at_mark(&mut self) -> Option<u64> {
        self.marks.pop_if(|mark| *mark == self.read)?;
        self.ends.get(self.read / BLOCK - 1).copied()
    }

    /// The tokens that it has read.
    pub(super) fn known(&self) -> impl Iterator<Item = u32> {
        self.all().take(self.read)
    }

    /// Whether it is still to read what another one begins with too, at least so many tokens: then its state is to be kept where
    /// the two part.
    pub(super) fn joins(&mut self, other: &Live, least: usize) -> bool {
        let same = self.ends.iter().zip(&other.ends).take_while(|(own, theirs)| own == theirs);
        let length = same.count() * BLOCK;
        let comes = length > self.read && length >= least;
        if comes && let Err(at) = self.marks.binary_search_by(|mark| length.cmp(mark)) {
            self.marks.insert(at, length);
        }
        comes
    }

    /// Whether it begins from nothing that others have left.
    pub(super) fn reads_anew(&self) -> bool {
        self.request.anew
    }

    /// Keeps no states for others.
    pub(super) fn leave_nothing(&mut self) {
        self.ends.clear();
        self.marks.clear();
    }

    /// Whether it has had no slot yet.
    pub(super) fn is_new(&self) -> bool {
        self.new
    }

    /// The prompt, and how many of its tokens other requests begin with.
    pub(super) fn prompt(&self) -> (&[u32], usize) {
        (&self.request.prompt, self.request.shared)
    }

    /// Counts tokens that the engine was advanced by.
    pub(super) fn advance(&mut self, count: usize) {
        self.read += count;
    }

    /// Gives its slot away. Without a copy on the host it goes back to the beginning, with what was added.
    pub(super) fn lose_slot(&mut self) {
        (self.new, self.arriving) = (false, false);
        if self.saved.is_none() {
            (self.read, self.reused) = (0, 0);
            self.scores.iter_mut().for_each(|scores| scores.known.clear());
            self.marks.clear();
        }
    }

    /// Whether a sequence of these tokens is where it may begin: something is left to read.
    pub(super) fn goes_on_from(&self, tokens: &[u32]) -> bool {
        tokens.len() < self.tokens() && self.all().zip(tokens).all(|(own, kept)| own == *kept)
    }

    /// Begins behind so many tokens, which the slot that it was given has read. Its state is to be kept at these lengths beyond.
    pub(super) fn begin_behind(&mut self, tokens: usize, mut marks: Vec<usize>) {
        marks.reverse();
        (self.read, self.reused, self.marks) = (tokens, tokens, marks);
    }

    /// What the engine has read of it, where that is to be kept. The device chooses one token at a time of such a request, so that
    /// it has read nothing behind the end.
    pub(super) fn to_keep(&self) -> Option<Vec<u32>> {
        let kept = self.request.keep && self.read > 0;
        kept.then(|| self.known().collect())
    }

    /// Whether others are likely to go on where it ends.
    pub(super) fn is_turn(&self) -> bool {
        self.request.turn && !self.request.anew
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.request.prompt.iter().chain(&self.added).copied()
    }

    /// Tokens that may be chosen for it before the first of them is given out.
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
            && self.request.stop_ids.len() <= MOST_STOPS;
        if several { (left - alone).max(1) } else { 1 }
    }

    /// Whether its next token is to come with its logits.
    fn wants_logits(&self) -> bool {
        let added = self.added.len();
        match self.request.logits {
            LogitsOf::None => false,
            LogitsOf::First => added == 0,
            LogitsOf::Ends => added < 2 || added + 1 == self.request.limit,
            LogitsOf::All => true,
        }
    }

    /// Whether its sequence stays in its slot when it ends.
    pub(super) fn keeps(&self) -> bool {
        self.request.keep
    }

    /// Asks its guide what may come next.
    pub(super) fn lay_mask(&mut self, vocabulary: usize) {
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

    /// Takes a token that was chosen for it; whether it is one of the sequence's, and why that ended.
    pub(super) fn take(&mut self, token: u32) -> (bool, Option<Ended>) {
        if self.request.stop_ids.contains(&token) {
            return (false, Some(Ended::StopId));
        }
        self.added.push(token);
        if self.guide.as_mut().is_some_and(|guide| guide.take(token)) {
            return (true, Some(Ended::StopId));
        }
        (true, (self.added.len() == self.request.limit).then_some(Ended::Limit))
    }
}
