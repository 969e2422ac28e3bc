//! Every stored profile on a machine of every kind, as golden files.
//!
//! `FIRSTLIGHT_GOLDEN=write cargo test -p setup --test emit golden` rewrites them, except those for x86-64. For these
//! the value is `write-x86_64`, so that work on other machines cannot change the most common ones (row R1-17).

use facts::{InstallPlan, PlanRefusal, PlanTarget};
use setup::emit::{FORMATS, emit};
use setup::{PlanRequest, machines, plan, profiles};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Formats that differ by machine; the others are stored once for each profile, on its own machine.
const EVERYWHERE: &[&str] = &["plan.toml", "pyproject.toml"];

/// The machines with golden files: each kind of system and processor, and each generation of GPUs.
const KEPT: &[&str] = &[
    "gh200",
    "gb200",
    "h100",
    "h200",
    "b200",
    "a10",
    "v100",
    "rtx4090",
    "rtx5090",
    "gb10",
    "jetson-orin",
    "jetson-thor",
    "m-series",
    "cpu-x86_64",
    "cpu-aarch64",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Files by their path below the folder, and whether they are for x86-64.
fn wanted() -> BTreeMap<String, (String, bool)> {
    let mut files = BTreeMap::new();
    let targets = machines().into_iter().filter(|it| KEPT.contains(&it.name.as_str()));
    let targets: Vec<PlanTarget> = targets.collect();
    for profile in profiles() {
        let request = PlanRequest::of_profile(profile).unwrap();
        for target in &targets {
            let x86_64 = target.arch == "x86_64";
            let place = format!("{}/{}", profile.name, target.name);
            match plan(&request, target) {
                Ok(plan) => {
                    for (format, text) in texts(&plan, target.name == profile.machine) {
                        files.insert(format!("{place}/{format}"), (text, x86_64));
                    }
                }
                Err(refusal) => {
                    files.insert(format!("{place}/refusal.txt"), (refused(&refusal), x86_64));
                }
            }
        }
    }
    files
}

fn texts(plan: &InstallPlan, home: bool) -> Vec<(&'static str, String)> {
    let formats = FORMATS.iter().map(|format| format.name);
    let formats = formats.filter(|name| home || EVERYWHERE.contains(name));
    // A format that is online, or not for this machine, is refused, which is tested elsewhere.
    let texts = formats.filter_map(|name| Some((name, emit(plan, name).ok()?)));
    texts.map(|(name, text)| (name, without_version(&text))).collect()
}

/// A new release of firstlight alone changes no golden file.
fn without_version(text: &str) -> String {
    let made_by = concat!("firstlight ", env!("CARGO_PKG_VERSION"));
    text.replace(made_by, "firstlight VERSION")
}

fn refused(refusal: &PlanRefusal) -> String {
    let PlanTarget { name, .. } = &refusal.target;
    let mut text = format!("no plan for {name}, for these cannot all hold:\n");
    for fact in &refusal.conflict {
        let _ = writeln!(text, "- {} [{}]", fact.value, fact.source);
    }
    for nearest in &refusal.nearest {
        let _ = writeln!(text, "{}: {}", nearest.change, nearest.stack);
    }
    text
}

/// Paths of all files below a folder.
fn below(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            below(&path, root, found);
        } else {
            let path = path.strip_prefix(root).unwrap();
            found.insert(path.to_str().unwrap().replace('\\', "/"));
        }
    }
}

#[test]
fn r1_09_a_want_keeps_its_marker_up_to_the_project() {
    let profile = profiles().iter().find(|profile| profile.name == "h2o-llm-studio").unwrap();
    let text = |machine: &str| {
        let target = machines().into_iter().find(|target| target.name == machine).unwrap();
        emit(&plan(&PlanRequest::of_profile(profile).unwrap(), &target).unwrap(), "pyproject.toml")
            .unwrap()
    };
    let line = "\"bitsandbytes==";
    let there = text("a10");
    let there = there.lines().find(|one| one.contains(line)).unwrap();
    assert!(there.contains("; platform_machine == 'x86_64'"), "{there}");
    assert!(!text("gh200").contains(line));
}

#[test]
fn r1_17_plans_equal_the_golden_files() {
    let root = folder();
    let switch = std::env::var("FIRSTLIGHT_GOLDEN").unwrap_or_default();
    let wanted = wanted();
    let mut there = BTreeSet::new();
    below(&root, &root, &mut there);
    let mut wrong = Vec::new();
    for (path, (text, x86_64)) in &wanted {
        let file = root.join(path);
        let same = fs::read_to_string(&file).is_ok_and(|kept| kept == *text);
        if same {
            continue;
        }
        if switch == "write-x86_64" || (switch == "write" && !x86_64) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
        } else {
            wrong.push(format!("{path} is not what is planned now"));
        }
    }
    for path in there.iter().filter(|path| !wanted.contains_key(*path)) {
        if switch.starts_with("write") {
            fs::remove_file(root.join(path)).unwrap();
        } else {
            wrong.push(format!("{path} is no longer planned"));
        }
    }
    let hint = "FIRSTLIGHT_GOLDEN=write writes what is planned now, write-x86_64 also for x86-64; say in the commit why";
    assert!(wrong.is_empty(), "{}\nhint: {hint}", wrong.join("\n"));
}
