//! Validates workflows, action.yml and the bill of materials by published schemas, which `cargo xtask test` installs.

use super::sbom;
use crate::cargo;
use crate::steps::output;
use std::path::PathBuf;
use std::process::Command;

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("FIRSTLIGHT_SCHEMAS_PYTHON").map(PathBuf::from);
    if python.is_none() {
        eprintln!("SKIP: FIRSTLIGHT_SCHEMAS_PYTHON names no Python with the schemas");
    }
    python
}

#[test]
fn workflows_and_the_action_match_the_published_schemas() {
    let Some(python) = python() else { return };
    let root = cargo::workspace_root().unwrap();
    let validate = |schema: &str, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file.yml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(&python);
        command.args(["-m", "check_jsonschema", "--builtin-schema", schema]).arg(&file);
        output(&mut command).map(|_| ())
    };
    for (schema, file, from, to) in [
        ("vendor.github-workflows", ".github/workflows/release.yml", "runs-on:", "run-on:"),
        ("vendor.github-actions", "action.yml", "using: composite", "using: compost"),
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        validate(schema, &text).unwrap();
        validate(schema, &text.replace(from, to)).unwrap_err();
    }
}

#[test]
fn the_bill_of_materials_matches_the_published_schemas() {
    let Some(python) = python() else { return };
    let root = cargo::workspace_root().unwrap();
    let bill = sbom::of(&root, "x86_64-unknown-linux-gnu", "0.2.0", 1_763_700_000).unwrap();
    let program = "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import JsonStrictValidator; \
                   wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read()); sys.exit(str(wrong) if wrong else 0)";
    let validate = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bill.json");
        std::fs::write(&file, text).unwrap();
        output(Command::new(&python).args(["-I", "-c", program]).arg(&file)).map(|_| ())
    };
    validate(&bill.to_string()).unwrap();
    validate(&bill.to_string().replace("\"library\"", "\"books\"")).unwrap_err();
}
