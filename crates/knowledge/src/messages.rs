//! Error messages of common libraries, their meaning and remedy, found by the text that the library prints.

use crate::Citation;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// The pattern of a message and a printed line that it matches; the line is empty in release builds.
#[derive(Debug, Deserialize)]
pub struct MessagePattern(pub String, #[serde(default)] pub String);

impl MessagePattern {
    /// The pattern, in the syntax of `diagnose::Text`.
    pub fn pattern(&self) -> &str {
        &self.0
    }

    /// A printed line that the pattern matches.
    pub fn sample(&self) -> &str {
        &self.1
    }
}

/// One possible cause of an error. Its commands are written as in [`Message::fix`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseRow {
    /// The cause, in one sentence.
    pub cause: String,
    /// Evidence in the text that puts this cause first. Each entry has to hold: one of its substrings, separated by `|`, is in the text,
    /// or none of them after a `!`. A `{name}` in a substring captures a word for the row; without it, the row is left out.
    #[serde(default)]
    pub first_if: Vec<String>,
    /// Commands that distinguish it from the other causes.
    #[serde(default)]
    pub check: Vec<String>,
    /// Commands that fix this cause only.
    #[serde(default)]
    pub fix: Vec<String>,
}

/// One kind of message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The library and the event, in a few words; unique.
    pub name: String,
    /// The texts in which it is printed.
    pub texts: Vec<MessagePattern>,
    /// The meaning of the message, and the cause if there is only one. `{name}` is replaced by a capture of the pattern.
    pub meaning: String,
    /// The possible causes; empty if there is only one.
    #[serde(default)]
    pub causes: Vec<CauseRow>,
    /// Commands that are right for every cause; `{name}` is replaced by a capture of the pattern. A line that begins with `pip `,
    /// `upgrade `, `remove ` or `reinstall ` names Python packages; one with `system ` names the packages of Debian and of Red Hat,
    /// separated by ` | `. Each becomes the command of the environment or machine.
    #[serde(default)]
    pub fix: Vec<String>,
    /// Distributions that the message is about.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Rank among several matching messages: 4 or more for a text with one meaning, less for the consequence of another error.
    #[serde(default = "specific")]
    pub rank: u32,
    /// If other programs also print the message: substrings of which the text must contain one.
    #[serde(default)]
    pub with: Vec<String>,
    /// Substrings that the text must not contain, because they identify a more specific message.
    #[serde(default)]
    pub without: Vec<String>,
    /// Rules whose texts occur in the message for another reason.
    #[serde(default)]
    pub excludes: Vec<String>,
    /// Source of the texts.
    pub source: Citation,
}

impl Message {
    /// Whether a command of the row itself installs this distribution.
    pub fn installs(&self, name: &str) -> bool {
        let causes = self.causes.iter().flat_map(|cause| &cause.fix);
        let lines = self.fix.iter().chain(causes);
        let install = |line: &&String| {
            ["pip ", "upgrade ", "reinstall "].iter().any(|verb| line.starts_with(verb))
        };
        lines.filter(install).flat_map(|line| line.split_whitespace().skip(1)).any(|word| {
            let end = |c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c));
            let word = word.trim_start_matches(['\'', '"']);
            word[..word.find(end).unwrap_or(word.len())].eq_ignore_ascii_case(name)
        })
    }
}

fn specific() -> u32 {
    4
}

static MESSAGES: LazyLock<Vec<Message>> = LazyLock::new(|| {
    [
        table!("messages_torch.toml"),
        table!("messages_packages.toml"),
        table!("messages_serving.toml"),
        table!("messages_frameworks.toml"),
        table!("messages_machine.toml"),
    ]
    .into_iter()
    .flat_map(|text| rows(text, "message"))
    .collect()
});

/// Every kind of message.
pub fn messages() -> &'static [Message] {
    &MESSAGES
}

/// The kind with this name.
pub fn message(name: &str) -> Option<&'static Message> {
    MESSAGES.iter().find(|message| message.name == name)
}

#[cfg(test)]
mod tests {
    use super::{Message, messages};
    use crate::table::rows;
    use std::collections::BTreeSet;

    include!("../strip.rs");

    #[test]
    fn stripped_tables_have_the_same_patterns_and_no_samples() {
        let full = crate::packed::text("messages_torch.toml");
        let (full, stripped): (Vec<Message>, Vec<Message>) =
            (rows(full, "message"), rows(&without_samples(full), "message"));
        assert_eq!(full.len(), stripped.len());
        for (full, stripped) in full.iter().zip(&stripped) {
            assert_eq!(full.texts.len(), stripped.texts.len(), "{}", full.name);
            for (one, other) in full.texts.iter().zip(&stripped.texts) {
                assert_eq!(one.pattern(), other.pattern());
                assert!(!one.sample().is_empty() && other.sample().is_empty(), "{}", full.name);
            }
            assert_eq!(full.meaning, stripped.meaning);
        }
    }

    #[test]
    fn each_kind_has_a_unique_name_and_a_remedy() {
        let names: BTreeSet<&str> =
            messages().iter().map(|message| message.name.as_str()).collect();
        assert_eq!(names.len(), messages().len());
        for message in messages() {
            assert!(!message.texts.is_empty(), "{}", message.name);
            let has_remedy = !message.fix.is_empty() || !message.causes.is_empty();
            assert!(has_remedy || message.rank < 4, "{}", message.name);
            assert_ne!(message.causes.len(), 1, "{}: one cause is the meaning", message.name);
            for cause in &message.causes {
                assert!(cause.cause.ends_with('.'), "{}: {}", message.name, cause.cause);
                let decided = !cause.check.is_empty() || !cause.fix.is_empty();
                assert!(decided, "{}: nothing decides {:?}", message.name, cause.cause);
            }
            assert!(message.meaning.ends_with('.'), "{}", message.name);
        }
    }
}
