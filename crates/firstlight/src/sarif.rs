//! Findings as SARIF 2.1.0 (OASIS), the format of code scanning: one result per finding, located at the file that shows
//! it.

use crate::failure::{Failure, hint_for_write};
use crate::run_folder::write_atomically;
use diagnose::{RULES, Rule};
use facts::{Evidence, Finding, ParityReport, Severity, Status};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The rule of a failed kernel, which is not one of the doctor's rules.
const KERNEL: &str = "kernel-parity";

/// Location of a finding that no file shows: code scanning refuses a result without a location.
const MACHINE: &str = "machine";

/// Writes the findings, and failed kernels, if any ran.
pub(crate) fn write(
    path: &Path,
    findings: &[Finding],
    parity: Option<&ParityReport>,
) -> anyhow::Result<()> {
    let root = std::env::current_dir().unwrap_or_default();
    let text = serde_json::to_string_pretty(&document(findings, parity, &root))? + "\n";
    write_atomically(path, text.as_bytes()).map_err(|error| {
        let hint = hint_for_write(
            error.as_ref(),
            "name a file in an existing folder with write permission",
        );
        Failure::hinted(format!("{error:#}"), hint)
    })
}

/// The document. Files below `root` are named relative to it, as code scanning requires.
fn document(findings: &[Finding], parity: Option<&ParityReport>, root: &Path) -> Value {
    let mut rules: Vec<Value> = Vec::new();
    let mut results = Vec::new();
    for finding in findings {
        let index = rule_index(&mut rules, &finding.rule, || rule_entry(finding));
        results.push(result_entry(finding, index, root));
    }
    for row in parity.iter().flat_map(|parity| &parity.rows) {
        if matches!(row.status, Status::Fail | Status::Fallback) && row.peer.is_none() {
            let index = rule_index(&mut rules, KERNEL, kernel_rule_entry);
            let what = format!("{} {} on {}, {}", row.op, row.variant, row.backend, row.case);
            results.push(json!({
                "ruleId": KERNEL,
                "ruleIndex": index,
                "level": "error",
                "message": { "text": format!("{}: {what}: {}", row.status, row.reason) },
                "locations": [location(report::PARITY_FILE.to_owned(), None)],
                "partialFingerprints": fingerprint(&[KERNEL, &what]),
            }));
        }
    }
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "firstlight",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            // A finding is not a failure of the run.
            "invocations": [{ "executionSuccessful": true }],
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

/// The index of a rule in the list; a new rule is appended.
fn rule_index(rules: &mut Vec<Value>, id: &str, rule: impl FnOnce() -> Value) -> usize {
    rules.iter().position(|known| known["id"] == id).unwrap_or_else(|| {
        rules.push(rule());
        rules.len() - 1
    })
}

/// The description of a finding's rule in the doctor's table.
fn rule_entry(finding: &Finding) -> Value {
    let known: Option<&Rule> = RULES.iter().find(|rule| rule.id == finding.rule);
    let title = known.map_or(finding.title.as_str(), |rule| rule.title);
    let about = known.map_or(finding.cause.as_str(), |rule| rule.about).trim();
    let explain = format!(
        "{about}\n\n`firstlight explain {}` checks the files of this machine.",
        finding.rule
    );
    let links = known.map_or(&[][..], |rule| rule.links);
    let link =
        links.first().map(|link| (*link).to_owned()).or_else(|| finding.links.first().cloned());
    let mut rule = json!({
        "id": finding.rule,
        "shortDescription": { "text": title },
        "fullDescription": { "text": about },
        "help": { "text": explain, "markdown": explain },
        "defaultConfiguration": { "level": level(finding.severity) },
    });
    if let Some(link) = link {
        rule["helpUri"] = link.into();
    }
    rule
}

fn kernel_rule_entry() -> Value {
    let about = "A kernel disagreed with its float64 reference, was never launched, or was replaced by another one.";
    json!({
        "id": KERNEL,
        "shortDescription": { "text": "a kernel failed its check" },
        "fullDescription": { "text": about },
        "help": { "text": format!("{about} parity.csv in the run folder has every case.") },
        "defaultConfiguration": { "level": "error" },
    })
}

fn result_entry(finding: &Finding, index: usize, root: &Path) -> Value {
    let mut text = format!("{}. {}", finding.title, finding.cause);
    if !finding.fix.is_empty() {
        text += &format!("\n\nHow to fix it:\n{}", finding.fix.join("\n"));
    }
    let mut locations: Vec<Value> =
        finding.evidence.iter().filter_map(|it| file_location(it, root)).collect();
    if locations.is_empty() {
        locations =
            finding.evidence.iter().map(|it| location(MACHINE.to_owned(), Some(it))).collect();
    }
    if locations.is_empty() {
        locations.push(location(MACHINE.to_owned(), None));
    }
    json!({
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": { "text": text },
        "locations": locations,
        "partialFingerprints": fingerprint(&[&finding.rule, &finding.title]),
        "properties": {
            "confidence": finding.confidence,
            "evidence": finding.evidence,
            "commands": finding.fix,
        },
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

/// The location of evidence in a file: its path comes first in the source, before the description.
fn file_location(evidence: &Evidence, root: &Path) -> Option<Value> {
    let path = evidence.source.split([':', ',', '(']).next()?.trim_end();
    if !path.starts_with('/') {
        return None;
    }
    let uri = match Path::new(path).strip_prefix(root).ok().and_then(Path::to_str) {
        Some(inside) if !inside.is_empty() => escaped(inside),
        _ => format!("file://{}", escaped(path)),
    };
    Some(location(uri, Some(evidence)))
}

fn location(uri: String, evidence: Option<&Evidence>) -> Value {
    let mut entry = json!({
        "physicalLocation": { "artifactLocation": { "uri": uri }, "region": { "startLine": 1 } },
    });
    if let Some(Evidence { what, source }) = evidence {
        entry["message"] = json!({ "text": what });
        entry["logicalLocations"] = json!([{ "fullyQualifiedName": source, "kind": "resource" }]);
    }
    entry
}

/// A path as a URI (RFC 3986).
fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~+@=".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(one).collect()
}

/// Identifies a result in this run and in later ones.
fn fingerprint(parts: &[&str]) -> Value {
    let digest = Sha256::digest(parts.join("\n"));
    let text: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    json!({ "finding/v1": text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::Confidence;

    fn finding(rule: &str, source: &str) -> Finding {
        Finding {
            rule: rule.to_owned(),
            severity: Severity::Error,
            title: "torch is a CPU build".to_owned(),
            evidence: vec![Evidence { what: "no CUDA".to_owned(), source: source.to_owned() }],
            cause: "PyPI's wheel has none.".to_owned(),
            fix: vec!["uv pip install torch".to_owned()],
            remedy: Vec::new(),
            confidence: Confidence::Certain,
            links: vec!["https://example.org/1".to_owned()],
        }
    }

    /// The objects written here, from the published schema (SARIF 2.1.0-rtm.5): their properties, which of them are
    /// required, and their types. Other properties are refused.
    const SCHEMA: &str = include_str!("sarif/schema.json");

    /// Checks a value against a property of the schema.
    fn check_value(schema: &Value, property: &Value, value: &Value, at: &str) {
        if let Some(name) = property["ref"].as_str() {
            // A property bag accepts any value.
            if name == "propertyBag" {
                return assert!(value.is_object(), "{at}");
            }
            return check_object(schema, name, value, at);
        }
        if let Some(words) = property["enum"].as_array() {
            assert!(words.contains(value), "{at}: {value}");
        }
        match property["type"].as_str() {
            Some("string") => assert!(value.is_string(), "{at}: {value}"),
            Some("boolean") => assert!(value.is_boolean(), "{at}: {value}"),
            Some("integer") => assert!(value.is_i64() || value.is_u64(), "{at}: {value}"),
            Some("number") => assert!(value.is_number(), "{at}: {value}"),
            Some("array") => {
                let all = value.as_array().unwrap_or_else(|| panic!("{at}: {value}"));
                assert!(all.len() as u64 >= property["minItems"].as_u64().unwrap_or(0), "{at}");
                all.iter().for_each(|one| check_value(schema, &property["items"], one, at));
            }
            Some("object") => {
                let all = value.as_object().unwrap_or_else(|| panic!("{at}: {value}"));
                all.values().for_each(|one| check_value(schema, &property["values"], one, at));
            }
            _ => {}
        }
        if let (Some(least), Some(number)) = (property["minimum"].as_i64(), value.as_i64()) {
            assert!(number >= least, "{at}: {number}");
        }
    }

    fn check_object(schema: &Value, name: &str, value: &Value, at: &str) {
        let known = &schema[name];
        assert!(known.is_object(), "{at}: the schema here has no `{name}`");
        for required in known["required"].as_array().expect("a list") {
            let key = required.as_str().expect("a name");
            assert!(value.get(key).is_some(), "{at}: `{key}` is missing: {value}");
        }
        for (key, value) in value.as_object().unwrap_or_else(|| panic!("{at}: {value}")) {
            let at = format!("{at}/{key}");
            let property = known["properties"].get(key);
            check_value(
                schema,
                property.unwrap_or_else(|| panic!("{at} is not in the schema")),
                value,
                &at,
            );
        }
    }

    /// Checks the schema, and the additional requirements of GitHub's code scanning: a location for each result, and a
    /// listed rule.
    fn check_document(document: &Value) {
        let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
        check_object(&schema, "log", document, "");
        let run = &document["runs"][0];
        for result in run["results"].as_array().expect("results") {
            let index = result["ruleIndex"].as_u64().expect("a rule") as usize;
            assert_eq!(run["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
            assert!(result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()));
            let locations = result["locations"].as_array().expect("locations");
            assert!(!locations.is_empty());
            for location in locations {
                let uri = &location["physicalLocation"]["artifactLocation"]["uri"];
                let uri = uri.as_str().expect("a uri");
                assert!(!uri.is_empty() && !uri.contains([' ', '"', '<']), "{uri}");
            }
        }
    }

    fn uri(source: &str) -> String {
        let findings = [finding("cpu-only-torch", source)];
        let document = document(&findings, None, Path::new("/repo"));
        check_document(&document);
        let entry = &document["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
        entry["artifactLocation"]["uri"].as_str().expect("a uri").to_owned()
    }

    #[test]
    fn finding_is_located_at_the_file_of_its_evidence() {
        assert_eq!(uri("/repo/.venv/lib/a b.so: DT_NEEDED"), ".venv/lib/a%20b.so");
        assert_eq!(uri("/opt/x/METADATA"), "file:///opt/x/METADATA");
        assert_eq!(uri("/opt/x (symlink)"), "file:///opt/x");
        assert_eq!(uri("NVML: nvmlSystemGetDriverVersion"), "machine");
    }

    #[test]
    fn each_rule_is_listed_once_with_its_description() {
        let findings = [
            finding("cpu-only-torch", "/a"),
            finding("cpu-only-torch", "/b"),
            finding("not-in-the-table", "/c"),
        ];
        let document = document(&findings, None, Path::new("/"));
        check_document(&document);
        let rules = document["runs"][0]["tool"]["driver"]["rules"].as_array().expect("rules");
        assert_eq!(rules.len(), 2);
        assert!(rules[0]["helpUri"].as_str().is_some_and(|link| link.starts_with("https://")));
        assert!(
            rules[0]["help"]["text"].as_str().is_some_and(|it| it.contains("firstlight explain"))
        );
        assert_eq!(rules[1]["shortDescription"]["text"], "torch is a CPU build");
        check_document(&self::document(&[], None, Path::new("/")));
    }
    #[test]
    fn failed_kernels_are_results_except_those_of_peers() {
        let row = |status: Status, peer: Option<&str>| facts::ParityRow {
            op: "attention".to_owned(),
            case: "causal".to_owned(),
            backend: facts::BackendKind::Cpu,
            variant: "flash".to_owned(),
            dtype: "f32".to_owned(),
            status,
            reason: "differs".to_owned(),
            rel_err: None,
            max_err: None,
            tolerance: 0.0,
            launches: 1,
            millis: 1.0,
            peer: peer.map(str::to_owned),
            evidence: String::new(),
            bits: None,
        };
        let rows = vec![
            row(Status::Pass, None),
            row(Status::Fail, None),
            row(Status::Fail, Some("torch")),
        ];
        let parity = ParityReport { schema: facts::SCHEMA, rows };
        let document = document(&[finding("cpu-only-torch", "/a")], Some(&parity), Path::new("/"));
        check_document(&document);
        let results = document["runs"][0]["results"].as_array().expect("results");
        assert_eq!(results.len(), 2);
        assert_eq!(
            (&results[1]["ruleId"], &results[1]["level"]),
            (&"kernel-parity".into(), &"error".into())
        );
    }
}
