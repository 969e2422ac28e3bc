//! The statement of a certificate: an in-toto attestation with the predicate "test result"; and the comparison of a node with
//! it.

use facts::CompactCollect;
use facts::{DoctorReport, ParityReport, RunManifest, StackFile, Status};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "https://in-toto.io/attestation/test-result/v0.1";

/// Largest accepted difference between the clocks of the signing and the verifying node.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// The results of a finished check.
pub(crate) struct Checked<'a> {
    pub(crate) node: Node,
    pub(crate) parity: &'a ParityReport,
    pub(crate) manifest: &'a RunManifest,
    pub(crate) files: &'a [StackFile],
    /// `quick`, `standard` or `full`.
    pub(crate) extent: &'static str,
    /// The selected ops; empty for all.
    pub(crate) ops: &'a [String],
    /// Whether there were no findings: the exit status is 0.
    pub(crate) passed: bool,
    /// Whether everything ran in time.
    pub(crate) complete: bool,
}

/// The parts of a node that a statement names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// The driver's version; none without a driver.
    pub(crate) driver: Option<String>,
    /// UUID and name of each GPU, in any order.
    pub(crate) gpus: BTreeSet<(String, String)>,
}

impl Node {
    pub(crate) fn of(doctor: &DoctorReport) -> Self {
        let machine = &doctor.machine;
        let version = machine.driver.as_ref().and_then(|driver| driver.version());
        let gpu = |gpu: &facts::Gpu| (gpu.uuid.clone().unwrap_or_default(), gpu.name.value.clone());
        Self {
            driver: version.map(|version| version.value.clone()),
            gpus: machine.gpus.iter().map(gpu).collect(),
        }
    }
}

/// The statement about a check.
pub(super) fn of(checked: &Checked<'_>) -> Value {
    let Checked { node, parity, manifest, files, .. } = checked;
    let subject: Vec<Value> = files
        .iter()
        .filter_map(|file| {
            let digest = json!({ "sha256": file.sha256.as_ref()? });
            Some(json!({ "name": file.path, "digest": digest, "annotations": { "what": file.what } }))
        })
        .collect();
    let gpus: Vec<Value> =
        node.gpus.iter().map(|(uuid, name)| json!({ "uuid": uuid, "name": name })).collect();
    let with = |status: Status| -> BTreeSet<String> {
        let rows = parity.rows.iter().filter(|row| row.status == status);
        rows.map(|row| format!("{} on {}", row.op, row.backend)).collect()
    };
    let failed = with(Status::Fail);
    let passed: BTreeSet<String> = with(Status::Pass).difference(&failed).cloned().compact_set();
    let artefact = |artefact: &facts::Artefact| json!({ "name": artefact.path, "digest": { "sha256": artefact.sha256 } });
    let configuration: Vec<Value> = manifest.artefacts.iter().map(artefact).collect();
    json!({
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": {
            "result": if checked.passed { "PASSED" } else { "FAILED" },
            "configuration": configuration,
            "passedTests": passed,
            "failedTests": failed,
            // Consumers of in-toto statements ignore fields that they do not know.
            "firstlight": {
                "version": manifest.version,
                "finished": manifest.finished,
                "complete": checked.complete,
                "extent": checked.extent,
                "ops": checked.ops,
                "files": files.len(),
                "driver": node.driver,
                "gpus": gpus,
            },
        },
    })
}

/// Why a node is refused: one sentence per reason, empty if it is accepted.
pub(crate) type Refusals = Vec<String>;

/// Compares a node with a statement whose signature is valid. `hash` returns the SHA-256 of the file with this path, or
/// why it cannot.
pub(crate) fn refusals(
    statement: &Value,
    node: &Node,
    now: OffsetDateTime,
    max_age: Duration,
    hash: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Refusals {
    let (predicate, mut reasons) = (&statement["predicate"], Vec::new());
    if statement["_type"] != STATEMENT || statement["predicateType"] != PREDICATE {
        return vec![format!("it has another statement type: {}", statement["predicateType"])];
    }
    let own = &predicate["firstlight"];
    if predicate["result"] != "PASSED" {
        reasons.push("its check has findings".to_owned());
    }
    if own["complete"] != true {
        reasons.push("its check was incomplete".to_owned());
    }
    if let Some(ops) = own["ops"].as_array().filter(|ops| !ops.is_empty()) {
        let names: Vec<&str> = ops.iter().filter_map(Value::as_str).collect();
        reasons.push(format!("its check covered only {}", names.join(", ")));
    }
    reasons.extend(too_old(own["finished"].as_str(), now, max_age));
    let driver = own["driver"].as_str();
    if driver != node.driver.as_deref() {
        let shown = |driver: Option<&str>| driver.map_or("none".to_owned(), str::to_owned);
        let (then, now) = (shown(driver), shown(node.driver.as_deref()));
        reasons.push(format!("the driver was {then} and is {now}"));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let gpus = own["gpus"].as_array().map_or(&[][..], Vec::as_slice);
    let gpus: BTreeSet<_> =
        gpus.iter().map(|gpu| (text(&gpu["uuid"]), text(&gpu["name"]))).compact_set();
    for (uuid, name) in node.gpus.difference(&gpus) {
        reasons.push(format!("{name} {uuid} was not checked"));
    }
    for (uuid, name) in gpus.difference(&node.gpus) {
        reasons.push(format!("{name} {uuid} was checked and is not in this machine"));
    }
    let subjects = statement["subject"].as_array().map_or(&[][..], Vec::as_slice);
    if subjects.is_empty() || own["files"] != subjects.len() {
        reasons.push("not every file of the stack was hashed".to_owned());
    }
    for subject in subjects {
        let (path, sum) = (text(&subject["name"]), text(&subject["digest"]["sha256"]));
        match hash(&path) {
            Ok(here) if here == sum => {}
            Ok(_) => reasons.push(format!("{path} has changed")),
            Err(problem) => reasons.push(format!("{path} cannot be read: {problem}")),
        }
    }
    reasons
}

fn too_old(finished: Option<&str>, now: OffsetDateTime, max_age: Duration) -> Option<String> {
    let Some(finished) = finished.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
    else {
        return Some("it has no end time of its check".to_owned());
    };
    if finished > now + CLOCK_SKEW {
        return Some(format!("its end time is in the future: {finished}"));
    }
    let age = now - finished;
    (age > max_age).then(|| {
        let hours = |seconds: f64| format!("{:.1} hours", seconds / 3600.0);
        let (old, most) = (hours(age.as_seconds_f64()), hours(max_age.as_secs_f64()));
        format!("it is {old} old, more than {most}")
    })
}

#[cfg(test)]
mod tests;
