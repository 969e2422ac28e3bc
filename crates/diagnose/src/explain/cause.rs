//! Causes of an error: one that the files show, or those that the text leaves possible.

/// One cause that fits the words of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The cause, in one sentence.
    pub cause: String,
    /// Commands that distinguish it from the other causes.
    pub check: Vec<String>,
    /// Commands that fix this cause alone.
    pub fix: Vec<String>,
    /// Whether the files here confirm it; `None` if they cannot decide.
    pub confirmed_here: Option<bool>,
    /// Whether it is that a package is too old or too new.
    pub(super) of_release: bool,
}

impl Cause {
    pub(super) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            check: Vec::new(),
            fix: Vec::new(),
            confirmed_here: None,
            of_release: false,
        }
    }

    /// A cause of the releases that are installed.
    pub(super) fn of_release(mut self) -> Self {
        self.of_release = true;
        self
    }

    pub(super) fn check<S: Into<String>>(mut self, lines: impl IntoIterator<Item = S>) -> Self {
        self.check.extend(lines.into_iter().map(Into::into));
        self
    }

    pub(super) fn fix<S: Into<String>>(mut self, lines: impl IntoIterator<Item = S>) -> Self {
        self.fix.extend(lines.into_iter().map(Into::into));
        self
    }
}

/// How sure an answer is of its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The files here confirm the cause.
    Confirmed,
    /// The message has one known cause, and no file confirms it.
    Likely,
    /// Several causes have this message, or the files here refute the known one.
    Possible,
}

impl Certainty {
    /// The certainty from the decision of the files and the causes that remain possible.
    pub(super) fn of(confirmed_here: Option<bool>, causes: &[Cause]) -> Self {
        match confirmed_here {
            Some(true) => Self::Confirmed,
            None if causes.is_empty() => Self::Likely,
            _ => Self::Possible,
        }
    }

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Likely => "likely",
            Self::Possible => "possible",
        }
    }
}
