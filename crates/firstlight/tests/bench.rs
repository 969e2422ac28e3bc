//! `firstlight bench`: sweeps, their files and plots.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use support::{expect, json, refuses};
use tempfile::tempdir;

#[test]
fn r3_07_command_line_defines_a_sweep() {
    let folder = tempdir().unwrap();
    let sizes = ["--B", "1", "--H", "2", "--N", "64,96", "--D", "64,80", "--dtype", "f32"];
    let report = json(folder.path(), &[&["bench", "attention", "--quick"], &sizes[..]].concat(), 0);
    let rows = report["rows"].as_array().unwrap();
    let shapes: Vec<[u64; 4]> = rows
        .iter()
        .map(|row| ["B", "H", "Tq", "D"].map(|name| row["shape"][name].as_u64().unwrap()))
        .collect();
    assert_eq!(shapes, [[1, 2, 64, 64], [1, 2, 64, 80], [1, 2, 96, 64], [1, 2, 96, 80]]);
    for row in rows {
        let (median, p95) = (row["median_ms"].as_f64().unwrap(), row["p95_ms"].as_f64().unwrap());
        assert!(0.0 < median && median <= p95 && row["gflops"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(report["baseline"].is_null());
}

#[test]
fn r3_08_pictures_are_named_after_the_device() {
    let folder = tempdir().unwrap();
    let sweep = ["bench", "attention", "--quick", "--H", "2", "--N", "64", "--D", "64,80"];
    let more = ["--dtype", "f32", "--baseline", "gh200-ffpa", "-o", "out"];
    let (out, _) = expect(folder.path(), &[&sweep[..], &more].concat(), 0);
    // The sizes of the command line override those of the baseline.
    assert!(out.contains("no row of this run is of that shape"), "{out}");
    let mut names: Vec<String> = std::fs::read_dir(folder.path().join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let picture = names.iter().find(|name| name.ends_with(".svg")).unwrap();
    assert!(picture.starts_with("attention-prefill-b1-h2-tq64-f32-tflops-"), "{picture}");
    let svg = std::fs::read_to_string(folder.path().join("out").join(picture)).unwrap();
    assert!(svg.contains("viewBox") && svg.contains("D"), "{svg}");
    let png = folder.path().join("out").join(picture).with_extension("png");
    assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG\r\n"), "{picture} is a PNG too");
    assert!(names.contains(&"bench.csv".to_owned()) && names.contains(&"samples.csv".to_owned()));
    let (_, err) = expect(folder.path(), &["bench", "--baseline", "unknown"], 2);
    assert!(err.contains("gh200-ffpa"), "{err}");
}

#[test]
fn unwritable_output_fails_before_timing() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("plain"), "x").unwrap();
    std::fs::create_dir(here.join("full")).unwrap();
    std::fs::write(here.join("full/x"), "x").unwrap();
    let began = std::time::Instant::now();
    for arguments in [
        &["bench"][..],
        &["bench", "--branches"],
        &["bench", "model", "granite-4.0-h-micro", "--random"],
        &["check"],
        &["compare", "absent", "absent"],
        &["gate", "absent", "--baseline", "absent"],
        &["man"],
        &["remote", "nowhere.invalid"],
    ] {
        let arguments = [arguments, &["-o", "plain/run"]].concat();
        refuses(here, &arguments, &["cannot write plain/run", "plain is not a folder"]);
    }
    refuses(here, &["bench", "--tune", "absent/t.tsv"], &["absent/t.tsv", "there is no folder"]);
    let plan = ["plan", "torch", "--lock", "--emit", "plan.toml", "-o", "absent/plan.toml"];
    refuses(here, &plan, &["absent/plan.toml", "there is no folder"]);
    for command in [&["check"][..], &["bench", "model", "granite-4.0-h-micro", "--random"]] {
        let arguments = [command, &["-o", "full"]].concat();
        refuses(here, &arguments, &["run folder full is not empty"]);
    }
    assert!(began.elapsed().as_secs() < 30, "the output is checked first");
}
