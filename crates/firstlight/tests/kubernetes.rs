//! The files for Kubernetes against the schemas that it publishes. `cargo xtask test` names the program that has them.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::tempdir;

/// Validates a file against the Kubernetes schemas and returns the validator's output. Unknown keys are errors.
fn judged(file: &Path) -> Result<String, String> {
    let program = PathBuf::from(std::env::var_os("FIRSTLIGHT_KUBERNETES_VALIDATE").unwrap());
    let output = Command::new(program).arg("--strict").arg(file).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

#[test]
fn manifests_match_kubernetes_schemas() {
    let folder = tempdir().unwrap();
    for (kind, resources) in [
        ("kubernetes-job", &["service", "job"][..]),
        ("daemonset", &["daemonset"]),
        ("init-container", &["pod"]),
    ] {
        support::expect(folder.path(), &["check", "--emit", kind, "--nodes", "8", "-o", kind], 0);
        let file = folder.path().join(kind);
        let said = judged(&file).unwrap();
        for resource in resources {
            assert!(said.contains(&format!("passed for resource {resource}/")), "{kind}: {said}");
        }
        // The same file with a typo is rejected, which shows that the validation works.
        let text = std::fs::read_to_string(&file).unwrap();
        let slip = text.replace("containers:", "containerz:");
        std::fs::write(&file, slip).unwrap();
        let said = judged(&file).unwrap_err();
        assert!(said.contains("'containers' is a required property"), "{kind}: {said}");
    }
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes.yaml");
    judged(Path::new(published)).unwrap();
}
