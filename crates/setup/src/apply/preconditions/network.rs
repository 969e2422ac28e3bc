//! Whether what has to be fetched can be: each index is asked for one of the files that are wanted of it.

use super::super::Unmet;
use super::super::download::Chosen;
use super::builds;
use crate::build::Source;
use crate::fetch::Answer;
use facts::Plan;
use std::collections::BTreeMap;

/// An address for each index, and none where everything is here.
pub(super) fn addresses(plan: &Plan, missing: &[&Chosen]) -> BTreeMap<String, String> {
    let index = |package: &str| {
        plan.packages.iter().find(|it| it.name == package).map(|it| it.index.clone())
    };
    let mut asked = BTreeMap::new();
    for file in missing {
        asked.entry(index(&file.package).unwrap_or_default()).or_insert_with(|| file.url.clone());
    }
    for (package, recipe) in builds(plan) {
        // A repository that git reaches over ssh is git's matter.
        if let Some(Source::Git { url, .. }) = Source::git(&recipe.requirement)
            && url.starts_with("http")
        {
            asked.entry(package.name.clone()).or_insert_with(|| url.to_owned());
        }
    }
    asked
}

/// Those that did not answer.
pub(super) fn silent(
    asked: &BTreeMap<String, String>,
    answers: Vec<Answer>,
) -> impl Iterator<Item = Unmet> {
    asked.iter().zip(answers).filter_map(|((name, url), answer)| {
        Some(Unmet::new(
            format!("{name} does not answer at {url}: {}", answer.err()?),
            "see whether the network, a proxy (HTTPS_PROXY) or a certificate (SSL_CERT_FILE) is in the way",
        ))
    })
}
