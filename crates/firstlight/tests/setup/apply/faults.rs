//! Faults during an apply do not change the old environment.

use super::world::{ANY, World, contents, marker, version};
use crate::server::Fault;
use crate::support::library::Library;
use crate::wheel::{File, Wheel};

/// Applies to an old environment, and asserts an error with these words and unchanged files.
fn refused(world: &World, files: &[File], words: &[&str]) {
    let before = contents(&world.venv());
    let (out, err) = world.apply(&world.plan(files), &[], 2);
    assert_eq!(out, "");
    for words in words {
        assert!(err.contains(words), "no `{words}` in {err}");
    }
    assert_eq!(contents(&world.venv()), before);
    assert_eq!(version(&world.venv()), "1.0");
}

/// A wheel with `bytes` incompressible bytes.
pub(super) fn large(bytes: usize) -> Wheel {
    let mut state = 1u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    Wheel::new("large", "1.0", ANY).file("large.bin", noise.take(bytes).collect::<Vec<u8>>())
}

#[test]
fn hash_mismatch_is_refused_and_fetched_again() {
    let world = World::new().with_old("1.0");
    let wheel = marker("2.0").build();
    // The first request is the HEAD of the preconditions.
    world.server.fault(".whl", &[Fault::Slow(std::time::Duration::ZERO), Fault::OtherByte]);
    refused(
        &world,
        std::slice::from_ref(&wheel),
        &["has SHA-256", "but the plan has", &wheel.sha256, "hint: "],
    );
    assert_eq!(world.applied(&world.plan(&[wheel]), &[])["outcome"], "replaced");
    assert_eq!(version(&world.venv()), "2.0");
}

#[test]
fn sign_in_page_is_not_accepted_as_a_file() {
    let world = World::new().with_old("1.0");
    let none = Fault::Slow(std::time::Duration::ZERO);
    world.server.fault(".whl", &[none, Fault::Garbage]);
    refused(&world, &[marker("2.0").build()], &["has SHA-256", "but the plan has", "hint: "]);
}

#[test]
fn dropped_connection_resumes() {
    let world = World::new();
    let wheel = large(3 << 20).build();
    let none = Fault::Slow(std::time::Duration::ZERO);
    world.server.fault(".whl", &[none, Fault::Drop(1 << 20), Fault::Drop(1 << 19)]);
    let report = world.applied(&world.plan(std::slice::from_ref(&wheel)), &[]);
    let from: Vec<Option<usize>> = world.server.asked(".whl").iter().map(|it| it.from).collect();
    assert_eq!(from, [None, None, Some(1 << 20), Some((1 << 20) + (1 << 19))]);
    // Every byte was sent once.
    assert_eq!(report["packages"][0]["fetched_bytes"], wheel.bytes.len());
}

#[test]
fn lost_server_is_named_and_partial_file_is_kept() {
    let world = World::new().with_old("1.0");
    let wheel = large(1 << 20).build();
    let none = Fault::Slow(std::time::Duration::ZERO);
    world.server.fault(".whl", &[none, Fault::Drop(1 << 19), Fault::NotFound]);
    let name = wheel.name.clone();
    refused(
        &world,
        std::slice::from_ref(&wheel),
        &[&name, "could not be downloaded", "404", "hint: "],
    );
    let report = world.applied(&world.plan(std::slice::from_ref(&wheel)), &[]);
    assert_eq!(report["packages"][0]["fetched_bytes"], wheel.bytes.len() - (1 << 19));
}

#[test]
fn wheel_bytes_are_checked_before_install() {
    let world = World::new().with_old("1.0");
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
    let foreign =
        Wheel::new("foreign", "1.0", ANY).library("foreign/_C.so", &Library::new(), other).build();
    refused(
        &world,
        &[foreign, marker("2.0").build()],
        &[
            "a wheel failed its inspection and is not installed",
            "[wrong-architecture]",
            "foreign/_C.so",
            "hint: ",
        ],
    );
    assert!(!world.path(".venv.firstlight-new").exists(), "nothing was installed anywhere");
}

#[test]
fn rejects_wheel_that_differs_from_its_record() {
    let world = World::new().with_old("1.0");
    let altered = marker("2.0").listed_as("marker.py", "sha256=AAAA,").build();
    refused(
        &world,
        &[altered],
        &["marker-2.0-py3-none-any.whl does not match its metadata", "marker.py"],
    );
}

#[test]
fn r3_06_script_of_another_interpreter_is_an_error() {
    let world = World::new().with_old("1.0");
    let foreign = Wheel::new("foreign", "1.0", ANY)
        .file("foreign-1.0.data/scripts/foreign", "#!/usr/bin/python3\nprint('elsewhere')\n");
    refused(
        &world,
        &[foreign.build()],
        &["bin/foreign", "/usr/bin/python3", "outside of the environment"],
    );
}
