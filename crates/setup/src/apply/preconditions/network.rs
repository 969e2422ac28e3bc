//! Whether what has to be fetched can be: each index is asked for one of the files that are wanted of it.

use super::super::download::Chosen;
use super::super::fetch::Fetcher;
use super::super::{ApplyError, Unmet};
use super::builds;
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
        let source = recipe.requirement.split_once("git+").map(|(_, address)| address);
        let address = source
            .and_then(|address| address.rsplit_once('@'))
            .map(|(address, _)| address.to_owned());
        let of_index =
            plan.indexes.iter().find(|it| it.name == package.index).map(|it| it.url.clone());
        if let Some(address) = address.or(of_index) {
            asked.entry(&package.name).or_insert(address);
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
