//! The order of answers to a text.

/// How well an answer explains the root error of its text; the lowest level is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AnswerLevel {
    /// A rule whose cause the files here confirm.
    Confirmed,
    /// About what stopped the installation of packages, before the root error says that a module is missing.
    FailedInstall(AnswerKind),
    /// About the root error, its message or its exception chain.
    Root(AnswerKind),
    /// About another error of a text whose root error has no traceback.
    OtherError(AnswerKind),
    /// About a line that reports no error and no notice.
    Plain(AnswerKind),
    /// It restates the root error.
    Stated,
    /// About an error after the root error.
    Later(AnswerKind),
    /// About a notice, a step that reports the failure of another one, or a thing that a warning names: the program
    /// continued after it.
    Notice(AnswerKind),
    /// A rule about a remark or a consequence of an error, not its cause.
    Consequence,
    /// A rule that the files here refute.
    Refuted,
}

/// The source of an answer; of two answers about one error the lesser kind is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AnswerKind {
    /// An entity whose words have one meaning only.
    SpecificEntity,
    /// A rule.
    Rule,
    /// An entity with several meanings.
    Entity,
}
