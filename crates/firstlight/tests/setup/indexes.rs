//! Plans with several indexes: torch's, which is always explicit, an index of GPU wheels, and a release page.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::apply::world::empty;
use crate::server::Server;
use crate::stack::{NEW_ABI, flash_attn, kernels, tag, torch};
use crate::tools::{python, uv, uv_command};
use crate::wheel::Wheel;
use facts::{InstallPlan, PackageOrigin, PlanIndex, PlannedFile, PlannedPackage};
use std::path::Path;
use std::process::Output;

/// Row R1-06: torch's index also has an old requests, and PyPI has the current one.
fn servers() -> Server {
    let server = Server::start();
    let requests =
        |version| Wheel::new("requests", version, "py3-none-any").file("requests.py", "").build();
    server.index("cu128", &torch("2.8.0+cu128").build());
    server.index("cu128", &requests("2.28.1"));
    server.index("simple", &requests("2.32.5"));
    server
}

/// Runs `uv pip compile` on these requirements.
fn compile(server: &Server, folder: &Path, requirements: &str, arguments: &[&str]) -> Output {
    let file = folder.join("requirements.in");
    std::fs::write(&file, requirements).unwrap();
    let (default, own) = (server.url("simple"), server.url("cu128"));
    let mut command = uv_command(&["pip", "compile", "--no-header", "--no-annotate", "--no-cache"]);
    command.args(["--python-version", python(), "--default-index", &default, "--index", &own]);
    command.args(arguments).arg(&file).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn r1_06_extra_index_hides_current_requests() {
    let (server, folder) = (servers(), tempfile::tempdir().unwrap());
    let wanted = "torch\nrequests==2.32.5\n";
    // By default uv uses only the first index that has a package.
    let output = compile(&server, folder.path(), wanted, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("requests") && said.contains("2.32.5") && said.contains("cu128"),
        "{said}"
    );
    // The common workaround, `unsafe-best-match`, resolves.
    let unsafe_match = ["--index-strategy", "unsafe-best-match"];
    let found = lines(&compile(&server, folder.path(), wanted, &unsafe_match));
    assert_eq!(found, ["requests==2.32.5", "torch==2.8.0+cu128"]);
    // It also installs a newer requests that a third party publishes on torch's index.
    let newer = Wheel::new("requests", "99.0", "py3-none-any").file("requests.py", "").build();
    server.index("cu128", &newer);
    let found = lines(&compile(&server, folder.path(), "torch\nrequests\n", &unsafe_match));
    assert_eq!(found, ["requests==99.0", "torch==2.8.0+cu128"]);
}

/// A plan for this machine with the server's stand-ins of PyPI, torch's index and a release page.
fn plan(server: &Server, packages: &[(&str, &str, &str)]) -> InstallPlan {
    let index = |name: &str, path: &str, explicit: bool, flat: bool| PlanIndex {
        name: name.to_owned(),
        url: server.url(path),
        explicit,
        flat,
    };
    let package = |(name, version, index): &(&str, &str, &str)| PlannedPackage {
        name: (*name).to_owned(),
        version: (*version).to_owned(),
        index: (*index).to_owned(),
        because: "wanted".to_owned(),
        origin: PackageOrigin::Wheel,
        marker: None,
        files: Vec::new(),
        source: "this test".to_owned(),
    };
    InstallPlan {
        indexes: vec![
            index("pypi", "simple", false, false),
            index("pytorch-cu128", "cu128", true, false),
            index("flash-attention", "releases/v2.8.3/", true, true),
        ],
        locked: false,
        ..empty("", packages.iter().map(package).collect())
    }
}

/// The files of each package of a locked plan.
fn files(plan: &InstallPlan) -> Vec<(&str, &[PlannedFile])> {
    plan.packages.iter().map(|package| (package.name.as_str(), package.files.as_slice())).collect()
}

#[test]
fn r1_06_explicit_index_keeps_requests_on_the_default() {
    let server = servers();
    let newer = Wheel::new("requests", "99.0", "py3-none-any").file("requests.py", "").build();
    server.index("cu128", &newer);
    let packages = [("torch", "2.8.0+cu128", "pytorch-cu128"), ("requests", "2.32.5", "pypi")];
    let locked = setup::lock::lock(&plan(&server, &packages), uv()).unwrap();
    let addresses: Vec<(&str, bool)> = files(&locked)
        .into_iter()
        .map(|(name, files)| {
            let url = files[0].url.as_deref().unwrap();
            (name, url.starts_with(&server.url("cu128")))
        })
        .collect();
    assert_eq!(addresses, [("torch", true), ("requests", false)]);
    assert!(server.asked("/cu128/requests/").is_empty(), "torch's index was asked for requests");
}

#[test]
fn r4_08_locks_the_matching_wheel_with_its_hash() {
    let server = servers();
    let fits = flash_attn(&kernels(NEW_ABI, &["sm_90"])).build();
    server.release("releases/v2.8.3", &fits);
    let own = tag();
    let other = if own.contains("x86_64") { ("x86_64", "aarch64") } else { ("aarch64", "x86_64") };
    for tag in [own.replace(other.0, other.1), "cp39-cp39-linux_x86_64".to_owned()] {
        let wheel = Wheel::new("flash_attn", "2.8.3+cu12torch2.8cxx11abiTRUE", &tag);
        server.release("releases/v2.8.3", &wheel.build());
    }
    let version = "2.8.3+cu12torch2.8cxx11abiTRUE";
    let packages =
        [("torch", "2.8.0+cu128", "pytorch-cu128"), ("flash-attn", version, "flash-attention")];
    let locked = setup::lock::lock(&plan(&server, &packages), uv()).unwrap();
    let (_, [file]) = files(&locked)[1] else { panic!("{:?}", files(&locked)) };
    assert_eq!((&file.name, file.sha256.as_deref()), (&fits.name, Some(fits.sha256.as_str())));
    // Neither the release page nor this index has sizes, so they are read from the server of each file.
    assert_eq!(file.bytes, Some(fits.bytes.len() as u64));
    assert!(files(&locked).iter().all(|(_, files)| files.iter().all(|file| file.bytes.is_some())));
}
