//! Installed files equal those of uv, for the same wheels.

use super::world::{World, published};
use crate::tools::{done, python, uv_command};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Wheels with every kind of file: scripts, entry points, headers (greenlet) and data (jupyterlab-widgets).
const PACKAGES: [(&str, &str); 6] = [
    ("greenlet", "3.2.4"),
    ("jupyterlab-widgets", "3.0.15"),
    ("ninja", "1.13.0"),
    ("numpy", "2.2.6"),
    ("pybind11", "3.0.1"),
    ("tqdm", "4.67.1"),
];

/// Files about the installer and the origin of a wheel.
const NOTES: [&str; 4] = ["INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"];

fn is_note(path: &Path) -> bool {
    NOTES.iter().any(|note| path.ends_with(note))
}

/// Every file of the packages, with its executable bit and content.
fn files(environment: &Path) -> BTreeMap<PathBuf, (bool, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = ["bin", "etc", "include", "lib", "share"].map(PathBuf::from).to_vec();
    while let Some(place) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(environment.join(&place)) else { continue };
        for entry in entries.map(Result::unwrap) {
            let place = place.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && entry.file_name() != "__pycache__" {
                pending.push(place);
            } else if kind.is_file() && !is_note(&place) {
                let run = entry.metadata().unwrap().permissions().mode() & 0o111 != 0;
                found.insert(place, (run, std::fs::read(entry.path()).unwrap()));
            }
        }
    }
    found
}

/// The lines of a RECORD, without [`NOTES`]. Scripts have no hash, because the two installers write different scripts.
fn lines(record: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8(record.to_vec()).unwrap();
    let line = |line: &str| {
        let (path, _) = line.split_once(',').unwrap();
        (!is_note(Path::new(path))).then(|| match path.starts_with("../../../bin/") {
            true => path.to_owned(),
            false => line.to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn r2_06_installed_files_equal_those_of_uv() {
    let world = World::new();
    let plan = published(&PACKAGES);
    world.applied(&plan, &[]);
    let by_uv = world.path("by-uv");
    done(uv_command(&["venv", "--quiet", "--relocatable", "--python", "python3"]).arg(&by_uv));
    let cache = world.path("cache/firstlight/files");
    let kept = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let wheels = kept.map(|folder| {
        let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.find(|file| file.extension().is_some_and(|ending| ending == "whl")).unwrap()
    });
    let install = ["pip", "install", "--quiet", "--offline", "--no-deps", "--python"];
    done(uv_command(&install).arg(by_uv.join("bin/python")).args(wheels));

    let (ours, theirs) = (files(&world.venv()), files(&by_uv));
    let names = |files: &BTreeMap<PathBuf, (bool, Vec<u8>)>| {
        files.iter().map(|(place, (run, _))| (place.clone(), *run)).collect::<Vec<_>>()
    };
    assert_eq!(names(&ours), names(&theirs));
    let include = format!("include/site/python{}/greenlet/greenlet.h", python());
    for place in [include.as_str(), "bin/tqdm", "bin/ninja", "share/jupyter"] {
        let there = |at: &&PathBuf| at.starts_with(place);
        assert!(ours.keys().any(|at| there(&at)), "{place} was to be among them");
    }
    for (place, (_, content)) in &ours {
        let other = &theirs[place].1;
        if place.ends_with("RECORD") {
            assert_eq!(lines(content), lines(other), "{}", place.display());
        } else if content.starts_with(b"#!") && place.starts_with("bin") {
            let head = |text: &[u8]| {
                text.split(|byte| *byte == b'\n').take(3).collect::<Vec<_>>().concat()
            };
            assert_eq!(head(content), head(other), "{}", place.display());
        } else if !place.starts_with("bin") || !place.to_string_lossy().contains("activate") {
            assert!(content == other, "{} has other bytes", place.display());
        }
    }

    // Another tool uninstalls by RECORD, and no file of a package remains.
    let names = plan.packages.iter().map(|package| package.name.as_str());
    let uninstall = ["pip", "uninstall", "--quiet", "--python"];
    done(Command::new(world.venv().join("bin/tqdm")).arg("--version"));
    done(uv_command(&uninstall).arg(world.venv().join("bin/python")).args(names));
    let left = files(&world.venv());
    let of_package = |place: &&PathBuf| !place.starts_with("bin");
    assert_eq!(left.keys().filter(of_package).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    assert!(!left.contains_key(Path::new("bin/tqdm")));
}
