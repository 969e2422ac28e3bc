//! A software bill of materials: the crates that a program and the library of ops are linked from, as CycloneDX 1.5 in JSON.
//!
//! `cargo tree` lists them for the target platform, without build scripts, procedural macros and test dependencies, which are not
//! linked. Hashes come from Cargo.lock.

use crate::{cargo, steps};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The packages that a release is built from.
const ROOTS: [&str; 2] = ["firstlight", "python"];

/// A crate with its licence and the crates that it imports, by their package URLs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Crate {
    name: String,
    version: String,
    licence: String,
    imports: BTreeSet<String>,
}

/// The document for a platform. `time` is the date of the commit in seconds since 1970.
pub(super) fn of(root: &Path, triple: &str, version: &str, time: u64) -> anyhow::Result<Value> {
    let mut arguments = vec!["tree", "--locked", "--target", triple];
    ROOTS.iter().for_each(|package| arguments.extend(["--package", package]));
    arguments.extend(["--edges", "normal,no-proc-macro", "--prefix", "depth"]);
    arguments.extend(["--format", "\t{p}\t{l}"]);
    let crates = linked(crates(&steps::output(&mut cargo::command(root, &arguments))?)?);
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
    let sums = checksums(&lock)?;
    let timestamp = OffsetDateTime::from_unix_timestamp(time.try_into()?)?.format(&Rfc3339)?;
    Ok(document(&crates, &sums, version, &timestamp))
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// Crates by their package URLs, from lines `DEPTH\tNAME vVERSION ...\tLICENCE`.
fn crates(tree: &str) -> anyhow::Result<BTreeMap<String, Crate>> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    let mut above: Vec<String> = Vec::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let wrong = || format!("`cargo tree` printed `{line}`");
        let mut cells = line.split('\t');
        let depth: usize = cells.next().and_then(|cell| cell.parse().ok()).with_context(wrong)?;
        let mut words = cells.next().with_context(wrong)?.split(' ');
        let name = words.next().with_context(wrong)?.to_owned();
        let version = words.next().and_then(|word| word.strip_prefix('v')).with_context(wrong)?;
        // A repeated crate is marked with `(*)` and listed without its imports.
        let licence = cells.next().unwrap_or_default().trim_end_matches(" (*)").to_owned();
        let own = purl(&name, version);
        if depth > above.len() {
            bail!(wrong());
        }
        above.truncate(depth);
        if let Some(importer) = above.last().and_then(|importer| crates.get_mut(importer)) {
            importer.imports.insert(own.clone());
        }
        let entry = crates.entry(own.clone()).or_default();
        (entry.name, entry.version, entry.licence) = (name, version.to_owned(), licence);
        above.push(own);
    }
    Ok(crates)
}

/// The direct and indirect dependencies of a release's packages: cargo may also list other members of the workspace.
fn linked(mut crates: BTreeMap<String, Crate>) -> BTreeMap<String, Crate> {
    let roots = crates.iter().filter(|(_, of)| ROOTS.contains(&of.name.as_str()));
    let mut wanted: Vec<String> = roots.map(|(purl, _)| purl.clone()).collect();
    let mut linked = BTreeMap::new();
    while let Some(purl) = wanted.pop() {
        if let Some(of) = crates.remove(&purl) {
            wanted.extend(of.imports.iter().cloned());
            linked.insert(purl, of);
        }
    }
    linked
}

/// SHA-256 of each published crate, by its package URL.
fn checksums(lock: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock["package"].as_array().context("Cargo.lock has no packages")?;
    let sum = |package: &toml::Value| {
        let text = |key: &str| package.get(key)?.as_str();
        Some((purl(text("name")?, text("version")?), text("checksum")?.to_owned()))
    };
    Ok(packages.iter().filter_map(sum).collect())
}

fn document(
    crates: &BTreeMap<String, Crate>,
    sums: &BTreeMap<String, String>,
    version: &str,
    timestamp: &str,
) -> Value {
    let component = |(purl, of): (&String, &Crate)| {
        let mut component = json!({
            "type": "library", "bom-ref": purl, "name": of.name, "version": of.version, "purl": purl,
        });
        if !of.licence.is_empty() {
            // The form with a slash is older than SPDX expressions.
            let expression = of.licence.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        if let Some(sum) = sums.get(purl) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let own = purl("firstlight", version);
    let others: Vec<Value> =
        crates.iter().filter(|(purl, _)| **purl != own).map(component).collect();
    let dependencies: Vec<Value> =
        crates.iter().map(|(purl, of)| json!({ "ref": purl, "dependsOn": of.imports })).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "component": {
                "type": "application", "bom-ref": own, "name": "firstlight", "version": version, "purl": own,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": others,
        "dependencies": dependencies,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_and_their_imports_come_from_the_tree() {
        let tree = "0\tfirstlight v0.2.0 (/x/crates/firstlight)\tApache-2.0\n\
                    1\tserde v1.0.1\tMIT OR Apache-2.0\n\
                    2\tserde_core v1.0.1\tMIT/Apache-2.0\n\
                    1\tapi v0.2.0 (/x/crates/api)\tApache-2.0\n\
                    2\tserde v1.0.1\tMIT OR Apache-2.0 (*)\n\
                    \n\
                    0\tpython v0.2.0 (/x/crates/python)\tApache-2.0\n\
                    1\tserde v1.0.1\tMIT OR Apache-2.0 (*)\n";
        let crates = crates(tree).unwrap();
        let imports =
            |purl: &str| crates[purl].imports.iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(crates.len(), 5);
        assert_eq!(
            imports("pkg:cargo/firstlight@0.2.0"),
            ["pkg:cargo/api@0.2.0", "pkg:cargo/serde@1.0.1"]
        );
        assert_eq!(imports("pkg:cargo/serde@1.0.1"), ["pkg:cargo/serde_core@1.0.1"]);
        assert_eq!(imports("pkg:cargo/python@0.2.0"), ["pkg:cargo/serde@1.0.1"]);
        assert_eq!(crates["pkg:cargo/serde@1.0.1"].licence, "MIT OR Apache-2.0");
        let more = format!("{tree}0\txtask v0.2.0 (/x/xtask)\tApache-2.0\n1\ttar v0.4.0\tMIT\n");
        assert_eq!(linked(super::crates(&more).unwrap()), crates);
        assert!(super::crates("2\tserde v1.0.1\tMIT\n").is_err());
        assert!(super::crates("0\tserde\tMIT\n").is_err());
    }

    #[test]
    fn the_bill_has_every_published_crate_with_its_hash_and_licence() {
        let root = cargo::workspace_root().unwrap();
        let made = of(&root, "x86_64-unknown-linux-gnu", "0.2.0", 1_763_700_000).unwrap();
        assert_eq!(made["metadata"]["timestamp"], "2025-11-21T04:40:00Z");
        let components = made["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        assert!(components.len() > 100, "{}", components.len());
        // serde is linked; its derive macro and test dependencies are not.
        assert!(named("serde_core").is_some() && named("ops").is_some());
        assert!(named("serde_derive").is_none() && named("proptest").is_none());
        let own = [
            "firstlight",
            "facts",
            "architectures",
            "probe",
            "knowledge",
            "diagnose",
            "setup",
            "report",
            "device",
            "ops",
            "ops-cpu",
            "ops-cuda",
            "backends",
            "models",
            "serving",
            "api",
            "python",
            "verify",
            "bench",
        ];
        for component in components {
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
            let is_own = own.iter().any(|name| component["name"] == *name);
            assert_eq!(component["hashes"].is_null(), is_own, "{component}");
        }
        let refs: BTreeSet<&str> = components
            .iter()
            .chain([&made["metadata"]["component"]])
            .map(|component| component["bom-ref"].as_str().unwrap())
            .collect();
        for dependency in made["dependencies"].as_array().unwrap() {
            let on = dependency["dependsOn"].as_array().unwrap().iter();
            for of in on.chain([&dependency["ref"]]) {
                assert!(refs.contains(of.as_str().unwrap()), "{of} is no component");
            }
        }
    }
}
