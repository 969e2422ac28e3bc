//! Mislabeled wheels: each is refused with the finding's message, and nothing is installed.

use super::world::{World, contents, marker, said, version};
use crate::stack::{GPU, MislabeledWheel, NEW_ABI, flash_attn, kernels, mislabeled_wheels, torch};
use crate::support::fake_driver::libcuda;
use crate::wheel::File;
use facts::InstallPlan;
use std::process::Output;

/// The stack's plan on a machine with the tests' GPU.
fn apply(world: &World, plan: &InstallPlan) -> Output {
    world.write(plan);
    // As in `judged`: a long timeout, because the driver answers slowly on a busy machine.
    let mut command = world.command(&["--wait", "60"]);
    command.env("LD_LIBRARY_PATH", libcuda().parent().unwrap()).env("FAKE_NVML_GPU", GPU);
    command.output().unwrap()
}

#[test]
fn r4_08_mislabeled_wheels_are_refused_before_install() {
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

    // A correct wheel is installed by the same command.
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
