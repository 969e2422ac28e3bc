//! All preconditions are checked before anything is created.

use super::world::{World, contents, marker, said, version};
use crate::wheel::File;
use facts::{BuildRecipe, InstallPlan, PackageOrigin};
use std::time::Duration;

/// A plan that violates every precondition.
fn invalid_plan(world: &World) -> InstallPlan {
    let small = marker("2.0").build();
    let absent = File { name: "absent-1.0-py3-none-any.whl".to_owned(), ..small.clone() };
    let other = File { name: "other-1.0-cp27-cp27m-win32.whl".to_owned(), ..small.clone() };
    let source = File { name: "source-1.0.tar.gz".to_owned(), ..small.clone() };
    let mut plan = world.plan(&[small, absent, other, source]);
    plan.cuda = Some("12.8".to_owned());
    plan.packages[0].files[0].bytes = Some(1 << 60);
    // No server listens on port 9 (discard).
    plan.packages[1].files[0].url =
        Some("http://127.0.0.1:9/absent-1.0-py3-none-any.whl".to_owned());
    plan.packages[3].origin = PackageOrigin::Build(BuildRecipe {
        requirement: "source==1.0".to_owned(),
        env: Vec::new(),
        build_requires: Vec::new(),
        requires: Vec::new(),
        system_requires: ["nvcc", "no-such-compiler", "nowhere/nothing.h"]
            .map(str::to_owned)
            .to_vec(),
        minutes: (1, 2),
        job_bytes: 1 << 60,
        source: "this test".to_owned(),
    });
    plan
}

#[test]
fn r3_03_failed_precondition_is_named_and_changes_nothing() {
    let world = World::new().with_old("1.0");
    let mut plan = invalid_plan(&world);
    // The first file has the same address.
    plan.packages[0].files[0].url = plan.packages[1].files[0].url.clone();
    std::fs::create_dir(world.path(".venv.firstlight-old")).unwrap();
    let before = contents(&world.venv());
    for arguments in [&[][..], &["--dry-run"]] {
        let (out, err) = world.apply(&plan, arguments, 2);
        assert_eq!(out, "");
        for words in [
            "this machine is not ready for the plan",
            ".venv.firstlight-old already exists from an earlier apply",
            "other 1.0 has no wheel for Python",
            "other-1.0-cp27-cp27m-win32.whl",
            "the file system of",
            "simple does not answer at http://127.0.0.1:9/",
            "source is built from source: it needs nvcc of CUDA 12.8 or its major release",
            "it needs no-such-compiler, which is not on PATH",
            "it needs the header nowhere/nothing.h",
            "a compile job of this plan takes 1099511627776.0 MiB",
            "--discard-old",
            "set CUDA_HOME",
        ] {
            assert!(err.contains(words), "no `{words}` in {err}");
        }
        assert_eq!(contents(&world.venv()), before);
        assert_eq!(world.environment_names(), [".venv", ".venv.firstlight-old"]);
        assert!(!world.path("cache/firstlight/files").exists());
    }
}

#[test]
fn failing_shim_does_not_end_the_search_for_a_python() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let mut plan = world.plan(&[marker("1.0").build()]);
    let shims = world.path("shims");
    std::fs::create_dir(&shims).unwrap();
    let shim = shims.join(format!("python{}", plan.python));
    // As pyenv's for a version that is installed and not active.
    std::fs::write(&shim, "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n").unwrap();
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
    let apply = |plan: &InstallPlan, status| {
        world.write(plan);
        let mut command = world.command(&[]);
        let path = command.get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap();
        let path =
            [std::slice::from_ref(&shims), &std::env::split_paths(path).collect::<Vec<_>>()[..]]
                .concat();
        command.env("PATH", std::env::join_paths(path).unwrap());
        said(&command.output().unwrap(), status)
    };
    apply(&plan, 0);
    assert_eq!(version(&world.venv()), "1.0");
    // The hint names the uv that was asked.
    plan.python = "3.99".to_owned();
    let (_, err) = apply(&plan, 2);
    let hint = format!("{} python install 3.99", crate::tools::uv().program.display());
    assert!(err.contains("uv finds no Python 3.99") && err.contains(&hint), "{err}");
}

#[test]
fn file_that_the_index_lacks_is_not_reported_as_a_network_problem() {
    use crate::server::Fault;
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    let there = Fault::Slow(Duration::ZERO);
    for (faults, words) in [
        (&[Fault::NotFound][..], "simple does not have the file http://"),
        (&[there, Fault::NotFound], " could not be downloaded from http://"),
    ] {
        world.server.fault(".whl", faults);
        let (_, err) = world.apply(&plan, &[], 2);
        for words in [
            words,
            ": HTTP 404: Not Found\n",
            "hint: the file was removed or moved: make a new plan",
        ] {
            assert!(err.contains(words), "no `{words}` in {err}");
        }
    }
}

#[test]
fn dry_run_lists_steps_and_changes_nothing() {
    let world = World::new().with_old("1.0");
    let plan = world.plan(&[marker("2.0").build()]);
    let (out, _) = world.apply(&plan, &["--dry-run"], 0);
    assert!(out.starts_with("all preconditions hold: 1 file, "), "{out}");
    assert_eq!(world.environment_names(), [".venv"]);
    assert_eq!(version(&world.venv()), "1.0");
}

#[test]
fn missing_plan_is_named_with_a_hint() {
    let (_, err) = said(&World::new().command(&[]).output().unwrap(), 2);
    for words in ["the plan plan.toml cannot be read: ", "hint: make one: firstlight plan --lock"] {
        assert!(err.contains(words), "no `{words}` in {err}");
    }
}

#[test]
fn replaces_only_environments() {
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    let check = |words: &str| {
        let (_, err) = world.apply(&plan, &[], 2);
        assert!(err.contains(words) && err.contains("hint: "), "no `{words}` in {err}");
    };
    std::fs::create_dir_all(world.venv().join("conda-meta")).unwrap();
    check("is a conda environment");
    std::fs::remove_dir(world.venv().join("conda-meta")).unwrap();
    std::fs::write(world.venv().join("thesis.tex"), "").unwrap();
    check("is not a virtual environment and not empty");
    assert!(world.venv().join("thesis.tex").exists());
    std::fs::remove_dir_all(world.venv()).unwrap();
    std::fs::write(world.venv(), "").unwrap();
    check("is a file");
    let mut elsewhere = plan.clone();
    std::fs::remove_file(world.venv()).unwrap();
    elsewhere.target.os = "macos".to_owned();
    let (_, err) = world.apply(&elsewhere, &[], 2);
    assert!(err.contains("the plan is for macos on"), "{err}");
}

#[test]
fn second_apply_is_locked_out() {
    let world = World::new();
    let plan = world.plan(&[marker("2.0").build()]);
    world.server.fault(".whl", &[crate::server::Fault::Slow(Duration::from_secs(4))]);
    world.write(&plan);
    let mut first = world.command(&[]).spawn().unwrap();
    while world.server.asked(".whl").is_empty()
        && !world.path(".venv.firstlight-work/fetch.json").exists()
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_, err) = world.apply(&plan, &[], 2);
    assert!(err.contains("another apply is running on this environment"), "{err}");
    assert!(first.wait().unwrap().success());
    assert_eq!(version(&world.venv()), "2.0");
}
