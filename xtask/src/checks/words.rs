//! Comments, messages, documents and names use the field's terms. `words.toml` has the lists.

use super::{Check, Problem};
use crate::layout::{Layout, crate_of};
use crate::rust_source::{code_only, code_without_tests, is_test_file};
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

pub(super) const CHECK: Check = Check {
    name: "words",
    promise: "comments, messages, documents and names use the field's terms",
    hint: "write the suggested term, or allow a word by a comment `words: allow(WORD)` on its line or the line before",
    find: |layout| findings(layout, &LISTS, |_| true),
};

/// The lists of `words.toml`.
static LISTS: LazyLock<Lists> =
    LazyLock::new(|| Lists::parse(include_str!("words.toml")).expect("words.toml is valid"));

/// Prints every finding below a path, and their number.
pub(crate) fn print_findings(root: &Path, path: Option<&str>) -> anyhow::Result<()> {
    let layout = Layout::read(root)?;
    let findings = findings(&layout, &LISTS, |file| path.is_none_or(|path| below(file, path)));
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} findings", findings.len());
    Ok(())
}

/// Words that are refused, and the suggested terms.
#[derive(Debug, Default)]
struct Refused {
    words: Vec<Vec<String>>,
    write: String,
}

#[derive(Debug, Default)]
struct Lists {
    skip: Vec<String>,
    shared_types: Vec<String>,
    begin: Refused,
    deny: Vec<Refused>,
    types: Vec<String>,
    type_parts: Vec<String>,
    types_write: String,
    function_parts: Vec<String>,
    functions_write: String,
    /// Code that marks a technique, and the terms of which its file has to use one.
    require: Vec<(String, Vec<String>)>,
}

impl Lists {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = text.parse()?;
        let strings = |value: Option<&toml::Value>| -> anyhow::Result<Vec<String>> {
            let list = value.and_then(toml::Value::as_array).context("a list is missing")?;
            let text = |item: &toml::Value| item.as_str().map(str::to_owned);
            list.iter().map(|item| text(item).context("an item is not a string")).collect()
        };
        let text = |value: Option<&toml::Value>| -> anyhow::Result<String> {
            Ok(value.and_then(toml::Value::as_str).context("a text is missing")?.to_owned())
        };
        let refused = |value: &toml::Value| -> anyhow::Result<Refused> {
            let phrases = strings(value.get("words"))?;
            let split = |phrase: &String| phrase.split(' ').map(str::to_owned).collect();
            Ok(Refused {
                words: phrases.iter().map(split).collect(),
                write: text(value.get("write"))?,
            })
        };
        let tables = |name: &str| table.get(name).and_then(toml::Value::as_array);
        let section = |name: &str| table.get(name).with_context(|| format!("[{name}] is missing"));
        let (types, functions) = (section("types")?, section("functions")?);
        let require = |item: &toml::Value| Ok((text(item.get("when"))?, strings(item.get("say"))?));
        Ok(Self {
            skip: strings(table.get("skip"))?,
            shared_types: strings(table.get("shared_types"))?,
            begin: refused(section("begin")?)?,
            deny: tables("deny").into_iter().flatten().map(refused).collect::<Result<_, _>>()?,
            types: strings(types.get("exact"))?,
            type_parts: strings(types.get("parts"))?,
            types_write: text(types.get("write"))?,
            function_parts: strings(functions.get("parts"))?,
            functions_write: text(functions.get("write"))?,
            require: tables("require")
                .into_iter()
                .flatten()
                .map(require)
                .collect::<anyhow::Result<_>>()?,
        })
    }
}

/// Denied phrases with their suggestions, by first word.
type Phrases<'a> = BTreeMap<&'a str, Vec<(&'a [String], &'a str)>>;

impl Lists {
    fn phrases(&self) -> Phrases<'_> {
        let mut phrases = Phrases::new();
        for Refused { words, write } in &self.deny {
            for phrase in words {
                phrases.entry(phrase[0].as_str()).or_default().push((phrase, write));
            }
        }
        phrases
    }
}

fn below(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix(folder.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The findings of the files that are `wanted`, in the order of paths and lines.
fn findings(layout: &Layout, lists: &Lists, wanted: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let phrases = lists.phrases();
    for (path, text) in layout.texts(&[".rs", ".cu", ".cuh", ".md"]) {
        if !wanted(path) || lists.skip.iter().any(|skip| path.contains(skip.as_str())) {
            continue;
        }
        let text = if path == "CHANGELOG.md" { first_section(text) } else { text };
        let allowed = Allowed::of(text);
        let mut found = prose_findings(path, text, lists, &phrases);
        if path.ends_with(".rs") {
            found.extend(name_findings(path, text, lists));
        }
        found.extend(missing_terms(path, text, lists));
        found.retain(|(word, problem)| !allowed.has(word, problem.line.unwrap_or(0)));
        found.sort_by_key(|(_, problem)| problem.line);
        problems.extend(found.into_iter().map(|(_, problem)| problem));
    }
    problems.extend(shared_type_findings(layout, lists).into_iter().filter(|of| wanted(&of.path)));
    problems
}

/// The changelog up to its second section: released sections are history.
fn first_section(changelog: &str) -> &str {
    let second = changelog.match_indices("\n## ").nth(1);
    second.map_or(changelog, |(at, _)| &changelog[..at])
}

/// A word, and the finding about it.
type Finding = (String, Problem);

/// Words that comments allow, by line.
struct Allowed(BTreeMap<usize, BTreeSet<String>>);

impl Allowed {
    fn of(text: &str) -> Self {
        let mut allowed: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let list = line.split_once("words: allow(").and_then(|(_, rest)| rest.split_once(')'));
            for word in list.into_iter().flat_map(|(list, _)| list.split(", ")) {
                // The comment's own line and the next one.
                for line in [index + 1, index + 2] {
                    allowed.entry(line).or_default().insert(word.to_lowercase());
                }
            }
        }
        Self(allowed)
    }

    fn has(&self, word: &str, line: usize) -> bool {
        self.0.get(&line).is_some_and(|words| words.contains(&word.to_lowercase()))
    }
}

/// One word of a comment, a message or a document.
struct Word<'a> {
    text: &'a str,
    line: usize,
    /// Whether a sentence of a comment or document begins with it.
    begins: bool,
    /// Whether a phrase may not reach over from the word before.
    breaks: bool,
}

fn prose_findings(path: &str, text: &str, lists: &Lists, phrases: &Phrases<'_>) -> Vec<Finding> {
    let prose = if path.ends_with(".md") { markdown_prose(text) } else { rust_prose(text) };
    let words = words(&prose, path.ends_with(".md"));
    let lower: Vec<String> = words.iter().map(|word| word.text.to_lowercase()).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let mut report = |phrase: &str, write: &str| {
            let what = format!("`{phrase}`: write {write}");
            found.push((phrase.to_owned(), Problem::line(path, word.line, what)));
        };
        let starts_upper = word.text.starts_with(char::is_uppercase);
        if word.begins
            && starts_upper
            && lists.begin.words.iter().any(|first| first[0] == lower[at])
        {
            report(word.text, &lists.begin.write);
        }
        for (phrase, write) in phrases.get(lower[at].as_str()).into_iter().flatten() {
            let matches = lower[at..].starts_with(phrase)
                && words[at + 1..at + phrase.len()].iter().all(|word| !word.breaks);
            if matches {
                report(&phrase.join(" "), write);
            }
        }
    }
    found
}

/// The text with code blanked: comments and strings stay, except code in backticks.
fn rust_prose(text: &str) -> String {
    let code = code_only(text);
    let blanked: String = text
        .chars()
        .zip(code.chars())
        .map(|(original, code)| if original != code || original == '\n' { original } else { ' ' })
        .collect();
    blanked.lines().map(without_inline_code).collect::<Vec<_>>().join("\n")
}

/// The text with fenced and inline code blanked.
fn markdown_prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence { String::new() } else { without_inline_code(line) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn without_inline_code(line: &str) -> String {
    let mut inside = false;
    line.chars()
        .map(|c| {
            inside ^= c == '`';
            if inside || c == '`' { '_' } else { c }
        })
        .collect()
}

fn words(prose: &str, is_markdown: bool) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    // A sentence begins after a full stop and at the start of a comment or paragraph.
    let (mut begins, mut breaks) = (true, true);
    let mut previous_was_prose = false;
    for (index, line) in prose.lines().enumerate() {
        let content =
            line.trim_start().trim_start_matches(['/', '!', '#', '>', '-', '*', '|', '"', ' ']);
        let is_comment = line.trim_start().starts_with("//");
        let new_block = content.is_empty()
            || !previous_was_prose
            || line.trim_start().starts_with(['-', '#', '|']);
        if new_block {
            (begins, breaks) = (is_markdown || is_comment, true);
        }
        previous_was_prose = !content.is_empty() && (is_markdown || is_comment);
        let mut rest = line;
        while let Some(start) = rest.find(char::is_alphanumeric) {
            let between = &rest[..start];
            if between.contains(['.', ';', ':', '?', '"', '|', '(', ')']) {
                breaks = true;
            }
            let is_trailing_comment = !is_comment && between.contains("//");
            if is_trailing_comment || between.contains(". ") || between.contains("? ") {
                begins = is_comment || is_markdown || is_trailing_comment;
            }
            rest = &rest[start..];
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'' | '-');
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            words.push(Word { text: &rest[..end], line: index + 1, begins, breaks });
            (begins, breaks) = (false, false);
            rest = &rest[end..];
        }
        if rest.trim_end().ends_with(['.', '?', ':']) {
            (begins, breaks) =
                (rest.trim_end().ends_with(['.', '?']) && (is_markdown || is_comment), true);
        }
    }
    words
}

/// Names of types, functions and modules that are not noun or verb phrases.
fn name_findings(path: &str, text: &str, lists: &Lists) -> Vec<Finding> {
    let code = code_only(text);
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let Some((keyword, name)) = definition(line) else { continue };
        let mut report = |write: &str| {
            let what = format!("{keyword} `{name}`: write {write}");
            found.push((name.to_owned(), Problem::line(path, index + 1, what)));
        };
        if matches!(keyword, "fn" | "mod") {
            let padded = format!("_{name}_");
            if lists.function_parts.iter().any(|part| padded.contains(&format!("_{part}_"))) {
                report(&lists.functions_write);
            }
        } else if lists.types.iter().any(|exact| exact == name)
            || camel_parts(name).any(|part| lists.type_parts.iter().any(|refused| refused == part))
        {
            report(&lists.types_write);
        }
    }
    found
}

/// The keyword and the name of an item that a line defines.
fn definition(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let keyword = words.find(|word| {
        !(word.starts_with("pub")
            || matches!(*word, "const" | "async" | "unsafe" | "extern" | "in"))
    })?;
    if !matches!(keyword, "fn" | "mod" | "struct" | "enum" | "trait" | "type" | "union") {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (end > 0).then(|| (keyword, &name[..end]))
}

fn camel_parts(name: &str) -> impl Iterator<Item = &str> {
    let starts: Vec<usize> =
        name.char_indices().filter(|(_, c)| c.is_uppercase()).map(|(at, _)| at).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([name.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| &name[start..end])
}

/// Techniques whose terms a file does not use.
fn missing_terms(path: &str, text: &str, lists: &Lists) -> Vec<Finding> {
    if path.ends_with(".md") || below(path, "xtask") {
        return Vec::new();
    }
    let missing = lists.require.iter().filter_map(|(when, say)| {
        let line = text.lines().position(|line| line.contains(when.as_str()))?;
        let said = say.iter().any(|term| text.contains(term.as_str()));
        let what = format!("uses `{when}` and no comment names {}", say[0]);
        (!said).then(|| (when.clone(), Problem::line(path, line + 1, what)))
    });
    missing.collect()
}

/// Public types whose names several crates define.
fn shared_type_findings(layout: &Layout, lists: &Lists) -> Vec<Problem> {
    let mut crates: BTreeMap<String, BTreeMap<String, (String, usize)>> = BTreeMap::new();
    for (path, text) in layout.texts(&[".rs"]).filter(|(path, _)| !is_test_file(path)) {
        let Some(package) = crate_of(path) else { continue };
        for (index, line) in code_without_tests(text).lines().enumerate() {
            let line = line.trim_start();
            let is_type =
                |keyword| matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
            let Some((keyword, name)) = definition(line).filter(|_| line.starts_with("pub "))
            else {
                continue;
            };
            if is_type(keyword) && !lists.shared_types.iter().any(|shared| shared == name) {
                let places = crates.entry(name.to_owned()).or_default();
                places.entry(package.to_owned()).or_insert((path.to_owned(), index + 1));
            }
        }
    }
    let mut problems = Vec::new();
    for (name, places) in crates.iter().filter(|(_, places)| places.len() > 1) {
        for (package, (path, line)) in places {
            let others: Vec<&str> =
                places.keys().filter(|other| *other != package).map(String::as_str).collect();
            let what = format!("public type `{name}` is also one of {}", others.join(", "));
            problems.push(Problem::line(path, *line, what));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        let mut lists = Lists::parse(include_str!("words.toml")).unwrap();
        lists.skip.clear();
        lists
    }

    fn check(files: &[(&str, &str)], expect: &[&str]) {
        let found = findings(&Layout::of(files), &lists(), |_| true);
        let found: Vec<String> = found.iter().map(|problem| problem.to_string()).collect();
        let short = |text: &String| text.split(": write").next().unwrap_or_default().to_owned();
        assert_eq!(found.iter().map(short).collect::<Vec<_>>(), expect, "{files:?}");
    }

    #[test]
    fn denied_phrases_are_found_in_comments_strings_and_documents() {
        check(
            &[("a.rs", "/// It goes on.\nfn f() { g(\"cut anew\"); }\n")],
            &["a.rs:1: `goes on`", "a.rs:2: `anew`"],
        );
        check(&[("a.md", "It goes\non. `anew`\n\n```\nanew\n```\n")], &["a.md:1: `goes on`"]);
        check(&[("a.rs", "let anew = behind(beside);\n")], &[]);
    }

    #[test]
    fn phrases_end_at_punctuation() {
        check(&[("a.rs", "// It goes. On and on.\n// comes; to\n")], &[]);
        check(&[("a.rs", "// It is held\n// against it.\n")], &["a.rs:1: `held against`"]);
    }

    #[test]
    fn sentence_beginnings_are_found_in_comments_and_documents() {
        check(
            &[("a.rs", "/// Of a row. What it has,\n/// Where it is.\n")],
            &["a.rs:1: `Of`", "a.rs:1: `What`"],
        );
        check(&[("a.rs", "let x = \"What is it\"; // Of it.\n")], &["a.rs:1: `Of`"]);
        check(
            &[("a.md", "The rest. Where it is.\n- What else\n")],
            &["a.md:1: `Where`", "a.md:2: `What`"],
        );
    }

    #[test]
    fn allow_comments_allow_their_line_and_the_next() {
        let text = "// words: allow(beside, behind)\n// beside\n// beside behind\n";
        check(&[("a.rs", text)], &["a.rs:3: `beside`", "a.rs:3: `behind`"]);
    }

    #[test]
    fn names_are_found_where_they_are_defined() {
        let text = "pub(crate) struct Told;\nenum GuestList {}\npub async fn go_on_now() {}\nmod behind;\nlet x = Told;\nstruct Hold;\n";
        check(
            &[("a.rs", text)],
            &[
                "a.rs:1: struct `Told`",
                "a.rs:2: enum `GuestList`",
                "a.rs:3: fn `go_on_now`",
                "a.rs:4: mod `behind`",
            ],
        );
    }

    #[test]
    fn files_that_use_a_technique_name_it() {
        let code = "asm(\"cp.async.bulk.tensor.2d\");\n";
        check(&[("a.cu", code)], &["a.cu:1: uses `cp.async.bulk.tensor` and no comment names TMA"]);
        check(&[("a.cu", &format!("// By TMA.\n{code}"))], &[]);
    }

    #[test]
    fn public_types_of_two_crates_have_two_names() {
        let files = [
            ("crates/a/src/lib.rs", "pub struct Plan;\npub(crate) struct Row;\n"),
            ("crates/b/src/lib.rs", "\npub enum Plan {}\npub struct Row;\n"),
            ("crates/b/tests/x.rs", "pub struct Plan;\n"),
        ];
        check(
            &files,
            &[
                "crates/a/src/lib.rs:1: public type `Plan` is also one of b",
                "crates/b/src/lib.rs:2: public type `Plan` is also one of a",
            ],
        );
    }

    #[test]
    fn released_sections_of_the_changelog_are_not_checked() {
        let text =
            "# Changelog\n\n## [Unreleased]\n\n- It goes on.\n\n## [0.1.0]\n\n- It goes on.\n";
        check(&[("CHANGELOG.md", text)], &["CHANGELOG.md:5: `goes on`"]);
    }

    #[test]
    fn paths_are_folders_or_files() {
        assert!(
            below("src/a.rs", "src") && below("src/a.rs", "src/a.rs") && below("src/a", "src/")
        );
        assert!(!below("src2/a.rs", "src") && !below("src/a.rs", "src/a"));
    }
}
