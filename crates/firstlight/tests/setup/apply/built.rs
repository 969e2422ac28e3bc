//! A package that is built on the way: compiled against the new environment, judged, installed, and not built again by an
//! apply that follows a killed one.

use super::world::{World, planned, published};
use crate::source_build::{FASTOP_CPP, SETUP_PY};
use crate::tools::done;
use crate::wheel::File;
use facts::{BuildRecipe, PackageOrigin, Plan, PlannedPackage};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The source as it is published, on the server.
fn source(world: &World) -> File {
    let folder = world.path("fastop-1.0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("setup.py"), SETUP_PY).unwrap();
    std::fs::write(folder.join("fastop.cpp"), FASTOP_CPP).unwrap();
    let archive = world.path("fastop-1.0.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(&archive).arg("-C").arg(world.folder.path()).arg("fastop-1.0");
    done(&mut tar);
    let file = File::new("fastop-1.0.tar.gz", std::fs::read(archive).unwrap());
    world.server.release("sources", &file);
    file
}

/// Its build tools from the Python registry, and then the package from its source.
fn plan(world: &World) -> Plan {
    let mut plan =
        published(&[("packaging", "25.0"), ("pybind11", "3.0.1"), ("setuptools", "80.9.0")]);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let recipe = BuildRecipe {
        requirement: "fastop==1.0".to_owned(),
        env: vec![("FASTOP_FORCE_BUILD".to_owned(), "TRUE".to_owned())],
        build_requires: words(&["pybind11", "setuptools", "packaging"]),
        requires: Vec::new(),
        system_requires: words(&["c++", "pybind11/pybind11.h", "Python.h"]),
        minutes: (0, 1),
        job_bytes: 1 << 28,
        source: "this test".to_owned(),
    };
    let file = source(world);
    let files = vec![planned(&file, world.server.url("sources/fastop-1.0.tar.gz"))];
    let name = "fastop".to_owned();
    let origin = PackageOrigin::Build(recipe);
    plan.packages.push(PlannedPackage {
        name,
        version: "1.0".to_owned(),
        origin,
        files,
        ..plan.packages[0].clone()
    });
    plan
}

#[test]
fn r2_06_a_source_is_built_once_and_what_shows_that_it_compiled_is_kept() {
    let world = World::new();
    let plan = plan(&world);
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
    // The kill may have come after the last line of the journal; then there is nothing left to build at all.
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
