//! Explains a pasted text: the rules whose messages it contains, the entities that it names, and the doctor's findings
//! about the packages among them. A rule is found by its own message or by an entity, such as an Xid number.

mod answer_level;
mod cause;
mod entity;
mod error_lines;
mod modules;
mod rule_match;
mod similar;
mod subjects;

use self::answer_level::{AnswerKind, AnswerLevel};
use self::error_lines::{ErrorLine, Kind};
use self::rule_match::{RuleMatch, judge};
use self::subjects::{PLAIN_WORDS, environments_of, named_in, names_in};
use crate::access;
use crate::host;
use crate::oom::{self, OutOfMemory};
use crate::rules::{Context, PastedError, RULES, Role, Rule};
use crate::text::{Pasted, Pattern, Text};
use facts::CompactSort;
use facts::{Dist, Evidence, Finding, Machine, PyEnv, Severity};
use std::borrow::Cow;
use std::sync::OnceLock;

pub use cause::{Cause, Certainty};
pub use entity::{Entity, NameLookup};
pub(crate) use modules::{PARTS, provider};

/// The explanation of a text.
#[derive(Debug)]
pub struct Explanation {
    /// The rules that the text matches.
    pub matches: Vec<Match>,
    /// The entities that it names, except those that a match explains; those with a meaning come first.
    pub entities: Vec<Entity>,
    /// The doctor's errors and warnings about packages that the text names, except those of a match.
    pub findings: Vec<Finding>,
    /// The most similar rules, if nothing else is known.
    pub similar: Vec<&'static Rule>,
    /// The memory that the text reports as exhausted (row R1-05).
    pub out_of_memory: Option<OutOfMemory>,
    /// The errors of the text, in its order.
    errors: Vec<ErrorLine>,
    /// The lines of Python's warnings, as spans of the squeezed text.
    warnings: Vec<(usize, usize)>,
    /// The mentions of what stopped an installation, if the root error is a missing module.
    failed_install: Vec<(usize, usize)>,
}

/// The answer to show first.
#[derive(Debug, Clone, Copy)]
pub enum Leader<'a> {
    /// A rule.
    Rule(&'a Match),
    /// An entity.
    Entity(&'a Entity),
}

impl Leader<'_> {
    /// How sure the answer is of its cause.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Rule(found) => found.certainty(),
            Self::Entity(entity) => entity.certainty(),
        }
    }
}

impl Explanation {
    /// The answer to show first: one whose cause the files here confirm, else one about the root error of the text.
    /// Among equals, an entity whose words have one meaning comes before a rule that the files do not refute, another
    /// entity with a meaning, and any other rule.
    pub fn leader(&self) -> Option<Leader<'_>> {
        let root = error_lines::root(&self.errors);
        let chain = root.map_or_else(Vec::new, |root| error_lines::chain(&self.errors, root));
        let level = |span: (usize, usize), kind: AnswerKind| {
            let Some(root) = root else { return AnswerLevel::Root(kind) };
            if span.0 < root.span.0 && self.failed_install.contains(&span) {
                return AnswerLevel::FailedInstall(kind);
            }
            let earlier = span.0 < root.span.0 && kind == AnswerKind::Rule;
            if earlier || chain.iter().any(|error| error.overlaps(span)) {
                return AnswerLevel::Root(kind);
            }
            if self.is_in_warning(span) {
                return AnswerLevel::Notice(kind);
            }
            // CMake prints the output of the program that it ran after its own line.
            let nested = root.kind == Kind::Build && root.message.starts_with("CMake Error");
            let traced = !root.frames.is_empty() || root.kind == Kind::Build;
            match self.errors.iter().find(|error| error.overlaps(span)) {
                Some(error) if error.kind == Kind::Wrapper => AnswerLevel::Notice(kind),
                Some(error) if nested && error.kind == Kind::Build => AnswerLevel::Root(kind),
                Some(_) if traced => AnswerLevel::Later(kind),
                Some(_) => AnswerLevel::OtherError(kind),
                None => AnswerLevel::Plain(kind),
            }
        };
        let of_match = |found: &Match| match (found.confirmed_here, found.rule.role) {
            (Some(false), _) => AnswerLevel::Refuted,
            (_, Role::Cause) if found.confirmed_here == Some(true) => AnswerLevel::Confirmed,
            (_, Role::Cause)
                if found.by_entity && root.is_some() && self.is_in_warning(found.span) =>
            {
                AnswerLevel::Notice(AnswerKind::Rule)
            }
            (_, Role::Cause) => level(found.span, AnswerKind::Rule),
            _ => AnswerLevel::Consequence,
        };
        let of_entity = |entity: &Entity| match entity.kind {
            entity::STATED | entity::EXIT_STATUS => AnswerLevel::Stated,
            _ if entity.is_specific() => level(entity.span, AnswerKind::SpecificEntity),
            _ => level(entity.span, AnswerKind::Entity),
        };
        let matches = self.matches.iter().map(|found| (of_match(found), Leader::Rule(found)));
        let answers = self.entities.iter().filter(|entity| entity.answers());
        let entities = answers.map(|entity| (of_entity(entity), Leader::Entity(entity)));
        matches.chain(entities).min_by_key(|(level, _)| *level).map(|(_, leader)| leader)
    }

    fn is_in_warning(&self, span: (usize, usize)) -> bool {
        self.warnings.iter().any(|line| span.0 < line.1 && line.0 < span.1)
    }

    /// Whether the text is explained.
    pub fn answers(&self) -> bool {
        !self.matches.is_empty()
            || !self.findings.is_empty()
            || self.entities.iter().any(Entity::answers)
    }
}

/// One rule that a pasted text matches.
#[derive(Debug)]
pub struct Match {
    /// The rule.
    pub rule: &'static Rule,
    /// The case of the rule that an entity of the text names, such as one Xid number; `None` for the rule as a whole.
    pub meaning: Option<String>,
    /// The best matching pattern of the rule; empty if the rule was requested by name.
    pub pattern: &'static str,
    /// The findings of the rule on this machine, worst first.
    pub findings: Vec<Finding>,
    /// The observations on this machine, for or against the cause.
    pub evidence: Vec<Evidence>,
    /// Whether the files here agree: `Some(true)` if the rule finds something, `Some(false)` if it checked and found
    /// nothing, `None` if it cannot see the cause in files, or if the files that it checks are not here.
    pub confirmed_here: Option<bool>,
    /// Commands for this machine and environment.
    pub fix: Vec<String>,
    /// The usual commands for the machine that the text is from, if this machine's files refute the cause.
    pub fix_elsewhere: Vec<String>,
    /// Other causes with the same message; empty if the files here confirm this one.
    pub causes: Vec<Cause>,
    /// The first byte in the squeezed text, and one past the last.
    span: (usize, usize),
    /// Whether an entity led to the rule, and not one of the rule's messages.
    by_entity: bool,
}

impl Match {
    /// How sure the match is of its cause.
    pub fn certainty(&self) -> Certainty {
        Certainty::of(self.confirmed_here, &self.causes)
    }
}

/// Words that package managers print before the name of a package.
const INSTALLS: [&str; 7] = [
    "Collecting ",
    "(from ",
    "nstalling ",
    "nstall ",
    "packages: ",
    "building wheel for ",
    "Failed to build ",
];

/// Explains a text with the facts of this machine and its environments, and the doctor's findings about them.
pub fn explain_text(
    text: &str,
    machine: &Machine,
    envs: &[PyEnv],
    findings: &[Finding],
) -> Explanation {
    let pasted = Pasted::new(text);
    let spaced = pasted.spaced();
    let meant = environments_of(&spaced, envs);
    let context = Context { machine, envs: &meant };
    let errors = error_lines::read(&pasted);
    let place = place_of(&spaced, machine);
    let named = Context { machine: &place, envs: &meant };
    let (matches, mut entities) = read(&pasted, &spaced, context, named);
    if let Some(found) = error_lines::root(&errors) {
        let root = &ErrorLine { message: found.whole_message(&pasted), ..found.clone() };
        let advice = entity::advice_in(&pasted.written_line(found.span.0, found.span.1));
        let seen = PastedError { context: named, text: &spaced, words: Vec::new() };
        let chain = error_lines::chain(&errors, found);
        entities.extend(match root.kind {
            Kind::Build => entity::build_error::of_root(&seen, root),
            _ => entity::exception::of_root(&seen, root, &chain, advice),
        });
    }
    let named: Vec<&String> = entities.iter().flat_map(|entity| &entity.packages).collect();
    let findings = about(findings, &named, &spaced, envs)
        .filter(|finding| !matches.iter().any(|found| found.rule.id == finding.rule))
        .cloned()
        .collect();
    entities.retain(|entity| entity.rule.is_none());
    let out_of_memory = oom::first_in(&spaced);
    let similar = Vec::new();
    let warnings = if errors.is_empty() { Vec::new() } else { error_lines::warnings(&pasted) };
    let missing = error_lines::root(&errors)
        .filter(|root| root.class == "ModuleNotFoundError")
        .and_then(|root| root.message.split('\'').nth(1)?.split('.').next());
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let names = |words: String| {
        let mut places = spaced.match_indices(&words);
        places.any(|(at, _)| !spaced[at + words.len()..].starts_with(part_of_name))
    };
    let is_installed =
        |module: &str| INSTALLS.iter().any(|words| names(format!("{words}{module}")));
    let failed_install = match missing.is_some_and(is_installed) {
        true => entities.iter().filter(|it| it.stops_installs()).map(|it| it.span).collect(),
        false => Vec::new(),
    };
    let mut explanation = Explanation {
        matches,
        entities,
        findings,
        similar,
        out_of_memory,
        errors,
        warnings,
        failed_install,
    };
    if !explanation.answers() {
        explanation.similar = similar::rules(&spaced);
    }
    explanation
}

/// Every rule that a text matches, by its messages or by its entities. Rules that the files here refute come last;
/// before them causes, remarks and consequences, each in the order of the text. Rules at the same place are sorted by
/// their matched bytes, then those that the files here confirm come first. Empty if no rule knows the text.
pub fn explain(text: &str, machine: &Machine, envs: &[PyEnv]) -> Vec<Match> {
    let pasted = Pasted::new(text);
    let spaced = pasted.spaced();
    let meant = environments_of(&spaced, envs);
    let context = Context { machine, envs: &meant };
    read(&pasted, &spaced, context, Context { machine: &place_of(&spaced, machine), envs: &meant })
        .0
}

/// The machine for which commands are written. A container without a trace of NVIDIA is not the place of an error of a GPU,
/// unless the text is about containers too.
fn place_of<'a>(text: &str, machine: &'a Machine) -> Cow<'a, Machine> {
    let inside = host::container(machine).is_some_and(|name| name != "wsl");
    if !inside || access::has_nvidia(machine) || host::runtime_in(text).is_some() {
        return Cow::Borrowed(machine);
    }
    let mut place = machine.clone();
    place.virtualisation = None;
    Cow::Owned(place)
}

/// The possible causes of a class of codes as commands, those first for which the text has evidence.
pub(crate) fn list_causes(seen: &PastedError, class: &str) -> Vec<String> {
    entity::list_causes(seen, class)
}

/// `spaced` is the same text with single spaces; `place` has the machine for which commands are written.
fn read(
    pasted: &Pasted,
    spaced: &str,
    context: Context,
    place: Context,
) -> (Vec<Match>, Vec<Entity>) {
    let seen = PastedError { context: place, text: spaced, words: Vec::new() };
    let entities = entity::entities(pasted, &seen);
    let mut hits: Vec<RuleMatch> = known()
        .chunk_by(|one, next| one.0 == next.0)
        .filter_map(|texts| RuleMatch::best(&RULES[texts[0].0], texts, pasted))
        .collect();
    // A message within a longer message of another rule is part of that error, not another one.
    let inside = |hit: &RuleMatch, other: &RuleMatch| {
        other.weight > hit.weight && other.start <= hit.start && hit.end <= other.end
    };
    let excluded =
        |hit: &RuleMatch| entities.iter().any(|entity| entity.excludes.contains(&hit.rule.id));
    let kept: Vec<bool> = hits
        .iter()
        .map(|hit| !excluded(hit) && !hits.iter().any(|other| inside(hit, other)))
        .collect();
    let mut keep = kept.into_iter();
    hits.retain(|_| keep.next().unwrap_or(true));
    for entity in &entities {
        let Some(rule) = entity.rule.and_then(crate::rule) else { continue };
        if !hits.iter().any(|hit| hit.rule.id == rule.id) {
            hits.push(RuleMatch::of_entity(rule, entity));
        }
    }
    let mut matches: Vec<(usize, usize, Match)> = hits
        .into_iter()
        .map(|hit| (hit.first, hit.score, judge(hit, &context, &place, spaced)))
        .map(|(first, score, mut found)| {
            take_meaning(&mut found, &entities);
            (first, score, found)
        })
        .collect();
    offer_alternatives(&mut matches);
    matches.compact_sort_by_key(|(first, score, found)| {
        let refuted = found.confirmed_here == Some(false);
        let unconfirmed = found.confirmed_here != Some(true);
        (refuted, found.rule.role, *first, std::cmp::Reverse(*score), unconfirmed)
    });
    (matches.into_iter().map(|(.., found)| found).collect(), entities)
}

/// Rules with the same message become alternatives of each other, unless the files here decide.
fn offer_alternatives(matches: &mut [(usize, usize, Match)]) {
    let open = |found: &Match| {
        found.confirmed_here.is_none()
            && found.rule.role == Role::Cause
            && !found.pattern.is_empty()
    };
    let offers: Vec<Vec<Cause>> = matches
        .iter()
        .map(|(.., found)| {
            let same = |other: &&(usize, usize, Match)| {
                let (from, to) = other.2.span;
                let overlap = from < found.span.1 && found.span.0 < to;
                let cause = other.2.rule.role == Role::Cause;
                overlap && cause && other.2.rule.id != found.rule.id
            };
            let others = matches.iter().filter(same).map(|(.., other)| {
                let mut cause = Cause::new(format!("{}.", sentence(other.rule.title)))
                    .check([format!("firstlight explain {}", other.rule.id)])
                    .fix(other.fix.clone());
                cause.confirmed_here = other.confirmed_here;
                cause
            });
            if open(found) { others.collect() } else { Vec::new() }
        })
        .collect();
    for ((.., found), offer) in matches.iter_mut().zip(offers) {
        found.causes.extend(offer);
    }
}

/// A title as a sentence: its first character in upper case.
fn sentence(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Gives a match the meaning of its entities. If the rule itself found nothing, it also gets the evidence and commands
/// of the gravest one.
fn take_meaning(found: &mut Match, entities: &[Entity]) {
    let mut own: Vec<&Entity> =
        entities.iter().filter(|entity| entity.rule == Some(found.rule.id)).collect();
    own.compact_sort_by_key(|entity| std::cmp::Reverse(entity.rank));
    let Some(first) = own.first().filter(|entity| entity.answers()) else { return };
    let meanings: Vec<&str> = own.iter().map(|entity| entity.meaning.as_str()).collect();
    found.meaning = Some(meanings.join("\n\n"));
    // A rule that checks the files for its cause knows more than the message.
    if found.findings.is_empty() && found.rule.observe.is_none() {
        found.confirmed_here = first.confirmed_here;
        found.evidence.clone_from(&first.evidence);
        found.fix.clone_from(&first.fix);
        found.fix_elsewhere.clear();
    }
}

/// The doctor's errors and warnings about packages: those of the entities, and installed ones that the text names.
fn about<'a>(
    findings: &'a [Finding],
    named: &[&String],
    text: &str,
    envs: &[PyEnv],
) -> impl Iterator<Item = &'a Finding> {
    let installed = envs.iter().flat_map(|env| &env.dists).map(|dist| Dist::normalise(&dist.name));
    let installed = installed.filter(|name| !PLAIN_WORDS.contains(&name.as_str()));
    let mut packages = named_in(text, installed.collect());
    packages.extend(named.iter().map(|name| (*name).clone()));
    findings.iter().filter(move |finding| {
        finding.severity != Severity::Info && {
            let title = names_in(&finding.title);
            packages.iter().any(|package| title.contains(package))
        }
    })
}

/// Whether a text contains the message of a rule, or an entity that is more than a name.
pub fn knows(text: &str) -> bool {
    let pasted = Pasted::new(text);
    if known().iter().any(|(.., pattern)| pasted.find(pattern).is_some()) {
        return true;
    }
    let (machine, spaced) = (Machine::unknown(), pasted.spaced());
    let context = Context { machine: &machine, envs: &[] };
    let seen = PastedError { context, text: &spaced, words: Vec::new() };
    entity::entities(&pasted, &seen).iter().any(|entity| entity.answers() || entity.rule.is_some())
}

/// Every pattern of every rule, parsed once, with the index of its rule.
fn known() -> &'static [(usize, &'static Text, Pattern)] {
    static KNOWN: OnceLock<Vec<(usize, &'static Text, Pattern)>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let texts = |(place, rule): (usize, &'static Rule)| {
            rule.texts.iter().map(move |text| (place, text, Pattern::new(text.pattern)))
        };
        RULES.iter().enumerate().flat_map(texts).collect()
    })
}

/// Applies one rule, requested by name, to this machine and its environments.
pub fn explain_rule(rule: &'static Rule, machine: &Machine, envs: &[PyEnv]) -> Match {
    let words = Vec::new();
    let hit = RuleMatch {
        rule,
        pattern: "",
        first: 0,
        start: 0,
        end: 0,
        weight: 0,
        score: 0,
        words,
        by_entity: false,
    };
    let context = Context { machine, envs };
    judge(hit, &context, &context, "")
}

/// The memory that a text reports as exhausted (row R1-05).
pub fn out_of_memory_in(text: &str) -> Option<OutOfMemory> {
    oom::first_in(&Pasted::new(text).spaced())
}

#[cfg(test)]
mod tests;
