//! Packages that are missing or cannot be loaded: N/A unless the user named them, failures otherwise.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use super::{Peer, Peers, ProcessLimits, Python, Session, case};
use facts::{BackendKind, ParityRow, Status};
use std::path::{Path, PathBuf};
use std::time::Duration;
use verify::run_case;

/// Writes modules into a folder, each with one line that runs on import.
fn packages(folder: &Path, modules: &[(&str, &str)]) {
    for (module, line) in modules {
        let package = folder.join(module);
        std::fs::create_dir_all(&package).unwrap();
        std::fs::write(package.join("__init__.py"), format!("{line}\n")).unwrap();
    }
}

fn rows(folder: &Path, peers: &[Peer]) -> Vec<ParityRow> {
    let limits = ProcessLimits { time: Duration::from_secs(60), memory_bytes: 600 << 20 };
    let python =
        Python { interpreter: PathBuf::from("python3"), paths: vec![folder.to_owned()], limits };
    let session = &mut Session::start(python).expect("the tests of peers need python3 on PATH");
    let device = backends::open(BackendKind::Cpu).unwrap();
    let mut peers = Peers { session, peers, backend: BackendKind::Cpu, budget: None };
    let mut rows = Vec::new();
    run_case(&case(2, 2), &device, false, Some(&mut peers), &mut |row| rows.push(row));
    rows.remove(0);
    rows
}

fn listed(named: &[&str]) -> Vec<Peer> {
    let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
    Peer::listed(&named).into_iter().filter(|peer| peer.op == "attention").collect()
}

#[test]
fn broken_torch_fails_the_packages_that_are_installed() {
    let folder = tempfile::tempdir().unwrap();
    let cause = "libcudart.so.12: cannot open shared object file: No such file or directory";
    packages(
        folder.path(),
        &[("torch", &format!("raise ImportError('{cause}')")), ("ffpa_attn", "")],
    );
    for row in rows(folder.path(), &listed(&[])) {
        let installed = row.variant.starts_with("torch.") || row.variant.starts_with("ffpa.");
        if installed {
            let why = format!("torch cannot be imported: ImportError: {cause}");
            assert_eq!((row.status, row.reason), (Status::Fail, why), "{}", row.variant);
        } else {
            assert_eq!(row.status, Status::NotApplicable, "{}: {}", row.variant, row.reason);
            assert!(row.reason.ends_with("is not installed in this environment"), "{}", row.reason);
        }
    }
}

#[test]
fn missing_package_fails_only_if_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let why = "flash_attn is not installed in this environment";
    for (named, status) in [(&[][..], Status::NotApplicable), (&["flash_attn"], Status::Fail)] {
        let rows = rows(folder.path(), &listed(named));
        let of_package = rows.iter().filter(|row| row.variant.starts_with("flash_attn."));
        let of_package: Vec<_> = of_package.map(|row| (row.status, row.reason.as_str())).collect();
        assert_eq!(of_package, [(status, why); 2]);
    }
}

#[test]
fn installed_package_without_torch_fails_only_if_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    packages(folder.path(), &[("ffpa_attn", "")]);
    let why = "torch cannot be imported: ModuleNotFoundError: No module named 'torch'";
    for (named, status) in [(&[][..], Status::NotApplicable), (&["ffpa"], Status::Fail)] {
        let rows = rows(folder.path(), &listed(named));
        let row = rows.iter().find(|row| row.variant == "ffpa.triton").unwrap();
        assert_eq!((row.status, row.reason.as_str()), (status, why));
    }
}

#[test]
fn function_of_a_module_that_raises_on_import_fails_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    packages(
        folder.path(),
        &[
            ("halves", "import dependency_of_halves"),
            ("refuses", "raise SystemExit('needs a license')"),
            ("calls", "def late(tensors, settings):\n    import dependency_of_calls"),
        ],
    );
    let functions = [
        ("halves:f", "ModuleNotFoundError: No module named 'dependency_of_halves'"),
        ("refuses:f", "SystemExit: needs a license"),
        ("calls:late", "ModuleNotFoundError: No module named 'dependency_of_calls'"),
    ];
    let named = |(function, _): &(&str, &str)| Peer::function(&format!("attention={function}"));
    let peers: Vec<Peer> = functions.iter().map(|function| named(function).unwrap()).collect();
    for (row, (function, why)) in rows(folder.path(), &peers).iter().zip(functions) {
        assert_eq!((row.status, row.reason.as_str()), (Status::Fail, why), "{function}");
    }
}
