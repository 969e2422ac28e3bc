//! Messages of common libraries: what they mean and what to do, by the words that the library prints.

use crate::Source;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// Words of a message as a pattern, and a line as it was printed; the line is empty in release builds.
#[derive(Debug, Deserialize)]
pub struct Words(pub String, #[serde(default)] pub String);

impl Words {
    /// The pattern, in the notation of `diagnose::Text`.
    pub fn pattern(&self) -> &str {
        &self.0
    }

    /// A line that the pattern fits.
    pub fn sample(&self) -> &str {
        &self.1
    }
}

/// One of the causes of an error, the commands that tell it from the others, and its remedy; commands as in [`Message::fix`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseRow {
    /// What is wrong, in one sentence.
    pub cause: String,
    /// Commands that tell it from the other causes.
    #[serde(default)]
    pub check: Vec<String>,
    /// Commands for this cause alone.
    #[serde(default)]
    pub fix: Vec<String>,
}

/// One kind of message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The library and what happened, in a few words; unique.
    pub name: String,
    /// The forms in which it is printed.
    pub texts: Vec<Words>,
    /// What the words say, and the cause where they have one alone. A `{name}` is a word of the pattern.
    pub meaning: String,
    /// The causes that the words leave possible; empty where they have one alone.
    #[serde(default)]
    pub causes: Vec<CauseRow>,
    /// Commands that are right under every cause, with `{name}` for words of the pattern. Lines that begin with `pip `, `upgrade `, `remove ` and `reinstall ` name
    /// packages, `system ` those of Debian and of Red Hat (parted by ` | `); each becomes the command of the environment or machine.
    #[serde(default)]
    pub fix: Vec<String>,
    /// Distributions that the message is about.
    #[serde(default)]
    pub packages: Vec<String>,
    /// How surely it is the cause: 4 and more for words with one meaning, less for what follows from another error.
    #[serde(default = "specific")]
    pub rank: u32,
    /// Words of which the text has to have one, where the message alone is also printed by others.
    #[serde(default)]
    pub with: Vec<String>,
    /// Words of which the text must have none, where they tell more.
    #[serde(default)]
    pub without: Vec<String>,
    /// Rules whose words are in the message for another reason.
    #[serde(default)]
    pub excludes: Vec<String>,
    /// Where the words were read.
    pub source: Source,
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

/// The kind of this name.
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
    fn each_kind_has_one_name_and_says_what_to_do() {
        let names: BTreeSet<&str> =
            messages().iter().map(|message| message.name.as_str()).collect();
        assert_eq!(names.len(), messages().len());
        for message in messages() {
            assert!(!message.texts.is_empty(), "{}", message.name);
            let told = !message.fix.is_empty() || !message.causes.is_empty();
            assert!(told || message.rank < 4, "{}", message.name);
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
