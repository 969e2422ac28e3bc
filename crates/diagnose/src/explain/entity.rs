//! Entities of a text: modules, symbols, libraries, error codes and the like, each resolved with the facts of this
//! machine and its environments. One module per kind, one table of kinds.
//!
//! A kind lists the forms in which programs print it. A form is a [`Pattern`], which also matches wrapped, coloured and
//! logged texts, and a function that resolves one mention.

mod advice;
pub(super) mod build_error;
mod capability;
mod command;
mod compiled_module;
mod compiler;
mod driver_log;
mod errno;
pub(super) mod exception;
mod exit_status;
mod gpu_error;
mod installed_path;
mod memory;
mod message;
mod model_support;
mod name_lookup;
mod network;
mod other_vendor;
mod package_versions;
mod python_call;
mod python_name;
mod resolver;
mod shared_library;
mod symbol;
mod wheel_platform;
mod xid;

use super::cause::{Cause, Certainty};
use crate::rules::PastedError;
use crate::text::{Pasted, Pattern, PatternMatch};
use facts::CompactSort;
use facts::Evidence;
pub use name_lookup::NameLookup;
use std::borrow::Cow;
use std::sync::OnceLock;

/// One thing that a text names, and the known facts about it.
#[derive(Debug, Clone)]
pub struct Entity {
    /// Its kind: `python-name`, `xid`, `cuda-error`.
    pub kind: &'static str,
    /// The thing itself: `flash_attn.flash_attn_func`, `Xid 145`.
    pub name: String,
    /// Meaning and cause in sentences; empty if the text only names the entity.
    pub meaning: String,
    /// Facts of this machine and its environments about it.
    pub evidence: Vec<Evidence>,
    /// The possible causes; empty if the words have one meaning.
    pub causes: Vec<Cause>,
    /// Commands that are right under every cause.
    pub fix: Vec<String>,
    /// Distributions it belongs to.
    pub packages: Vec<String>,
    /// The question to a package index whose answer tells the causes apart.
    pub name_lookup: Option<NameLookup>,
    /// The rule about it, if there is one.
    pub rule: Option<&'static str>,
    /// Rules whose message is in the text for another reason.
    pub(super) excludes: Vec<&'static str>,
    /// Whether the facts here agree with the text; `None` if they cannot decide.
    pub confirmed_here: Option<bool>,
    /// The entity with the highest rank among those of one rule is shown first.
    pub(super) rank: u32,
    /// The first byte in the squeezed text, and one past the last.
    pub(super) span: (usize, usize),
}

impl Entity {
    /// An entity without a meaning.
    fn new(kind: &'static str, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
            meaning: String::new(),
            evidence: Vec::new(),
            fix: Vec::new(),
            packages: Vec::new(),
            name_lookup: None,
            rule: None,
            excludes: Vec::new(),
            causes: Vec::new(),
            confirmed_here: None,
            rank: 0,
            span: (0, 0),
        }
    }

    fn meaning(mut self, words: impl Into<String>) -> Self {
        self.meaning = words.into();
        self
    }

    fn evidence(mut self, what: impl Into<String>, source: impl Into<String>) -> Self {
        self.evidence.push(Evidence { what: what.into(), source: source.into() });
        self
    }

    fn fix<S: Into<String>>(mut self, lines: impl IntoIterator<Item = S>) -> Self {
        self.fix.extend(lines.into_iter().map(Into::into));
        self
    }

    fn causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes.extend(causes);
        self
    }

    fn package(mut self, name: impl Into<String>) -> Self {
        let name = facts::Dist::normalise(&name.into());
        if !name.is_empty() && !self.packages.contains(&name) {
            self.packages.push(name);
        }
        self
    }

    fn rule(mut self, id: &'static str) -> Self {
        self.rule = Some(id);
        self
    }

    fn excludes<S: AsRef<str>>(mut self, rules: &'static [S]) -> Self {
        self.excludes.extend(rules.iter().map(AsRef::as_ref));
        self
    }

    fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    fn confirmed(mut self, here: Option<bool>) -> Self {
        self.confirmed_here = here;
        self
    }

    /// The certainty of its cause.
    pub fn certainty(&self) -> Certainty {
        let shown = self.causes.iter().any(|cause| cause.confirmed_here == Some(true));
        Certainty::of(self.confirmed_here.or(shown.then_some(true)), &self.causes)
    }

    /// Whether its words have one meaning only. It is then shown before rules that are only possible.
    pub fn is_specific(&self) -> bool {
        self.rank >= SPECIFIC
    }

    /// Whether it is an error of a file system, a network, a resolver or a build, which stops an installation.
    pub(super) fn stops_installs(&self) -> bool {
        let kinds = ["errno", "network", "resolver", "compiler", "build-error"];
        self.answers() && kinds.contains(&self.kind)
    }

    /// Whether it explains the text, and does not only appear in it.
    pub fn answers(&self) -> bool {
        !self.meaning.is_empty()
    }
}

/// The sentences of an error line and of its message's next lines that tell the reader what to do.
pub(super) fn advice_in(message: &str) -> Option<String> {
    advice::of_message(message)
}

/// The possible causes of a class of codes as commands.
pub(super) fn list_causes(seen: &PastedError, class: &str) -> Vec<String> {
    let advice = knowledge::gpu_codes::advice(class);
    advice.map_or_else(Vec::new, |advice| message::listed(seen, &advice.causes))
}

/// The kind of the entity that restates the root error if no other kind explains it.
pub(super) const STATED: &str = "exception";

/// The kind of a process that a signal ended, which anything else in the text explains better.
pub(super) const EXIT_STATUS: &str = "exit-status";

/// The least rank of an entity whose words have one meaning only.
const SPECIFIC: u32 = 4;

/// One form in which an entity is printed.
struct Form {
    pattern: Cow<'static, str>,
    /// A row of the kind's table, for kinds that have one.
    key: &'static str,
    /// Resolves one mention; `None` if the mention is something else.
    read: fn(&PastedError, &'static str) -> Option<Entity>,
}

/// A form that is not from a table.
fn form(pattern: &'static str, read: fn(&PastedError, &'static str) -> Option<Entity>) -> Form {
    Form { pattern: Cow::Borrowed(pattern), key: "", read }
}

/// A form of one row of a table.
fn keyed(
    pattern: impl Into<Cow<'static, str>>,
    key: &'static str,
    read: fn(&PastedError, &'static str) -> Option<Entity>,
) -> Form {
    Form { pattern: pattern.into(), key, read }
}

/// The kinds. Within a kind, more specific forms come first.
const KINDS: [fn() -> Vec<Form>; 21] = [
    message::forms,
    driver_log::forms,
    xid::forms,
    memory::forms,
    other_vendor::forms,
    gpu_error::forms,
    capability::forms,
    compiler::forms,
    package_versions::forms,
    python_name::forms,
    python_call::forms,
    symbol::forms,
    shared_library::forms,
    wheel_platform::forms,
    resolver::forms,
    network::forms,
    errno::forms,
    exit_status::forms,
    command::forms,
    model_support::forms,
    installed_path::forms,
];

/// Maximum number of mentions of one form in a text; a log repeats itself.
const MAX_MENTIONS: usize = 24;

fn known() -> &'static [Vec<(Form, Pattern)>] {
    static KNOWN: OnceLock<Vec<Vec<(Form, Pattern)>>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let compiled = |form: Form| {
            let pattern = Pattern::new(&form.pattern);
            (form, pattern)
        };
        KINDS.iter().map(|forms| forms().into_iter().map(compiled).collect()).collect()
    })
}

/// Every entity of a text, in its order, each once. `spaced` is the same text with single spaces.
pub(super) fn entities(pasted: &Pasted, seen: &PastedError) -> Vec<Entity> {
    let mut all: Vec<Entity> = Vec::new();
    for kind in known() {
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut own: Vec<Entity> = Vec::new();
        for (form, pattern) in kind {
            for found in pasted.find_all(pattern, MAX_MENTIONS) {
                let PatternMatch { start, end, words, .. } = found;
                if taken.iter().any(|(from, to)| start < *to && *from < end) {
                    continue;
                }
                let mention = PastedError { context: seen.context, text: seen.text, words };
                let Some(mut entity) = (form.read)(&mention, form.key) else { continue };
                taken.push((start, end));
                entity.span = (start, end);
                if !own.iter().any(|known| known.name == entity.name) {
                    own.push(entity);
                }
            }
        }
        all.append(&mut own);
    }
    all.compact_sort_by_key(|entity| (!entity.answers(), entity.span.0));
    all
}

#[cfg(test)]
mod tests {
    use super::{KINDS, Pattern};

    #[test]
    fn forms_are_specific() {
        for form in KINDS.iter().flat_map(|forms| forms()) {
            let letters = form.pattern.chars().filter(|c| c.is_alphanumeric()).count();
            let whole_line = form.pattern.starts_with('^') && form.pattern.ends_with('$');
            assert!(letters >= 7 || whole_line && letters >= 6, "{:?}", form.pattern);
            let _ = Pattern::new(&form.pattern);
        }
    }
}
