//! Checks that files can be downloaded: each index is asked for one of its files.

use super::super::UnmetPrecondition;
use super::super::download::SelectedFile;
use super::builds;
use crate::build::BuildSource;
use crate::fetch::{Answer, hint_for_status, http_status};
use facts::InstallPlan;
use std::collections::BTreeMap;

/// One address for each index; none if everything is cached.
pub(super) fn addresses(plan: &InstallPlan, missing: &[&SelectedFile]) -> BTreeMap<String, String> {
    let index = |package: &str| {
        plan.packages.iter().find(|it| it.name == package).map(|it| it.index.clone())
    };
    let mut asked = BTreeMap::new();
    for file in missing {
        asked.entry(index(&file.package).unwrap_or_default()).or_insert_with(|| file.url.clone());
    }
    for (package, recipe) in builds(plan) {
        // A repository that git reaches over ssh is not checked here.
        if let Some(BuildSource::Git { url, .. }) = BuildSource::git(&recipe.requirement)
            && url.starts_with("http")
        {
            asked.entry(package.name.clone()).or_insert_with(|| url.to_owned());
        }
    }
    asked
}

/// Addresses that did not answer.
pub(super) fn silent(
    asked: &BTreeMap<String, String>,
    answers: Vec<Answer>,
) -> impl Iterator<Item = UnmetPrecondition> {
    asked.iter().zip(answers).filter_map(|((name, url), answer)| {
        let reason = answer.err()?;
        let network = "check the network, a proxy (HTTPS_PROXY) and certificates (SSL_CERT_FILE)";
        Some(match http_status(&reason) {
            Some(status @ (404 | 410)) => UnmetPrecondition::new(
                format!("{name} does not have the file {url}: {reason}"),
                hint_for_status(status).unwrap_or(network),
            ),
            Some(status) => UnmetPrecondition::new(
                format!("{name} refuses {url}: {reason}"),
                hint_for_status(status).unwrap_or("apply again later"),
            ),
            None => UnmetPrecondition::new(
                format!("{name} does not answer at {url}: {reason}"),
                network,
            ),
        })
    })
}
