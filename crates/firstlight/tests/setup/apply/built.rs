//! A package that is built from source: compiled against the new environment, checked, installed, and not built again by an
//! apply after a killed one.

use super::world::{World, contents, planned, published, version};
use crate::source_build::{FORCED, recipe, sdist};
use crate::stack::{extension, tag};
use crate::support::library::Library;
use crate::tools::done;
use crate::wheel::Wheel;
use facts::{InstallPlan, PackageOrigin, PlannedPackage};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A plan of the build tools from the Python registry and the package from its source, with these switches.
fn plan(world: &World, switches: &[(&str, &str)]) -> InstallPlan {
    let mut plan =
        published(&[("packaging", "25.0"), ("pybind11", "3.0.1"), ("setuptools", "80.9.0")]);
    let file = sdist(world.folder.path());
    world.server.release("sources", &file);
    let recipe = recipe(&world.server.url("releases/v1.0"), switches);
    plan.packages.push(PlannedPackage {
        name: "fastop".to_owned(),
        version: "1.0".to_owned(),
        origin: PackageOrigin::Build(recipe),
        files: vec![planned(&file, world.server.url("sources/fastop-1.0.tar.gz"))],
        ..plan.packages[0].clone()
    });
    plan
}

#[test]
fn r2_06_source_is_built_once_and_its_proof_is_kept() {
    let world = World::new();
    let plan = plan(&world, &[FORCED]);
    world.write(&plan);
    let mut child = world.command(&[]).stdout(Stdio::null()).spawn().unwrap();
    let journal = world.path(".venv.firstlight-work/journal.jsonl");
    let until = Instant::now() + Duration::from_secs(300);
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("\"built\"")) {
        assert!(
            Instant::now() < until && child.try_wait().unwrap().is_none(),
            "it was never built"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let report = world.applied(&plan, &[]);
    let step = report["steps"].as_array().unwrap().iter().find(|step| step["name"] == "build");
    // If the kill came after the last line of the journal, there is no build step.
    if let Some(step) = step {
        assert!(step["outcome"].as_str().unwrap().ends_with("was built before"), "{step}");
    }
    let built = report["packages"].as_array().unwrap().last().unwrap();
    let evidence = built["build"]["evidence"][0].as_str().unwrap();
    assert!(
        evidence.contains("fastop.cpython-") && evidence.contains("the same bytes"),
        "{evidence}"
    );
    assert!(built["build"]["seconds"].as_f64().unwrap() > 0.5, "{built}");
    let log = world.venv().join(built["build"]["log"].as_str().unwrap());
    assert!(std::fs::read_to_string(log).unwrap().contains("FASTOP_FORCE_BUILD=TRUE"));
    let program = "import fastop; print(fastop.twice(21))";
    let run = done(Command::new(world.venv().join("bin/python")).args(["-I", "-c", program]));
    assert_eq!(String::from_utf8(run.stdout).unwrap().trim(), "42");
}

#[test]
fn r2_06_refuses_prebuilt_wheel_instead_of_build() {
    let world = World::new().with_old("1.0");
    let prebuilt = Wheel::new("fastop", "1.0", &tag());
    let module = Library::new();
    let prebuilt = prebuilt.library(&extension("fastop"), &module, std::env::consts::ARCH).build();
    world.server.release("releases/v1.0", &prebuilt);
    let before = contents(&world.venv());
    let (out, err) = world.apply(&plan(&world, &[]), &[], 2);
    assert_eq!((out.as_str(), world.server.asked(&prebuilt.name).len()), ("", 1));
    for words in ["fastop was not compiled here", "0 compiler runs", "Guessing wheel URL", "hint: "]
    {
        assert!(err.contains(words), "no `{words}` in {err}");
    }
    assert_eq!((contents(&world.venv()), version(&world.venv())), (before, "1.0".to_owned()));
}
