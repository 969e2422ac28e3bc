//! Wheels whose labels lie, on the way into an environment: each is refused in the finding's own words, and nothing of it
//! is installed anywhere.

use super::world::{World, contents, marker, said, version};
use crate::stack::{GPU, MislabeledWheel, NEW_ABI, flash_attn, kernels, mislabeled_wheels, torch};
use crate::support::fake_driver::libcuda;
use crate::wheel::File;
use facts::InstallPlan;
use std::process::Output;

/// The stack's plan on a machine with the tests' GPU.
fn apply(world: &World, plan: &InstallPlan) -> Output {
    world.write(plan);
    // As in `judged`: a busy machine is no silent driver.
    let mut command = world.command(&["--wait", "60"]);
    command.env("LD_LIBRARY_PATH", libcuda().parent().unwrap()).env("FAKE_NVML_GPU", GPU);
    command.output().unwrap()
}

#[test]
fn r4_08_each_wheel_that_lies_is_refused_before_it_is_installed() {
    let world = World::new().with_old("1.0");
    let before = contents(&world.venv());
    for MislabeledWheel { what, wheel, rule, says } in mislabeled_wheels() {
        let files = [torch("2.8.0+cu128").build(), wheel.build(), marker("2.0").build()];
        let (out, err) = said(&apply(&world, &world.plan(&files)), 2);
        assert_eq!(out, "", "{what}");
        let rule = format!("[{rule}]");
        for words in ["a wheel failed its inspection and is not installed", &rule, says, "hint: "] {
            assert!(err.contains(words), "{what}: no `{words}` in {err}");
        }
        assert!(!world.path(".venv.firstlight-new").exists(), "{what}: something was installed");
        assert_eq!(contents(&world.venv()), before, "{what}");
    }
    assert_eq!(version(&world.venv()), "1.0");

    // The wheel that is what it says goes in, through the same door.
    let fits: Vec<File> = vec![
        torch("2.8.0+cu128").build(),
        flash_attn(&kernels(NEW_ABI, &["sm_80", "sm_90"])).build(),
        marker("2.0").build(),
    ];
    let (_, err) = said(&apply(&world, &world.plan(&fits)), 0);
    assert!(!err.contains("error"), "{err}");
    assert_eq!(version(&world.venv()), "2.0");
    let site = format!("lib/python{}/site-packages/flash_attn", crate::tools::python());
    assert!(world.venv().join(site).is_dir());
}
