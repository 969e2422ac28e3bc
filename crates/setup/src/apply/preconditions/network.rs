//! Whether what has to be fetched can be: each index is asked for one of the files that are wanted of it.

use super::super::download::Chosen;
use super::super::fetch::Fetcher;
use super::super::{ApplyError, Unmet};
use super::builds;
use crate::build::Source;
use facts::Plan;
use std::collections::BTreeMap;

/// Asks each index once, and none where everything is here.
pub(super) fn check(
    plan: &Plan,
    missing: &[&Chosen],
    fetcher: Fetcher,
    unmet: &mut Vec<Unmet>,
) -> Result<(), ApplyError> {
    let index = |package: &str| {
        plan.packages.iter().find(|it| it.name == package).map(|it| it.index.as_str())
    };
    let mut asked: BTreeMap<&str, String> = BTreeMap::new();
    for file in missing {
        asked.entry(index(&file.package).unwrap_or_default()).or_insert_with(|| file.url.clone());
    }
    for (package, recipe) in builds(plan) {
        // A repository that git reaches over ssh is git's matter.
        if let Some(Source::Git { url, .. }) = Source::git(&recipe.requirement)
            && url.starts_with("http")
        {
            asked.entry(&package.name).or_insert_with(|| url.to_owned());
        }
    }
    let urls: Vec<String> = asked.values().cloned().collect();
    for ((name, url), reason) in asked.iter().zip(fetcher.check(&urls)?) {
        if let Some(reason) = reason {
            unmet.push(Unmet::new(
                format!("{name} does not answer at {url}: {reason}"),
                "see whether the network, a proxy (HTTPS_PROXY) or a certificate (SSL_CERT_FILE) is in the way",
            ));
        }
    }
    Ok(())
}
