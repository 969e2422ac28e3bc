//! Killed at any moment, an apply leaves a whole environment, and the next one goes on from what is done.

use super::faults::large;
use super::world::{World, contents, marker, said, version};
use crate::server::Fault;
use crate::wheel::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const POINTS: u32 = 20;
/// The file that takes most of the download.
const LARGE: usize = 4 << 20;

/// A world with an old environment, whose next apply takes a while in each step.
fn world() -> (World, Vec<File>) {
    let world = World::new().with_old("1.0");
    let large = large(LARGE).build();
    // The preconditions ask for the first file alone.
    world.server.fault(&large.name, &[Fault::Slow(Duration::from_millis(200))]);
    let files = vec![marker("2.0").build(), large];
    world.write(&world.plan(&files));
    (world, files)
}

fn cached(world: &World, file: &File) -> PathBuf {
    world.path("cache/firstlight/files").join(&file.sha256).join(&file.name)
}

fn bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

/// Kills an apply once `reached` says so of it and of the time since it began, looks at what is there, and lets another
/// one finish.
///
/// # Errors
/// How long it took, where it had ended before.
fn killed_when(
    (world, files): (World, Vec<File>),
    reached: impl Fn(&World, Duration) -> bool,
) -> Result<(), Duration> {
    let before = contents(&world.venv());
    let mut child = world.command(&[]).stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while !reached(&world, began.elapsed()) {
        if child.try_wait().unwrap().is_some() {
            return Err(began.elapsed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let time = began.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();

    let switched = match version(&world.venv()).as_str() {
        "1.0" => {
            assert_eq!(contents(&world.venv()), before, "killed after {time:?}");
            false
        }
        version => {
            assert_eq!(version, "2.0");
            true
        }
    };
    // What is there of each file now does not come again; one that is there as a whole is not even asked for.
    let there: Vec<(u64, u64)> = files
        .iter()
        .map(|file| {
            let path = cached(&world, file);
            (bytes(&path), bytes(&path.with_file_name(format!("{}.part", file.name))))
        })
        .collect();
    let asked_before =
        files.iter().map(|file| world.server.asked(&file.name).len()).collect::<Vec<_>>();
    let (out, _) = said(&world.command(&["--json"]).output().unwrap(), 0);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    for ((file, (whole, part)), before) in files.iter().zip(there).zip(asked_before) {
        let asked = world.server.asked(&file.name).split_off(before);
        if whole > 0 {
            assert!(asked.is_empty(), "killed after {time:?}, {} came again: {asked:?}", file.name);
        } else if part > 0 {
            // It may have become whole since; then it is not asked for either.
            let mut read = asked.iter().filter(|asked| !asked.head);
            assert!(
                read.all(|asked| asked.from.is_some_and(|from| from as u64 >= part)),
                "killed after {time:?} with {part} bytes of {}: {asked:?}",
                file.name
            );
        }
    }
    assert_eq!(version(&world.venv()), "2.0", "killed after {time:?}");
    assert_eq!(world.apply_folders(), [".venv", ".venv.firstlight-old"], "killed after {time:?}");
    assert!(!switched || report["outcome"] == "unchanged", "killed after {time:?}: {report}");
    let old = contents(&world.path(".venv.firstlight-old"));
    assert_eq!(old.len(), before.len(), "killed after {time:?}");
    Ok(())
}

#[test]
fn r0_08_killed_at_twenty_points_it_leaves_a_whole_environment_and_goes_on() {
    let (world, _) = world();
    let began = Instant::now();
    said(&world.command(&[]).output().unwrap(), 0);
    let mut whole = began.elapsed();
    // Spread over the run, each at some place of its own twentieth; always the same ones.
    let mut state = 0x2545_f491_u32;
    for point in 0..POINTS {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let place = (f64::from(point) + f64::from(state) / f64::from(u32::MAX)) / f64::from(POINTS);
        // A machine that does other things is sometimes faster than it was: then the place is looked for again.
        while let Err(ended) = killed_when(self::world(), |_, time| time >= whole.mul_f64(place)) {
            whole = whole.min(ended).mul_f64(0.95);
        }
    }
}

#[test]
fn r0_08_killed_in_the_middle_of_a_file_it_goes_on_from_there() {
    let (world, files) = world();
    // Half a second for the large file.
    world.server.pace(2 * LARGE as u64);
    let large = files[1].clone();
    let part = cached(&world, &large).with_file_name(format!("{}.part", large.name));
    let in_the_middle = |_: &World, _| bytes(&part) > LARGE as u64 / 4;
    killed_when((world, files), in_the_middle).unwrap();
}
