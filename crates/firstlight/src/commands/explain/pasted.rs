//! The argument of `explain`: a rule, a file, standard input or the text itself.

use crate::failure::Failure;
use diagnose::Rule;
use std::io::Read;
use std::path::Path;

/// A longer log is read from its end, which has the error.
const LONGEST: u64 = 32 << 20;

/// The kind of the argument.
pub(super) enum Query {
    /// A rule's id.
    Rule(&'static Rule),
    /// Text of an error.
    Text(String),
    /// One word that is neither a rule nor a file.
    Unknown(String),
}

/// The error for a text, a file or a standard input without any words.
pub(super) fn empty() -> anyhow::Error {
    let hint = "give an error text, a file with it, `-` for standard input, or a rule";
    Failure::hinted("there is nothing to explain: the text is empty", hint)
}

pub(super) fn read(asked: &str) -> anyhow::Result<Query> {
    if asked == "-" {
        return Ok(Query::Text(end_of(std::io::stdin().lock())?));
    }
    if asked.trim().is_empty() {
        return Err(empty());
    }
    if let Some(rule) = diagnose::rule(asked) {
        return Ok(Query::Rule(rule));
    }
    // A pasted traceback can be longer than any path, and a system call with it would give a confusing error.
    let one_line = !asked.contains('\n') && asked.len() < 4096;
    let path = Path::new(asked);
    if one_line && path.exists() && !path.is_dir() {
        return file(path).map(Query::Text);
    }
    if asked.contains(char::is_whitespace) {
        return Ok(Query::Text(asked.to_owned()));
    }
    if path.is_dir() {
        let hint = "explain takes an error text, a file with it, `-` for standard input, or a rule";
        return Err(Failure::hinted(format!("{asked} is a folder"), hint));
    }
    if diagnose::knows(asked) {
        return Ok(Query::Text(asked.to_owned()));
    }
    if asked.contains('/') || asked.ends_with(".log") || asked.ends_with(".txt") {
        let hint = "explain takes an error text, a file with it, `-` for standard input, or a rule";
        return Err(Failure::hinted(format!("{asked} does not exist"), hint));
    }
    Ok(match asked.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        true => Query::Unknown(asked.to_owned()),
        false => Query::Text(asked.to_owned()),
    })
}

/// Whether standard input is a pipe, a socket or a file, and not a terminal or a device such as /dev/null.
pub(super) fn is_piped() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let input = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let kind = input.and_then(|input| input.metadata()).map(|data| data.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_file())
}

/// The end of a stream. The front of a long text is dropped while reading, so that any stream can be piped in.
fn end_of(mut input: impl Read) -> std::io::Result<String> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&buffer[..read]);
        if bytes.len() as u64 > 2 * LONGEST {
            bytes.drain(..bytes.len() - LONGEST as usize);
        }
    }
}

/// The end of a file, a named pipe or a device such as /dev/stdin.
fn file(path: &Path) -> anyhow::Result<String> {
    use std::io::{Seek, SeekFrom};
    let open = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let about = file.metadata()?;
        if about.is_file() {
            file.seek(SeekFrom::Start(about.len().saturating_sub(LONGEST)))?;
        }
        end_of(file)
    };
    open().map_err(|reason| {
        Failure::hinted(
            format!("{} cannot be read: {reason}", path.display()),
            "pipe the text in with `firstlight explain -`",
        )
    })
}
