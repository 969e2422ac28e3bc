//! The environment is replaced whole, the old one is kept, and what is already so is left.

use super::world::{ANY, World, contents, marker, said, version};
use crate::wheel::Wheel;
use serde_json::Value;

fn steps(report: &Value) -> Vec<&str> {
    report["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect()
}

#[test]
fn r0_08_an_environment_is_replaced_whole_and_the_old_one_kept_until_it_is_discarded() {
    let world = World::new().with_old("1.0");
    let before = contents(&world.venv());
    let plan = world.plan(&[marker("2.0").build()]);
    let report = world.applied(&plan, &[]);
    assert_eq!((&report["outcome"], &report["resumed"]), (&"replaced".into(), &false.into()));
    assert_eq!(
        steps(&report),
        ["preconditions", "download", "judge", "install", "examine", "prove", "switch"]
    );
    assert_eq!(version(&world.venv()), "2.0");
    // The old one is the same files, and would run where it was.
    let old = world.path(".venv.firstlight-old");
    assert_eq!(report["kept_old"], old.to_str().unwrap());
    let moved = |(path, bytes, time): &(std::path::PathBuf, u64, _)| {
        (old.join(path.strip_prefix(world.venv()).unwrap()), *bytes, *time)
    };
    assert_eq!(contents(&old), before.iter().map(moved).collect::<Vec<_>>());
    assert_eq!(world.apply_folders(), [".venv", ".venv.firstlight-old"]);

    // Once more: nothing is fetched, nothing is made.
    let after = contents(&world.venv());
    let again = world.applied(&plan, &[]);
    assert_eq!(again["outcome"], "unchanged");
    assert_eq!(steps(&again), ["verify", "examine", "prove"]);
    assert_eq!(contents(&world.venv()), after);
    assert_eq!(world.server.asked(".whl").iter().filter(|it| it.from.is_none()).count(), 2);

    let discarded = world.applied(&plan, &["--discard-old"]);
    assert_eq!(discarded["kept_old"], Value::Null);
    assert_eq!(world.apply_folders(), [".venv"]);
    assert_eq!(version(&world.venv()), "2.0");
}

#[test]
fn an_environment_that_was_changed_since_is_made_again_without_fetching() {
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    assert_eq!(world.applied(&plan, &[])["outcome"], "made");
    let asked = world.server.asked("").len();
    std::fs::remove_dir_all(
        world.venv().join(format!("lib/python{}/site-packages/marker-2.0.dist-info", plan.python)),
    )
    .unwrap();
    let report = world.applied(&plan, &["--discard-old"]);
    assert_eq!(
        (&report["outcome"], &report["packages"][0]["fetched_bytes"]),
        (&"replaced".into(), &0.into())
    );
    assert_eq!(version(&world.venv()), "2.0");
    assert_eq!(world.server.asked("").len(), asked);
    assert_eq!(world.apply_folders(), [".venv"]);
}

#[test]
fn nobody_is_asked_about_a_plan_that_is_satisfied() {
    let world = World::new().with_old("1.0");
    let plan = world.plan(&[marker("2.0").build()]);
    world.write(&plan);
    let (out, err) = said(&world.asking(&[]).output().unwrap(), 2);
    assert!(out.is_empty() && err.contains("add --yes to replace"), "{out}{err}");
    world.applied(&plan, &[]);
    let (out, err) = said(&world.asking(&["--json"]).output().unwrap(), 0);
    assert!(out.contains("\"unchanged\""), "{out}{err}");
    // Another plan would replace it.
    world.write(&world.plan(&[marker("3.0").build()]));
    said(&world.asking(&[]).output().unwrap(), 2);
}

#[test]
fn an_environment_whose_python_was_removed_is_made_again() {
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    assert_eq!(world.applied(&plan, &[])["outcome"], "made");
    let python = world.venv().join("bin/python");
    std::fs::remove_file(&python).unwrap();
    std::os::unix::fs::symlink("/nowhere/python3", &python).unwrap();
    let report = world.applied(&plan, &["--discard-old"]);
    assert_eq!(report["outcome"], "replaced");
    let look = report["steps"][0]["outcome"].as_str().unwrap();
    assert!(look.contains("bin/python points to /nowhere/python3, which is missing"), "{look}");
    assert_eq!(report["packages"][0]["fetched_bytes"], 0);
    assert_eq!(version(&world.venv()), "2.0");
}

#[test]
fn r0_09_the_block_of_the_proof_is_printed() {
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    let (out, err) = world.apply(&plan, &[], 0);
    let block: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for (label, value) in [
        ("python", crate::tools::python()),
        ("torch", "not installed"),
        ("cuda", "none: torch is not installed"),
        ("triton", "not installed"),
        ("flash_attn", "not installed"),
    ] {
        let says = |line: &Vec<&str>| {
            line.first() == Some(&label) && line[1..].join(" ").starts_with(value)
        };
        assert!(block.iter().any(says), "no {label} of {value} in {out}");
    }
    assert!(out.contains("is made with 1 package"), "{out}");
    assert_eq!(err, "", "progress is for terminals");
}

#[test]
fn proving_is_timed_from_the_start_of_its_interpreter() {
    // Reading so many files takes longer than the interpreter, which starts before and runs meanwhile.
    let mut wheel = Wheel::new("marker", "2.0", ANY);
    for at in 0..4000 {
        wheel = wheel.file(&format!("marker/part_{at}.py"), "WORD = 'part'\n");
    }
    let world = World::new();
    let plan = world.plan(&[wheel.build()]);
    let report = world.applied(&plan, &[]);
    let steps = report["steps"].as_array().unwrap();
    let millis = |name: &str| {
        let step = steps.iter().find(|step| step["name"] == name).unwrap();
        step["millis"].as_f64().unwrap()
    };
    assert!(millis("prove") >= millis("examine"), "{steps:?}");
}

#[test]
fn names_and_versions_are_not_believed_and_a_repair_writes_only_what_is_harmed() {
    let world = World::new();
    let other = Wheel::new("other", "1.0", ANY).file("other/__init__.py", "WORD = 'other'\n");
    let plan = world.plan(&[marker("2.0").build(), other.build()]);
    assert_eq!(world.applied(&plan, &[])["outcome"], "made");
    let whole = contents(&world.venv());
    let site = |file: &str| {
        let found = whole.iter().find(|(path, ..)| path.ends_with(file));
        found.unwrap_or_else(|| panic!("no {file}")).0.clone()
    };
    let harms: [(&str, &dyn Fn()); 5] = [
        ("a file of the same size and other bytes", &|| {
            let file = site("other/__init__.py");
            std::fs::write(
                &file,
                std::fs::read_to_string(&file).unwrap().replace("'other'", "'oth r'"),
            )
            .unwrap();
        }),
        ("a file cut off", &|| std::fs::write(site("marker.py"), "VERSION = ").unwrap()),
        ("a file that is gone", &|| std::fs::remove_file(site("other/__init__.py")).unwrap()),
        ("a program that is gone", &|| std::fs::remove_file(site("bin/marker")).unwrap()),
        ("a package whose RECORD is gone", &|| {
            std::fs::remove_file(site("other-1.0.dist-info/RECORD")).unwrap();
            std::fs::remove_file(site("other/__init__.py")).unwrap();
        }),
    ];
    let names = |all: &[(std::path::PathBuf, u64, std::time::SystemTime)]| {
        all.iter().map(|(path, bytes, _)| (path.clone(), *bytes)).collect::<Vec<_>>()
    };
    for (what, harm) in harms {
        harm();
        let report = world.applied(&plan, &["--repair"]);
        assert_eq!(report["outcome"], "repaired", "{what}: {report:#}");
        assert_eq!(names(&contents(&world.venv())), names(&whole), "{what}");
        assert_eq!(version(&world.venv()), "2.0", "{what}");
        assert_eq!(world.apply_folders(), [".venv"], "{what}");
        assert_eq!(world.applied(&plan, &["--repair"])["outcome"], "unchanged", "{what}");
    }
    // Without a repair it is not "already so" either: the environment is made anew.
    std::fs::write(site("marker.py"), "VERSION = ").unwrap();
    assert_eq!(world.applied(&plan, &[])["outcome"], "replaced");
    assert_eq!(version(&world.venv()), "2.0");
    // What the plan did not install is not the repair's to judge.
    std::fs::create_dir_all(site("marker.py").with_file_name("third-1.0.dist-info")).unwrap();
    let (_, err) = world.apply(&plan, &["--repair"], 2);
    assert!(err.contains("differs from this plan") && err.contains("hint: "), "{err}");
}
