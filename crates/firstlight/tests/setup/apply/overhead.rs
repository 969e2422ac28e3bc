//! Overhead of apply over plain uv, with the same wheels and server, into a new environment.

use super::world::{ANY, World, said};
use crate::tools::{done, uv_command};
use crate::wheel::{File, Wheel};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Bytes per second of one connection. Four files are downloaded in parallel.
const PACE: u64 = 5 << 20;

/// Wheels of 24 MiB of which half is compressible, as in compiled libraries.
fn wheels() -> Vec<File> {
    let mut state = 1u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let wheel = |number: usize| {
        let half: Vec<u8> = (0..24 << 20).map(|at| if at % 2 == 0 { noise() } else { 0 }).collect();
        Wheel::new(&format!("bulk{number}"), "1.0", ANY)
            .file(&format!("bulk{number}.bin"), half)
            .build()
    };
    (0..4).map(wheel).collect()
}

/// The time of plain uv to create an environment with the packages, with an empty cache.
fn plain(world: &World, files: &[File]) -> Duration {
    let (venv, index) = (world.path("plain"), world.server.url("simple"));
    let began = Instant::now();
    let uv = |arguments: &[&str]| {
        let mut command = uv_command(arguments);
        command.env("UV_CACHE_DIR", world.path("plain-cache"));
        command
    };
    done(uv(&["venv", "--quiet", "--python", "python3"]).arg(&venv));
    let names = files.iter().map(|file| format!("{}==1.0", file.project()));
    let mut install = uv(&["pip", "install", "--quiet", "--index-url", &index, "--python"]);
    done(install.arg(venv.join("bin/python")).args(names));
    began.elapsed()
}

#[test]
fn overhead_over_uv_is_bounded() {
    let world = World::new();
    let files = wheels();
    let plan = world.plan(&files);
    world.write(&plan);
    world.server.pace(PACE);
    let plain = plain(&world, &files);
    let began = Instant::now();
    let (out, _) = said(&world.command(&["--json"]).output().unwrap(), 0);
    let applied = began.elapsed();
    let report: Value = serde_json::from_str(&out).unwrap();
    let millis = |wanted: &[&str]| -> f64 {
        let steps = report["steps"].as_array().unwrap().iter();
        let of_these = steps.filter(|step| wanted.contains(&step["name"].as_str().unwrap()));
        of_these.map(|step| step["millis"].as_f64().unwrap()).sum()
    };
    let both = millis(&["download", "judge", "install"]);
    println!(
        "plain uv {plain:.2?}; apply {applied:.2?}: {both:.0} ms to download, check and install, {:.0} ms for the other steps: {}",
        millis(&["preconditions", "examine", "prove", "switch"]),
        report["steps"]
    );
    // The bound is far above the printed times, for busy machines. It fails if the files are downloaded one after
    // another, which takes four times as long.
    assert!(both < 2e3 * plain.as_secs_f64(), "{both} ms");
}
