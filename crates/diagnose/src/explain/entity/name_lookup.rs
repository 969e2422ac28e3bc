//! The releases on a package index that have a name which a package lacks.

use super::Entity;
use crate::explain::modules::{self, installed};
use crate::rules::PastedError;
use facts::{Evidence, RemedyStep};
use knowledge::{NameHistory, NameLack, NameQuery};

/// A question to a package index, and the commands that its answer completes.
#[derive(Debug, Clone)]
pub struct NameLookup {
    /// The question.
    pub query: NameQuery,
    /// Whether the release in the question is the one installed here.
    installed: bool,
    /// The module that imports the name.
    importer: String,
    /// Installs the package.
    install: RemedyStep,
    /// Installs a newer importer, if it is a package.
    upgrade: Option<RemedyStep>,
}

impl NameLookup {
    /// Asks for a name of a module, or for the module without a name. The names of a user's own modules are sent nowhere.
    pub(super) fn new(
        seen: &PastedError,
        package: &str,
        (module, name): (&str, Option<&str>),
        importer: Option<&str>,
    ) -> Option<Self> {
        (modules::is_known(module) || installed(seen, package).is_some()).then_some(())?;
        let named = modules::version_in(seen.text, package);
        let here = installed(seen, package).map(|(_, dist)| dist.version.clone());
        let installer = seen.installer();
        let install = |name: &str| installer.install(&[name.to_owned()], None);
        Some(Self {
            installed: named.is_none() && here.is_some(),
            query: NameQuery {
                package: package.to_owned(),
                module: module.to_owned(),
                name: name.map(str::to_owned),
                version: named.or(here),
            },
            importer: importer.unwrap_or("the program that imports it").to_owned(),
            install: install(package),
            upgrade: importer.map(|importer| install(importer).upgraded()),
        })
    }
}

impl Entity {
    /// Says which question an index did not answer, so that the causes stay possible.
    pub fn leave_undecided(&mut self, reason: &str, index: &str) {
        let Some(lookup) = self.name_lookup.take() else { return };
        let NameQuery { package, module, name, .. } = &lookup.query;
        let what = match name {
            Some(name) => format!("{name} in {module}"),
            None => format!("the module {module}"),
        };
        let what = format!("{index} did not answer which releases of {package} have {what}");
        self.evidence.push(Evidence { what, source: reason.to_owned() });
    }

    /// Replaces the possible causes by the one that the releases on an index leave. `index` is its address.
    pub fn decide_by(&mut self, history: &NameHistory, index: &str) {
        let Some(lookup) = self.name_lookup.take() else { return };
        let NameQuery { package, module, name, version } = &lookup.query;
        let what = match name {
            Some(name) => format!("{name} in {module}"),
            None => format!("the module {module}"),
        };
        let source = format!("source files in the wheels of {package} on {index}");
        let specifiers = history.specifiers();
        let importer = &lookup.importer;
        let release = match version {
            Some(version) if history.version_has == Some(false) => format!("{package} {version}"),
            _ => format!("the {package} that ran"),
        };
        let since =
            history.first.as_ref().map(|first| format!("{package} has {what} since {first}"));
        let until = history.last.as_ref().map(|last| match &history.removed {
            Some(removed) => format!("{package} {removed} removed or moved {what}"),
            None => format!("{package} has {what} until {last}"),
        });
        let mut evidence: Vec<String> = since.iter().chain(&until).cloned().collect();
        let meaning = match (history.lack(), since, until) {
            (NameLack::TooOld, Some(since), _) => format!("{since}, and {release} is older."),
            (NameLack::TooNew, _, Some(until)) => {
                format!("{until}, and {release} is newer; {importer} was written for an older one.")
            }
            (NameLack::Either, Some(since), Some(until)) => {
                format!("{since}; {until}. {release} is not one of the releases between.")
            }
            _ => String::new(),
        };
        let every = history.first.is_none() && history.last.is_none();
        if every {
            evidence.push(format!("every release of {package} that was read has {what}"));
        }
        let evidence = evidence.into_iter().map(|what| Evidence { what, source: source.clone() });
        self.evidence.extend(evidence);
        if meaning.is_empty() {
            // A package that always had the name is neither too old nor too new.
            self.causes.retain(|cause| !every || !cause.of_release);
            return;
        }
        let mut install = lookup.install;
        if let RemedyStep::Install { install, .. } = &mut install {
            install.specs = vec![format!("{package}{specifiers}")];
        }
        self.fix = vec![install.into()];
        if let (NameLack::TooNew | NameLack::Either, Some(upgrade)) =
            (history.lack(), lookup.upgrade)
        {
            self.fix.push(format!(
                "# or a newer {importer}, which may no longer ask for it: {upgrade}"
            ));
        }
        self.causes.clear();
        self.meaning = meaning;
        let decided = lookup.installed && history.version_has == Some(false);
        self.confirmed_here = decided.then_some(true).or(self.confirmed_here);
    }
}

#[cfg(test)]
mod tests {
    use crate::explain::cause::Certainty;
    use crate::test_support::{env, machines};
    use knowledge::NameHistory;

    const TEXT: &str = "  File \"/v/lib/python3.12/site-packages/peft/tuners/x.py\", line 3, in <module>\n    from transformers import \
                        EncoderDecoderCache\nImportError: cannot import name 'EncoderDecoderCache' from 'transformers' (/v/x.py)";

    fn explained(installed: Option<&str>, history: &NameHistory) -> super::Entity {
        let built =
            |version: &str| env("/v").dist("transformers", version).dist("peft", "0.14.0").build();
        let envs: Vec<facts::PyEnv> = installed.map(built).into_iter().collect();
        let mut entity = crate::explain_text(TEXT, &machines::a10(), &envs, &[]).entities.remove(0);
        assert_eq!(entity.causes.len(), 3, "{entity:?}");
        entity.decide_by(history, "an index");
        entity
    }

    fn history(first: Option<&str>, last: Option<&str>) -> NameHistory {
        let text = |version: Option<&str>| version.map(str::to_owned);
        NameHistory {
            first: text(first),
            last: text(last),
            removed: last.map(|_| "5.0.0".to_owned()),
            version_has: None,
            version_is_newer: false,
        }
    }

    #[test]
    fn release_before_the_name_is_too_old() {
        let since = history(Some("4.43.0"), None);
        let entity = explained(None, &since);
        assert!(entity.meaning.contains("since 4.43.0"), "{}", entity.meaning);
        assert!(entity.fix[0].ends_with("'transformers>=4.43.0'"), "{:?}", entity.fix);
        assert_eq!((entity.certainty(), entity.fix.len()), (Certainty::Likely, 1));
        let here = NameHistory { version_has: Some(false), ..since };
        let entity = explained(Some("4.40.0"), &here);
        assert_eq!(entity.certainty(), Certainty::Confirmed);
        assert!(entity.meaning.contains("transformers 4.40.0 is older"), "{}", entity.meaning);
    }

    #[test]
    fn unanswered_question_is_evidence_and_leaves_the_causes() {
        let mut entity = crate::explain_text(TEXT, &machines::a10(), &[], &[]).entities.remove(0);
        entity.leave_undecided("not answered within 20 s", "an index");
        let last = entity.evidence.last().expect("evidence");
        assert!(
            last.what
                .ends_with("releases of transformers have EncoderDecoderCache in transformers")
        );
        assert_eq!((last.source.as_str(), entity.causes.len()), ("not answered within 20 s", 3));
    }

    #[test]
    fn release_after_the_name_is_too_new_or_the_importer_too_old() {
        let entity = explained(None, &history(None, Some("4.57.6")));
        assert!(entity.meaning.contains("5.0.0 removed or moved"), "{}", entity.meaning);
        assert!(entity.fix[0].ends_with("'transformers<5.0.0'"), "{:?}", entity.fix);
        assert!(entity.fix[1].contains("a newer peft"), "{:?}", entity.fix);
    }

    #[test]
    fn either_side_has_one_remedy() {
        let entity = explained(None, &history(Some("4.43.0"), Some("4.57.6")));
        assert!(entity.fix[0].ends_with("'transformers>=4.43.0,<5.0.0'"), "{:?}", entity.fix);
    }

    #[test]
    fn name_of_every_release_leaves_another_file_as_the_cause() {
        let entity = explained(None, &history(None, None));
        assert!(entity.causes.len() == 1 && entity.causes[0].cause.contains("Another file"));
        assert_eq!(entity.certainty(), Certainty::Possible);
    }
}
