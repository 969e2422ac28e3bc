//! An unchanged node is accepted; each change is a reason.

use super::*;
use std::time::Duration;
use time::macros::datetime;

const DAY: Duration = Duration::from_secs(86_400);
const H200: (&str, &str) = ("GPU-1", "NVIDIA H200");

fn statement() -> Value {
    json!({
        "_type": STATEMENT,
        "predicateType": PREDICATE,
        "subject": [
            { "name": "/lib/libcuda.so.1", "digest": { "sha256": "aa" } },
            { "name": "/venv/torch.so", "digest": { "sha256": "bb" } },
        ],
        "predicate": {
            "result": "PASSED",
            "firstlight": {
                "finished": "2026-11-28T12:00:00Z",
                "complete": true,
                "ops": [],
                "files": 2,
                "driver": "580.159.04",
                "gpus": [{ "uuid": H200.0, "name": H200.1 }],
            },
        },
    })
}

fn node() -> Node {
    let gpus = [(H200.0.to_owned(), H200.1.to_owned())].into();
    Node { driver: Some("580.159.04".to_owned()), gpus }
}

fn hash(path: &str) -> Result<String, String> {
    match path {
        "/lib/libcuda.so.1" => Ok("aa".to_owned()),
        "/venv/torch.so" => Ok("bb".to_owned()),
        _ => Err("No such file".to_owned()),
    }
}

fn judge(statement: &Value, node: &Node) -> Refusals {
    refusals(statement, node, datetime!(2026-11-29 11:00 UTC), DAY, &mut hash)
}

#[test]
fn accepts_an_unchanged_node() {
    assert_eq!(judge(&statement(), &node()), Refusals::new());
}

#[test]
fn each_change_of_the_statement_is_one_reason() {
    for (pointer, value, reason) in [
        ("/predicate/result", json!("FAILED"), "its check has findings"),
        ("/predicate/result", json!(null), "its check has findings"),
        ("/predicate/firstlight/complete", json!(false), "was incomplete"),
        ("/predicate/firstlight/ops", json!(["ssd", "kda"]), "its check covered only ssd, kda"),
        ("/predicate/firstlight/files", json!(3), "not every file of the stack was hashed"),
        ("/predicate/firstlight/finished", json!(null), "has no end time"),
        ("/predicate/firstlight/finished", json!("2026-11-28T10:59:00Z"), "24.0 hours old"),
        ("/predicate/firstlight/finished", json!("2026-11-29T11:06:00Z"), "in the future"),
        ("/predicate/firstlight/driver", json!("570.1"), "the driver was 570.1 and is 580.159.04"),
        ("/predicate/firstlight/driver", json!(null), "the driver was none and is 580.159.04"),
        ("/predicate/firstlight/gpus", json!([]), "NVIDIA H200 GPU-1 was not checked"),
        ("/subject/0/digest/sha256", json!("ab"), "/lib/libcuda.so.1 has changed"),
        ("/subject/1/name", json!("/gone.so"), "/gone.so cannot be read: No such file"),
        (
            "/predicateType",
            json!("https://slsa.dev/provenance/v1"),
            "it has another statement type",
        ),
    ] {
        let mut changed = statement();
        *changed.pointer_mut(pointer).unwrap() = value;
        let reasons = judge(&changed, &node());
        assert_eq!(reasons.len(), 1, "{pointer}: {reasons:?}");
        assert!(reasons[0].contains(reason), "{pointer}: {reasons:?}");
    }
    let mut empty = statement();
    empty["subject"] = json!([]);
    empty["predicate"]["firstlight"]["files"] = json!(0);
    assert_eq!(judge(&empty, &node()), ["not every file of the stack was hashed"]);
    assert_eq!(judge(&json!({}), &node()).len(), 1);
}

#[test]
fn another_gpu_and_a_missing_driver_are_reasons() {
    let other = Node { gpus: [("GPU-2".to_owned(), H200.1.to_owned())].into(), ..node() };
    let reasons = judge(&statement(), &other);
    assert_eq!(
        reasons,
        [
            "NVIDIA H200 GPU-2 was not checked",
            "NVIDIA H200 GPU-1 was checked and is not in this machine"
        ]
    );
    let reasons = judge(&statement(), &Node { driver: None, ..node() });
    assert_eq!(reasons, ["the driver was 580.159.04 and is none"]);
}

#[test]
fn a_statement_has_every_file_and_refuses_those_that_were_not_read() {
    let file = |path: &str, sha256: Option<&str>| StackFile {
        what: "a library".to_owned(),
        path: path.to_owned(),
        version: None,
        bytes: 1,
        sha256: sha256.map(str::to_owned),
    };
    let manifest: RunManifest = serde_json::from_value(json!({
        "schema": 1, "state": "complete", "command": [], "version": "0.2.0", "host": "h",
        "started": "2026-11-28T11:00:00Z", "finished": "2026-11-28T12:00:00Z",
        "stages": [], "not_run": [], "artefacts": [],
    }))
    .unwrap();
    let made = |files: &[StackFile]| {
        let parity = ParityReport { schema: 1, rows: Vec::new() };
        of(&Checked {
            node: node(),
            parity: &parity,
            manifest: &manifest,
            files,
            extent: "standard",
            ops: &[],
            passed: true,
            complete: true,
        })
    };
    let whole = [file("/lib/libcuda.so.1", Some("aa")), file("/venv/torch.so", Some("bb"))];
    assert_eq!(judge(&made(&whole), &node()), Refusals::new());
    let partly = [file("/lib/libcuda.so.1", Some("aa")), file("/venv/torch.so", None)];
    assert_eq!(judge(&made(&partly), &node()), ["not every file of the stack was hashed"]);
}
