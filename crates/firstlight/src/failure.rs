//! Errors as sentences: the problem, and a hint below it.

use crate::output::{Output, OutputError};
use architectures::{ConfigError, ModelTooLarge};
use facts::BackendKind;
use models::ModelError;
use ops::OpError;
use probe::ProbeError;
use report::CsvError;
use setup::apply::ApplyError;
use setup::build::BuildError;
use setup::emit::{EmitError, PlanFileError};
use setup::fix::FixError;
use setup::lock::LockError;
use setup::profile_yaml::ProfileError;
use setup::uv::UvError;
use setup::wheel::WheelError;
use std::error::Error;
use std::io::{ErrorKind, Write};

/// An error with a hint that only the command knows.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: String,
}

impl Failure {
    pub(crate) fn hinted(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        Self { what: what.into(), hint: hint.into() }.into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some(failure.hint.clone());
        }
        if let Some(error) = cause.downcast_ref::<ProbeError>() {
            return Some(error.hint());
        }
        if let Some(error) = cause.downcast_ref::<ModelError>() {
            return error.hint().or_else(|| of_the_system_in(&error.to_string()));
        }
        if let Some(error) = cause.downcast_ref::<ConfigError>() {
            return Some(error.hint());
        }
        if let Some(error) = cause.downcast_ref::<ModelTooLarge>() {
            return Some(error.hint.clone());
        }
        if let Some(hint) = of_setup(cause) {
            return Some(hint);
        }
        if let Some(error) = cause.downcast_ref::<CsvError>() {
            return Some(error.hint());
        }
        let of_bench = match cause.downcast_ref() {
            Some(::bench::BenchError::Unavailable(unavailable)) => Some(unavailable),
            _ => None,
        };
        if let Some(unavailable) = cause.downcast_ref().or(of_bench) {
            return Some(without(unavailable));
        }
        if let Some(OutputError(_)) = cause.downcast_ref() {
            return Some("free some space, or send the output elsewhere".to_owned());
        }
        if let Some(error) = cause.downcast_ref::<OpError>() {
            return error.hint();
        }
        cause.downcast_ref::<std::io::Error>().and_then(of_the_system)
    })
}

/// The hint for an error of the crate `setup`.
fn of_setup(cause: &(dyn Error + 'static)) -> Option<String> {
    fn hint_of<E: Error + 'static>(
        cause: &(dyn Error + 'static),
        hint: impl FnOnce(&E) -> Option<String>,
    ) -> Option<String> {
        cause.downcast_ref().and_then(hint)
    }
    hint_of(cause, ApplyError::hint)
        .or_else(|| hint_of(cause, |error: &BuildError| Some(error.hint())))
        .or_else(|| hint_of(cause, |error: &EmitError| Some(error.hint())))
        .or_else(|| hint_of(cause, |error: &LockError| Some(error.hint().to_owned())))
        .or_else(|| hint_of(cause, |error: &FixError| error.hint().map(str::to_owned)))
        .or_else(|| hint_of(cause, |error: &PlanFileError| Some(error.hint().to_owned())))
        .or_else(|| hint_of(cause, |error: &ProfileError| Some(error.hint().to_owned())))
        .or_else(|| hint_of(cause, |error: &UvError| Some(error.hint().to_owned())))
        .or_else(|| hint_of(cause, |error: &WheelError| Some(error.hint().to_owned())))
}

/// The hint for a missing backend.
fn without(unavailable: &device::Unavailable) -> String {
    let why = match unavailable.backend {
        BackendKind::Cuda => "`firstlight doctor` shows what is missing; ",
        BackendKind::Cpu | BackendKind::Metal => "",
    };
    format!("{why}`--backend cpu` runs on the processor")
}

/// The hint for a failed write: about the disk where that is the cause, otherwise the one given.
pub(crate) fn hint_for_write(error: &(dyn Error + 'static), otherwise: &str) -> String {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let of_disk = causes.find_map(|cause| {
        let error = cause.downcast_ref::<std::io::Error>()?;
        let kinds =
            [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::ReadOnlyFilesystem];
        kinds.contains(&error.kind()).then(|| of_the_system(error)).flatten()
    });
    of_disk.unwrap_or_else(|| otherwise.to_owned())
}

/// The hint for a system error, independent of its file.
fn of_the_system(error: &std::io::Error) -> Option<String> {
    let hint = match error.kind() {
        ErrorKind::NotFound => "check the path",
        ErrorKind::NotADirectory => "name a folder, not a file",
        ErrorKind::IsADirectory => "name a file, not a folder",
        ErrorKind::PermissionDenied => "check who owns it, and its permissions",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space, or name a location on another disk"
        }
        ErrorKind::ReadOnlyFilesystem => "name a writable location",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// As [`of_the_system`], for a system error that is only text: `Is a directory (os error 21)`.
fn of_the_system_in(text: &str) -> Option<String> {
    // An error without a number has the text of its kind.
    let of_kind = |kind: ErrorKind| {
        let error = std::io::Error::from(kind);
        text.ends_with(&error.to_string()).then_some(error)
    };
    if let Some(error) = of_kind(ErrorKind::IsADirectory) {
        return of_the_system(&error);
    }
    let (_, number) = text.rsplit_once("(os error ")?;
    let number = number.split(')').next()?.parse().ok()?;
    of_the_system(&std::io::Error::from_raw_os_error(number))
}

/// The whole error chain, without repeating a cause that an error already contains.
fn sentence(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |text, cause| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    })
}

/// Prints the whole error chain in one sentence, then the hint.
pub(crate) fn print(error: &anyhow::Error, output: &Output) {
    print_sentence(&sentence(error), hint(error).as_deref(), output);
}

/// Prints an error and its hint on standard error, and with `--json` on standard output as JSON.
pub(crate) fn print_sentence(sentence: &str, hint: Option<&str>, output: &Output) {
    if output.json {
        let document =
            serde_json::json!({ "schema": facts::SCHEMA, "error": sentence, "hint": hint });
        // If standard output is full or closed, the sentence below and the exit status remain.
        let _ = crate::output::write(&format!("{document}\n"));
    }
    let mut say = format!("{} {sentence}\n", output.paint_error("error:"));
    if let Some(hint) = hint {
        say += &format!("{} {hint}\n", output.paint_hint("hint:"));
    }
    let say = output.wrap_error(&say);
    // If standard error is closed, the exit status remains.
    let _ = std::io::stderr().write_all(say.as_bytes());
}

/// `firstlight ... | head` closes the standard output, which is not an error.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let output = error.chain().find_map(|cause| cause.downcast_ref::<OutputError>());
    output.is_some_and(|OutputError(io)| io.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn errors_of_setup_and_report_have_hints() {
        let parity = report::read_parity_csv("status\n").unwrap_err();
        let wheel = || WheelError::Name { file: "a.whl".into() };
        let format = EmitError::Unknown { name: "x".into() };
        let plan = PlanFileError::Damaged { line: 3, what: "no key `name`".into() };
        let package = LockError::NoFile { package: "a".into(), version: "1".into() };
        for (error, sentence_of, hint_of) in [
            (anyhow::Error::from(parity), "parity.csv: no column", "the columns are op, "),
            (wheel().into(), "`a.whl` is not a wheel's name", "a wheel is called NAME-"),
            (ApplyError::Wheel(wheel()).into(), "`a.whl` is not", "a wheel is called NAME-"),
            (format.into(), "no format `x`", "the formats are plan.toml, "),
            (plan.into(), "line 3: no key `name`", "plans must not be edited"),
            (package.into(), "`a` 1 has no file", "choose another version"),
            (UvError::Absent { tried: Vec::new() }.into(), "no uv ", "install it with "),
            (ProfileError::Forced.into(), "`triton_sel_force`", "set it to false"),
            (FixError::Locked { root: "v".into() }.into(), "another fix", "wait for it to end"),
        ] {
            let error = error.context("of a file");
            let (sentence, hint) = (sentence(&error), hint(&error).unwrap());
            assert!(sentence.contains(sentence_of) && !sentence.contains('\n'), "{sentence}");
            assert!(hint.starts_with(hint_of), "{hint}");
        }
    }

    #[test]
    fn repeated_cause_is_printed_once() {
        let gone = || io::Error::other("No such file or directory (os error 2)");
        let own = setup::apply::ApplyError::Io { path: ".venv/bin/python".into(), source: gone() };
        let said = ".venv/bin/python: No such file or directory (os error 2)";
        assert_eq!(sentence(&own.into()), said);
        let added = anyhow::Error::from(gone()).context(".venv/bin/python");
        assert_eq!(sentence(&added), said);
    }
}
