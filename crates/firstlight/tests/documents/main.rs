//! Runs every command of the README and the book, and compares what it prints with what the page shows.
//!
//! Blocks of one page run in order, in one folder. An HTML comment above a block, which no reader sees, says what differs from
//! run to run and what the block needs:
//!
//! ```text
//! <!-- test
//! needs: gpu                    only where there is one; see `needs.rs` for the names
//! varies: time size /port \d+/  text that may differ; see `compare.rs` for the names
//! exit: 1 any                   the exit status, for each command in order; else 0
//! setup: python3 -m venv .venv  a command that is run first and not shown
//! recorded: FILE                the output is in this file, because another machine printed it
//! elsewhere: FILE               this test runs the block instead
//! by-hand: REASON               no test can run it
//! -->
//! ```
//!
//! In an output, a line `...` matches any lines. `FIRSTLIGHT_DOCUMENTS=write cargo test -p firstlight --test documents`
//! replaces outputs that differ; `FIRSTLIGHT_DOCUMENTS_SLOW=1` also runs blocks that take minutes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, unreachable_pub)] // Test helpers.

mod block;
mod compare;
mod needs;
mod readme;
mod shell;

use block::{Block, blocks};
use shell::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A test for each page, so that they run side by side and one can be run alone.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        $(#[test] fn $name() { check($path); })*
        const PAGES: &[&str] = &[$($path),*];
    };
}

pages! {
    readme: "README.md",
    agents: "docs/book/src/agents.md",
    architecture: "docs/book/src/architecture.md",
    compared: "docs/book/src/compared.md",
    diagnosing: "docs/book/src/diagnosing.md",
    exit_codes: "docs/book/src/exit-codes.md",
    figures: "docs/book/src/figures.md",
    first_check: "docs/book/src/first-check.md",
    fleets: "docs/book/src/fleets.md",
    glossary: "docs/book/src/glossary.md",
    install: "docs/book/src/install.md",
    introduction: "docs/book/src/introduction.md",
    kernels: "docs/book/src/kernels.md",
    models: "docs/book/src/models.md",
    planning: "docs/book/src/planning.md",
    python: "docs/book/src/python.md",
    reading_a_report: "docs/book/src/reading-a-report.md",
    serving: "docs/book/src/serving.md",
    summary: "docs/book/src/SUMMARY.md",
    transformers_sweep: "docs/book/src/transformers-sweep.md",
    troubleshooting: "docs/book/src/troubleshooting.md",
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The README and every page of the book, at any depth.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs/book/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// Checks the pages that are not listed above.
#[test]
fn unlisted_pages_of_the_book() {
    let root = root();
    for path in pages() {
        let page = path.strip_prefix(&root).unwrap().to_str().unwrap();
        if !PAGES.contains(&page) {
            check(page);
        }
    }
}

/// The result of a page.
#[derive(Default)]
struct Outcome {
    ran: usize,
    not_run: Vec<(usize, String)>,
    wrong: Vec<(usize, String)>,
    /// Lines to replace: the first, how many, and the new ones; lines count from 0.
    updates: Vec<(usize, usize, Vec<String>)>,
}

fn check(page: &str) {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let blocks = match blocks(&text) {
        Ok(blocks) => blocks,
        Err(mistakes) => {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            panic!("{page}:\n{}", mistakes.join("\n"));
        }
    };
    let mut outcome = Outcome::default();
    let mut run = Run { shell: Shell::new().unwrap(), serving: None };
    for block in blocks.iter().filter(|block| block.is_run()) {
        match reason_not_to_run(page, block) {
            Ok(None) => {
                outcome.ran += 1;
                run.block(block, &mut outcome);
            }
            Ok(Some(reason)) => {
                outcome.not_run.push((block.line, reason));
                if let Err(mistake) = run.shell.syntax(block).unwrap() {
                    outcome.wrong.push((block.line, mistake));
                }
            }
            Err(mistake) => outcome.wrong.push((block.line, mistake)),
        }
    }
    run.stop_server(&mut outcome);
    // Directly, because the harness shows nothing that a passing test prints.
    let mut summary = format!("{page}: {} blocks run", outcome.ran);
    for (line, reason) in &outcome.not_run {
        summary += &format!("\n  not run, line {line}: {reason}");
    }
    writeln!(std::io::stderr().lock(), "{summary}").unwrap();
    if std::env::var("FIRSTLIGHT_DOCUMENTS").is_ok_and(|it| it == "write") {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        outcome.updates.sort_by_key(|(first, ..)| std::cmp::Reverse(*first));
        for (first, count, new) in outcome.updates {
            lines.splice(first..first + count, new);
        }
        std::fs::write(root().join(page), lines.join("\n") + "\n").unwrap();
    }
    let wrong: Vec<String> =
        outcome.wrong.iter().map(|(line, text)| format!("{page}:{line}: {text}")).collect();
    assert!(
        wrong.is_empty(),
        "{}\nFIRSTLIGHT_DOCUMENTS=write with this test replaces outputs that differ",
        wrong.join("\n")
    );
}

/// Why a block is not run here, or a mistake in its options.
fn reason_not_to_run(page: &str, block: &Block) -> Result<Option<String>, String> {
    let options = &block.options;
    if let Some(file) = &options.elsewhere {
        return match runs_page(file, page) && block.language == "python" {
            true => Ok(Some(format!("run by {file}"))),
            false => Err(format!("{file} does not run the blocks of {} of {page}", block.language)),
        };
    }
    if let Some(reason) = &options.by_hand {
        return Ok(Some(format!("by hand: {reason}")));
    }
    let reasons: Result<Vec<_>, _> = options.needs.iter().map(|it| needs::missing(it)).collect();
    let reasons: Vec<String> = reasons?.into_iter().flatten().collect();
    Ok((!reasons.is_empty() && options.recorded.is_none()).then(|| reasons.join("; ")))
}

/// Whether a test runs the program `file` on the page: a source file in the same folder names both.
fn runs_page(file: &str, page: &str) -> bool {
    let path = root().join(file);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let names_both = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = entry.and_then(|entry| std::fs::read_to_string(entry.path()));
        text.is_ok_and(|text| text.contains(&*name.to_string_lossy()) && text.contains(page))
    };
    path.is_file() && folder.read_dir().is_ok_and(|mut entries| entries.any(names_both))
}

/// The number of blocks that no test runs; each has its reason in the option `by-hand`.
const BY_HAND: usize = 13;

#[test]
fn blocks_run_by_hand_are_counted() {
    let by_hand = |page: PathBuf| {
        let text = std::fs::read_to_string(page).unwrap();
        let blocks = blocks(&text).unwrap_or_default();
        blocks.iter().filter(|block| block.options.by_hand.is_some()).count()
    };
    let count: usize = pages().into_iter().map(by_hand).sum();
    assert_eq!(count, BY_HAND, "run the new block in a test, or change BY_HAND");
}

#[test]
fn block_run_elsewhere_names_a_test_that_runs_it() {
    assert!(runs_page("crates/python/tests/page.py", "docs/book/src/python.md"));
    for (file, page) in [
        ("crates/python/tests/page.py", "docs/book/src/serving.md"),
        ("crates/python/tests/arrays.py", "docs/book/src/python.md"),
        ("crates/python/tests/absent.py", "docs/book/src/python.md"),
    ] {
        assert!(!runs_page(file, page), "{file} {page}");
    }
}

struct Run {
    shell: Shell,
    /// The block of the running server: its line, its documented output and where that is.
    serving: Option<(usize, block::Command, Block)>,
}

impl Run {
    fn block(&mut self, block: &Block, outcome: &mut Outcome) {
        let options = &block.options;
        if let Some(file) = &options.recorded {
            let recorded = std::fs::read_to_string(root().join(file));
            let output: Vec<String> =
                block.commands().into_iter().flat_map(|command| command.output).collect();
            let found = recorded.map_err(|error| format!("{file}: {error}"));
            if let Err(mistake) = found.and_then(|text| compare::occurs(&output, &text)) {
                outcome.wrong.push((block.line, mistake));
            }
            return;
        }
        let slow = options.needs.iter().any(|it| it == "minutes");
        let limit = Duration::from_secs(if slow { 900 } else { 120 });
        for need in &options.needs {
            self.shell.provide(need).unwrap();
        }
        for command in &options.setup {
            let (status, printed) = self.shell.run(command, limit).unwrap();
            if status != 0 {
                let text = format!("setup `{command}` exits {status}:\n{}", printed.join("\n"));
                outcome.wrong.push((block.line, text));
            }
        }
        if block.language == "python" {
            let (status, printed) =
                self.shell.python(&format!("${}", needs::OPENAI), &block.lines).unwrap();
            if status != 0 {
                outcome.wrong.push((block.line, printed.join("\n")));
            }
            return;
        }
        for (at, command) in block.commands().into_iter().enumerate() {
            let line = block.line + command.output_at;
            if command.text.contains("firstlight serve ") {
                self.stop_server(outcome);
                if let Err(printed) = self.shell.serve(&command.text).unwrap() {
                    let text = format!("the server is not ready:\n{}", printed.join("\n"));
                    outcome.wrong.push((line, text));
                    continue;
                }
                self.serving = Some((line, command, block.clone()));
                continue;
            }
            let (status, printed) = self.shell.run(&command.text, limit).unwrap();
            let wanted = options.exits.get(at).copied().unwrap_or(Some(0));
            if let Some(wanted) = wanted
                && status != wanted
            {
                outcome.wrong.push((
                    line,
                    format!(
                        "`{}` exits {status}, documented is {wanted}:\n{}",
                        command.text,
                        printed.join("\n")
                    ),
                ));
            } else if block.language == "console" {
                compare_output(block, &command, line, &printed, outcome);
            }
        }
    }

    fn stop_server(&mut self, outcome: &mut Outcome) {
        let Some((status, printed)) = self.shell.stop().unwrap() else { return };
        let Some((line, mut command, block)) = self.serving.take() else { return };
        if status != 0 {
            let text = format!("the server exits {status}:\n{}", printed.join("\n"));
            outcome.wrong.push((line, text));
        }
        if block.language == "console" {
            // The page shows the start of the log.
            let shown = printed.len().min(command.output.len());
            command.output.truncate(
                command.output.iter().rposition(|it| !it.is_empty()).map_or(0, |at| at + 1),
            );
            compare_output(&block, &command, line, &printed[..shown], outcome);
        }
    }
}

fn compare_output(
    block: &Block,
    command: &block::Command,
    line: usize,
    printed: &[String],
    outcome: &mut Outcome,
) {
    let patterns = match compare::patterns(&block.options.varies) {
        Ok(patterns) => patterns,
        Err(mistake) => return outcome.wrong.push((block.line, mistake)),
    };
    if compare::matches(&command.output, printed, &patterns) {
        return;
    }
    let new = compare::updated(&command.output, printed);
    let text = format!(
        "`{}` prints\n{}\ndocumented is\n{}",
        command.text,
        printed.join("\n"),
        command.output.join("\n")
    );
    outcome.wrong.push((line, text));
    outcome.updates.push((line, command.output.len(), new));
}
