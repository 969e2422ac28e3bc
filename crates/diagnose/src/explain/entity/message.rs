//! Messages of common libraries, by the table of [`knowledge::messages`].

use super::{Entity, Form, keyed};
use crate::explain::cause::Cause;
use crate::explain::modules;
use crate::gpu;
use crate::host;
use crate::rules::PastedError;
use facts::{CompactSort, RemedyStep};
use knowledge::messages::{self, CauseRow, Message};

pub(super) fn forms() -> Vec<Form> {
    let of = |message: &'static Message| {
        message.texts.iter().map(|words| keyed(words.pattern(), &message.name, read))
    };
    messages::messages().iter().flat_map(of).collect()
}

fn read(seen: &PastedError, name: &'static str) -> Option<Entity> {
    let message = messages::message(name)?;
    let shown = |words: &String| seen.text.contains(words.as_str());
    let with = message.with.is_empty() || message.with.iter().any(shown);
    (with && !message.without.iter().any(shown)).then_some(())?;
    let mut entity = Entity::new("message", name)
        .meaning(filled(seen, &message.meaning))
        .excludes(&message.excludes)
        .rank(message.rank);
    entity.causes = causes(seen, &message.causes);
    for line in &message.fix {
        entity = entity.fix(command(seen, &filled(seen, line)));
    }
    for package in &message.packages {
        let package = filled(seen, package);
        if let Some((_, dist)) = modules::installed(seen, &package) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        entity = entity.package(package);
    }
    Some(entity)
}

/// The causes of a table's row, filled with the words of the text and the commands of the environment. A cause for which the
/// text has evidence comes first.
pub(super) fn causes<'a>(
    seen: &PastedError,
    rows: impl IntoIterator<Item = &'a CauseRow>,
) -> Vec<Cause> {
    let mut all = Vec::new();
    for row in rows {
        let found = evidence(seen.text, &row.first_if);
        if found.is_none() && row.first_if.iter().any(|part| part.contains('{')) {
            continue;
        }
        let mut words = seen.words.clone();
        let first = found.is_some();
        words.extend(found.into_iter().flatten());
        let seen = PastedError { context: seen.context, text: seen.text, words };
        let commands = |lines: &[String]| -> Vec<String> {
            lines.iter().filter_map(|line| command(&seen, &filled(&seen, line))).collect()
        };
        let cause = Cause::new(filled(&seen, &row.cause));
        all.push((!first, cause.check(commands(&row.check)).fix(commands(&row.fix))));
    }
    all.compact_sort_by_key(|(later, _)| *later);
    all.into_iter().map(|(_, cause)| cause).collect()
}

/// The words that the parts of [`CauseRow::first_if`] capture, if the text has every part.
fn evidence(text: &str, parts: &[String]) -> Option<Vec<(String, String)>> {
    let mut words = Vec::new();
    for part in parts {
        if let Some(absent) = part.strip_prefix('!') {
            if absent.split('|').any(|word| text.contains(word)) {
                return None;
            }
            continue;
        }
        let found = part.split('|').find_map(|word| match captured(text, word) {
            Some(capture) => Some(Some(capture)),
            None => text.contains(word).then_some(None),
        });
        words.extend(found?);
    }
    (!parts.is_empty()).then_some(words)
}

/// The name and the word of `Using {interface}:` in a text.
fn captured(text: &str, pattern: &str) -> Option<(String, String)> {
    let (before, rest) = pattern.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    let rest = &text[text.find(before)? + before.len()..];
    let word = &rest[..rest.find(after)?];
    let whole = !word.is_empty() && !word.contains(' ');
    whole.then(|| (name.to_owned(), word.to_owned()))
}

/// The causes as commands, each after a comment that states it.
pub(super) fn listed(seen: &PastedError, rows: &'static [CauseRow]) -> Vec<String> {
    let mut lines = Vec::new();
    for Cause { cause, check, fix, .. } in causes(seen, rows) {
        lines.push(format!("# {}:", cause.trim_end_matches('.')));
        lines.extend(check.into_iter().chain(fix));
    }
    lines
}

/// A text of the table, filled with the words of the pasted message; `{python}` is the interpreter that a remedy uses.
fn filled(seen: &PastedError, text: &str) -> String {
    let mut filled = text.replace("{python}", &seen.installer().python());
    for (name, word) in &seen.words {
        let word = word.trim_end_matches(['.', ',', ':', ';', '\'']);
        filled = filled.replace(&format!("{{{name}}}"), word);
    }
    // CUDA 13 has no code for GPUs before Turing.
    if filled.contains("cuda13") && gpu::is_before_turing(seen.machine(), seen.text) {
        filled = filled.replace("cuda13", "cuda12");
    }
    filled
}

/// A line of the table as a command of the environment or of the machine.
fn command(seen: &PastedError, line: &str) -> Option<String> {
    let installer = seen.installer();
    let Some((word, rest)) = line.split_once(' ') else { return Some(line.to_owned()) };
    let (rest, remark) = rest.split_once("  # ").unwrap_or((rest, ""));
    let specs = || -> Vec<String> { rest.split_whitespace().map(str::to_owned).collect() };
    let names: Vec<&str> = rest.split_whitespace().collect();
    let step: RemedyStep = match word {
        "pip" => installer.install(&specs(), None),
        "upgrade" => installer.install(&specs(), None).upgraded(),
        "remove" => installer.uninstall(&names),
        "reinstall" => installer.reinstall(&names),
        "system" => {
            let (debian, red_hat) = rest.split_once(" | ").unwrap_or((rest, rest));
            return Some(host::install_package(seen.machine(), debian, red_hat));
        }
        _ => return Some(line.to_owned()),
    };
    let step = String::from(step);
    // A name from the text may be that of a folder or of an unrelated package on PyPI.
    let unknown = names.iter().find(|name| !modules::is_distribution(seen, name));
    if let (Some(name), true) = (unknown, matches!(word, "pip" | "upgrade" | "reinstall")) {
        return Some(format!("# if {name} is the name of its package: {step}"));
    }
    Some(if remark.is_empty() { step } else { format!("{step}  # {remark}") })
}

#[cfg(test)]
mod tests {
    use super::evidence;
    use crate::explain::{Leader, explain_text};
    use crate::test_support::machines;
    use crate::text::{Pasted, Pattern};
    use knowledge::messages::messages;

    #[test]
    fn evidence_needs_every_part_and_captures_words() {
        let parts =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let text = "Bootstrap : Using bond0:192.168.1.161<0> Using [1]br-05:172.19.0.1<0>";
        let rows = parts(&["]docker|]br-", "!Using docker", "Using {interface}:"]);
        assert_eq!(evidence(text, &rows), Some(vec![("interface".into(), "bond0".into())]));
        assert_eq!(evidence(text, &parts(&["]br-", "!Using bond"])), None);
        assert_eq!(evidence(text, &parts(&["]br-", "WSL"])), None);
        assert_eq!(evidence(text, &parts(&["WSL|]br-"])), Some(Vec::new()));
        assert_eq!(evidence(text, &[]), None);
    }

    #[test]
    fn cuda_13_is_not_offered_to_gpus_before_turing() {
        let error = "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR";
        let fix = |text: &str| {
            let found = explain_text(text, &machines::x86(), &[], &[]);
            let Some(Leader::Entity(entity)) = found.leader() else { panic!("no entity") };
            entity.causes.iter().flat_map(|cause| cause.fix.clone()).collect::<String>()
        };
        assert!(fix(error).contains("cuda13"));
        let old = fix(&format!("The GPU, Quadro M1000M, is quite old (Maxwell arch).\n{error}"));
        assert!(old.contains("cuda12") && !old.contains("cuda13"), "{old}");
    }

    #[test]
    fn each_pattern_fits_its_sample() {
        let misfits: Vec<&str> = messages()
            .iter()
            .flat_map(|message| &message.texts)
            .filter(|words| {
                Pasted::new(words.sample()).find_all(&Pattern::new(words.pattern()), 1).is_empty()
            })
            .map(|words| words.pattern())
            .collect();
        assert!(misfits.is_empty(), "{misfits:#?}");
    }

    #[test]
    fn each_sample_is_explained_by_its_message_first() {
        let mut failed = Vec::new();
        for message in messages() {
            for words in &message.texts {
                let found = explain_text(words.sample(), &machines::x86(), &[], &[]);
                let first = match found.leader() {
                    Some(Leader::Entity(entity)) => entity.name.clone(),
                    Some(Leader::Rule(found)) => format!("rule {}", found.rule.id),
                    None => String::new(),
                };
                let also = found.entities.iter().any(|entity| entity.name == message.name);
                if first != message.name && (message.rank >= 4 || !also) {
                    failed.push(format!("{}: {:?} leads to {first}", message.name, words.sample()));
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }

    #[test]
    fn no_word_of_a_pattern_stays_unfilled() {
        for message in messages() {
            for words in &message.texts {
                let found = explain_text(words.sample(), &machines::x86(), &[], &[]);
                for entity in found.entities.iter().filter(|entity| entity.kind == "message") {
                    let shown = format!("{} {}", entity.meaning, entity.fix.join(" "));
                    let unfilled = shown.split('{').skip(1).find(|rest| {
                        let name = rest.split('}').next().unwrap_or("");
                        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase())
                    });
                    assert!(unfilled.is_none(), "{}: {shown}", entity.name);
                }
            }
        }
    }
}
