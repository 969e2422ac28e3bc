//! The error lines of a log in order: exceptions with the frames of their tracebacks, compiler and linker errors, and
//! wrapper errors, which only report a failed subprocess. The first error that is not a wrapper is the root of the log.

use crate::text::Pasted;
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// The kind of line that reports an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Python exception.
    Exception,
    /// A compiler, linker, assembler or CMake.
    Build,
    /// Another program's error line.
    Other,
    /// A report that another process or step failed, whose own error is elsewhere.
    Wrapper,
}

/// How an exception is linked to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// Not linked: a separate traceback.
    None,
    /// `raise ... from`: the earlier one is the cause.
    Cause,
    /// Raised while the earlier one was handled.
    Context,
}

/// One frame of a traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) file: String,
    pub(super) line: String,
}

impl Frame {
    /// The import package of the file: below site-packages, in a checkout of a known library, or the remote code of a
    /// model. `None` for files of the user and of Python itself.
    pub(super) fn package(&self) -> Option<&str> {
        let path = self.file.as_str();
        if path.contains("transformers_modules") {
            return Some("transformers_modules");
        }
        for mark in ["site-packages/", "dist-packages/", "site-packages\\", "dist-packages\\"] {
            if let Some(at) = path.rfind(mark) {
                return top_of(&path[at + mark.len()..]);
            }
        }
        let parts: Vec<&str> = path.split(['/', '\\']).collect();
        let inner = parts.get(..parts.len().saturating_sub(1))?;
        // The last folder with the name of a library, as in `/sgl-workspace/sglang/python/sglang/srt/server.py`.
        inner.iter().rev().find(|part| super::modules::is_library(part)).copied()
    }
}

/// The first folder or module of a path below site-packages.
fn top_of(path: &str) -> Option<&str> {
    let top = path.split(['/', '\\']).next()?;
    let top = top.split('.').next()?;
    let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!top.is_empty() && top.chars().all(named)).then_some(top)
}

/// One error of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorLine {
    /// The first byte of the line in the squeezed text, and one past the last of the message's lines.
    pub(super) span: (usize, usize),
    pub(super) kind: Kind,
    /// The exception's class without its module; empty for other kinds.
    pub(super) class: String,
    /// The words after the class, or the whole line.
    pub(super) message: String,
    /// The frames before an exception, the outermost first.
    pub(super) frames: Vec<Frame>,
    pub(super) link: Link,
}

impl ErrorLine {
    /// The message with its continuation lines, if its first line is not enough.
    pub(super) fn whole_message(&self, pasted: &Pasted) -> String {
        let alone = self.message.len() >= 24
            && !self.message.ends_with(':')
            && self.class != "ValidationError";
        let cmake = self.message.starts_with("CMake Error");
        if !cmake && (alone || self.kind != Kind::Exception) {
            return self.message.clone();
        }
        let whole = pasted.written_line(self.span.0, self.span.1);
        if cmake {
            return whole;
        }
        whole.split_once(':').map_or(whole.clone(), |(_, rest)| rest.trim().to_owned())
    }

    /// Whether a mention in the squeezed text is part of this error's line or message.
    pub(super) fn overlaps(&self, span: (usize, usize)) -> bool {
        span.0 < self.span.1 && self.span.0 < span.1
    }
}

/// Maximum number of errors that are read from a log; later ones repeat or follow from them.
const MAX_ERRORS: usize = 64;
/// Maximum number of lines in which a message continues.
const MESSAGE_LINES: usize = 12;

/// Substrings of errors that report another process or step, in lower case.
const WRAPPERS: [&str; 38] = [
    "engine core initialization failed",
    "enginecore failed to start",
    "enginecore encountered a fatal error",
    "enginecore encountered an issue",
    "enginedeaderror",
    "workerproc initialization failed",
    "workerproc failed to start",
    "worker failed with error",
    "background loop has errored already",
    "childfailederror",
    "raytaskerror",
    "brokenprocesspool",
    "calledprocesserror",
    "error compiling objects for extension",
    "error building extension",
    "failed building wheel",
    "failed to build installable wheels",
    "could not build wheels",
    "error: subprocess-exited-with-error",
    "error: metadata-generation-failed",
    "did not run successfully",
    "failed-wheel-build-for-install",
    "command failed with exit",
    "failed with exit status",
    "exited with code 1",
    "exit code: 1",
    "exits with return code = 1",
    "returned non-zero exit status 1",
    "ninja: build stopped",
    "collect2: error: ld returned",
    "error: ld returned",
    "make: ***",
    "make[",
    "gmake[",
    "gmake: ***",
    "cmake configuration failed",
    "configuring incomplete, errors occurred",
    "received sigquit from a child process",
];

/// Prefixes of other programs' error lines, in lower case.
const BEGINS: [&str; 25] = [
    "error:",
    "error[",
    "error ",
    "[error",
    "fatal:",
    "fatal ",
    "failed to ",
    "unable to ",
    "could not ",
    "cmake error",
    "nvcc fatal",
    "nvcc error",
    "ptxas fatal",
    "ptxas error",
    "ninja: error:",
    "ninja: fatal:",
    "terminate called",
    "what():",
    "segmentation fault",
    "bus error",
    "aborted",
    "killed",
    "illegal instruction",
    "docker: error",
    "panic:",
];

/// Substrings of other programs' error lines, in lower case.
const HOLDS: [&str; 12] = [
    "cuda error",
    "cuda failure",
    "nccl warn",
    "nvrm: xid",
    "error response from daemon",
    "panicked at",
    "exits with return code",
    "exitcode: ",
    "ggml_assert(",
    ": symbol lookup error:",
    "assertion `",
    "assertion failed",
];

/// Every error of a text, in its order.
pub(super) fn read(pasted: &Pasted) -> Vec<ErrorLine> {
    let mut errors: Vec<ErrorLine> = Vec::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut open = false;
    let mut link = Link::None;
    let mut continues = 0;
    for (start, end) in pasted.lines() {
        if errors.len() == MAX_ERRORS {
            break;
        }
        if !may_matter(pasted.squeezed(start, end)) {
            // Lines after an error belong to its message until another record begins.
            extend(&mut errors, &mut continues, end);
            continue;
        }
        let line = pasted.written_line(start, end);
        let lower = line.to_ascii_lowercase();
        if lower.contains("traceback (most recent call last)") {
            (open, continues) = (true, 0);
            frames.clear();
        } else if lower.contains("during handling of the above exception") {
            (link, continues) = (Link::Context, 0);
        } else if lower.contains("was the direct cause of the following exception") {
            (link, continues) = (Link::Cause, 0);
        } else if let Some(frame) = frame(&line) {
            (open, continues) = (true, 0);
            frames.push(frame);
        } else if let Some((class, message)) = exception(&line, open) {
            let kind = if wraps(&lower) { Kind::Wrapper } else { Kind::Exception };
            let frames = std::mem::take(&mut frames);
            let link = std::mem::replace(&mut link, Link::None);
            errors.push(ErrorLine { span: (start, end), kind, class, message, frames, link });
            (open, continues) = (false, MESSAGE_LINES);
        } else if continues == MESSAGE_LINES && after_cmake(&errors) {
            extend(&mut errors, &mut continues, end);
        } else if let Some(kind) =
            other(&lower).filter(|kind| !open || is_diagnostic(*kind, &lower))
        {
            errors.push(ErrorLine {
                span: (start, end),
                kind,
                class: String::new(),
                message: line,
                frames: Vec::new(),
                link: Link::None,
            });
            continues = MESSAGE_LINES;
        } else {
            extend(&mut errors, &mut continues, end);
        }
    }
    errors
}

/// The lines of Python's warnings, `/v/x.py:84: UserWarning: ..`.
pub(super) fn warnings(pasted: &Pasted) -> Vec<(usize, usize)> {
    let finder = Finder::new(b"warning:");
    let warns = |(start, end): &(usize, usize)| {
        finder.find(pasted.squeezed(*start, *end)).is_some()
            && is_warning(&pasted.written_line(*start, *end))
    };
    pasted.lines().filter(warns).take(MAX_ERRORS).collect()
}

/// Whether a line has the class of a warning before its message.
fn is_warning(line: &str) -> bool {
    line.match_indices("Warning:").any(|(at, _)| {
        let class = line[..at].rsplit(|c: char| !c.is_ascii_alphanumeric()).next();
        class.is_some_and(|class| class.starts_with(|c: char| c.is_ascii_uppercase()))
    })
}

/// Whether the last error is a line of CMake that names only the file: the next line is its message.
fn after_cmake(errors: &[ErrorLine]) -> bool {
    errors.last().is_some_and(|last| last.message.starts_with("CMake Error at"))
}

/// Whether a line between frames is a compiler or linker error, whose output a traceback interrupts.
fn is_diagnostic(kind: Kind, lower: &str) -> bool {
    let words = [": fatal error:", ": error:", "undefined reference to", ": cannot find -l"];
    kind == Kind::Build && words.iter().any(|words| lower.contains(words))
}

fn extend(errors: &mut [ErrorLine], continues: &mut usize, end: usize) {
    if *continues > 0
        && let Some(last) = errors.last_mut()
    {
        last.span.1 = end;
        *continues -= 1;
    }
}

/// Substrings of error lines; each error line has at least one.
const MARKS: [&str; 23] = [
    "error",
    "exception",
    "file",
    ".py",
    "traceback",
    "fatal",
    "failed",
    "unable",
    "fault",
    "abort",
    "killed",
    "cause",
    "warn",
    "assert",
    "exit",
    "undefined",
    "xid",
    "timeout",
    "what()",
    "terminate",
    "couldnot",
    "interrupt",
    "panic",
];

/// Whether a squeezed line can be one of the lines below; most lines of a long log cannot.
fn may_matter(squeezed: &[u8]) -> bool {
    static FINDERS: LazyLock<Vec<Finder<'static>>> =
        LazyLock::new(|| MARKS.iter().map(|mark| Finder::new(mark.as_bytes())).collect());
    FINDERS.iter().any(|mark| mark.find(squeezed).is_some())
        || squeezed.first().is_some_and(u8::is_ascii_alphabetic) && squeezed.contains(&b':')
}

fn wraps(lower: &str) -> bool {
    WRAPPERS.iter().any(|words| lower.contains(words))
}

/// `File "/v/x.py", line 3, in f`, `File ~/x.py:3, in f(a)`, `/v/x.py in f(a)` and `[/v/x.py](https://...) in f(a)`.
fn frame(line: &str) -> Option<Frame> {
    // A pasted text has one kind of quotes.
    if let Some(rest) = line.strip_prefix("File '") {
        let (file, rest) = rest.split_once('\'')?;
        let number = rest.trim_start_matches([',', ' ']).strip_prefix("line ")?;
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        return Some(Frame { file: file.to_owned(), line: number });
    }
    if let Some(rest) = line.strip_prefix("File ") {
        let (place, _) =
            rest.split_once(" in ").or_else(|| rest.split_once(',')).unwrap_or((rest, ""));
        let place = place.trim_end_matches([',', ' ']);
        let (file, number) = place.rsplit_once(':')?;
        let counted = number.bytes().all(|b| b.is_ascii_digit()) && file.contains(['/', '\\']);
        return counted.then(|| Frame { file: file.to_owned(), line: number.to_owned() });
    }
    let rest = line.strip_prefix('[').unwrap_or(line);
    let (file, after) = rest.split_once(".py")?;
    let whole = file.starts_with(['/', '~']) && !file.contains(' ');
    let call =
        after.strip_prefix(']').and_then(|rest| rest.split_once(") in ")).map(|(_, call)| call);
    let call = call.or_else(|| after.strip_prefix(" in "))?;
    (whole && call.contains('(')).then(|| Frame { file: format!("{file}.py"), line: String::new() })
}

/// The class and message of an exception's line. Directly after frames any capitalized name is a class.
fn exception(line: &str, after_frames: bool) -> Option<(String, String)> {
    let (head, message) = line.split_once(':').unwrap_or((line, ""));
    let head = head.trim();
    let name = head.rsplit('.').next()?;
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let named = head.len() <= 120
        && head.chars().all(letters)
        && head.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase());
    let known = ["Error", "Exception", "Interrupt", "Timeout", "NotFound", "Failed", "Unsupported"]
        .iter()
        .any(|end| name.contains(end));
    let warning = name.ends_with("Warning");
    // A line of source code such as `Dense:` or `Foo` has no message.
    let has_message = !message.is_empty() && message.starts_with(' ')
        || name.ends_with("Error")
        || name.ends_with("Exception");
    let bare_word = !after_frames && (name == "Error" || name == "Exception" && message.is_empty());
    (named && !warning && has_message && !bare_word && (known || after_frames))
        .then(|| (name.to_owned(), message.trim().to_owned()))
}

/// The kind of another program's error line, in lower case.
fn other(lower: &str) -> Option<Kind> {
    // ninja names the target whose command failed; the command's own error follows.
    if wraps(lower) || lower.starts_with("failed: ") {
        return Some(Kind::Wrapper);
    }
    let build = [
        ": error:",
        ": fatal error:",
        "): error",
        "undefined reference to",
        ": cannot find -l",
        ": error c",
    ]
    .iter()
    .any(|words| lower.contains(words))
        || [
            "cmake error",
            "nvcc fatal",
            "nvcc error",
            "ptxas fatal",
            "ptxas error",
            "ptxas /",
            "ninja: error",
            "ld: ",
            "fatal error:",
        ]
        .iter()
        .any(|words| lower.starts_with(words));
    if build {
        return Some(Kind::Build);
    }
    let other = BEGINS.iter().any(|words| lower.starts_with(words))
        || HOLDS.iter().any(|words| lower.contains(words));
    other.then_some(Kind::Other)
}

/// The first error that is not a wrapper. If exceptions are raised while another is handled, the last of the chain is the
/// program's own report; if one is raised `from` another, the first is the cause.
pub(super) fn root(errors: &[ErrorLine]) -> Option<&ErrorLine> {
    let first = errors.iter().position(|error| error.kind != Kind::Wrapper)?;
    let mut at = first;
    while let Some(next) = errors.get(at + 1) {
        // A failed import is the cause of exceptions that are raised while it is handled.
        let import =
            matches!(errors[at].class.as_str(), "ImportError" | "ModuleNotFoundError" | "OSError");
        if next.link != Link::Context || next.kind == Kind::Wrapper || import {
            break;
        }
        at += 1;
    }
    errors.get(at)
}

/// The errors in the chain of the root: the earlier exceptions, and those that followed from it.
pub(super) fn chain<'a>(errors: &'a [ErrorLine], root: &ErrorLine) -> Vec<&'a ErrorLine> {
    let Some(at) = errors.iter().position(|error| error == root) else { return Vec::new() };
    let mut first = at;
    while first > 0 && errors[first].link != Link::None {
        first -= 1;
    }
    let mut last = at;
    while errors.get(last + 1).is_some_and(|next| next.link != Link::None) {
        last += 1;
    }
    errors[first..=last].iter().filter(|error| error.kind != Kind::Wrapper).collect()
}

#[cfg(test)]
mod tests;
