//! The environment is replaced whole, the old one is kept, and what is already so is left.

use super::world::{World, contents, marker, version};
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
    assert_eq!(world.beside(), [".venv", ".venv.firstlight-old"]);

    // Once more: nothing is fetched, nothing is made.
    let after = contents(&world.venv());
    let again = world.applied(&plan, &[]);
    assert_eq!(again["outcome"], "unchanged");
    assert_eq!(steps(&again), ["examine", "prove"]);
    assert_eq!(contents(&world.venv()), after);
    assert_eq!(world.server.asked(".whl").iter().filter(|it| it.from.is_none()).count(), 2);

    let discarded = world.applied(&plan, &["--discard-old"]);
    assert_eq!(discarded["kept_old"], Value::Null);
    assert_eq!(world.beside(), [".venv"]);
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
    assert_eq!(world.beside(), [".venv"]);
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
