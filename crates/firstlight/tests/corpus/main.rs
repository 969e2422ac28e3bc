//! The corpus has a broken environment and a healthy twin for each row of the catalogue of known failures. It also has
//! healthy environments that look like a failure, each with a broken twin that the rule finds. They consist of small
//! compiled libraries, synthetic GPU code and metadata of distributions, on recorded machines. The code of
//! `firstlight doctor` and `firstlight explain` checks them, and this system's dynamic loader opens the files of rows that
//! it can reproduce.
//!
//! Linux only, because the libraries are ELF files.
#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod healthy;
mod judge;
mod live;
mod remedies;
mod rows;
mod world;

use healthy::HEALTHY;
use judge::{Pair, judge};
use rows::ROWS;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::library;

/// Checks every pair, one per core at a time, and returns the problems.
fn problems_of(pairs: &[&Pair]) -> Vec<String> {
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(pair) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut found = judge(pair);
            problems.lock().expect("no judge panics with the lock").append(&mut found);
        }
    };
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    problems.into_inner().expect("no judge panics with the lock")
}

#[test]
fn catalogue_rows_are_found_only_in_broken_environments() {
    let numbers: BTreeSet<u32> = ROWS.iter().map(|(row, _)| *row).collect();
    assert_eq!(numbers, (1..=31).collect(), "a row of the catalogue has no environments");
    let pairs: Vec<&Pair> = ROWS.iter().map(|(_, pair)| pair).collect();
    let problems = problems_of(&pairs);
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn healthy_environments_have_no_errors() {
    assert!(HEALTHY.len() >= 20, "{}", HEALTHY.len());
    let problems = problems_of(&HEALTHY.iter().collect::<Vec<_>>());
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn lists_match_the_folders() {
    let files = |folder: &str| -> BTreeSet<String> {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
        let names = std::fs::read_dir(folder)
            .expect("a folder of pairs")
            .map(|entry| entry.expect("an entry"));
        names
            .map(|entry| entry.path().file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    };
    let rows: BTreeSet<String> = ROWS.iter().map(|(_, pair)| pair.name.to_owned()).collect();
    let healthy: BTreeSet<String> = HEALTHY.iter().map(|pair| pair.name.to_owned()).collect();
    assert_eq!((rows.len(), healthy.len()), (ROWS.len(), HEALTHY.len()), "a name is used twice");
    assert_eq!((rows, healthy), (files("rows"), files("healthy")));
}
