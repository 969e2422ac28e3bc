use super::super::Source;
use super::*;
use facts::PlanTarget;
use std::fs;

const GIB: u64 = 1 << 30;

fn recipe(build: &[&str], system: &[&str]) -> BuildRecipe {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    BuildRecipe {
        requirement: "ffpa-attn==0.0.2.1".into(),
        env: Vec::new(),
        build_requires: words(build),
        system_requires: words(system),
        minutes: (2, 10),
        job_bytes: 5 * GIB,
        source: "test".into(),
    }
}

/// A toolkit whose nvcc is of this release, in a folder of its own.
fn toolkit(folder: &Path, release: &str) -> PathBuf {
    let (home, nvcc) = (folder.join("cuda"), folder.join("cuda/bin/nvcc"));
    fs::create_dir_all(home.join("bin")).unwrap();
    let said = format!("Cuda compilation tools, release {release}, V{release}.93");
    fs::write(&nvcc, format!("#!/bin/sh\necho '{said}'\n")).unwrap();
    let mut mode = fs::metadata(&nvcc).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&nvcc, mode).unwrap();
    home
}

/// What is missing in an environment with these packages, one line each; `ffpa` as its report built it (row R3-03).
fn found(dists: &[&str], nvcc: Option<&str>, memory: u64) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let env = folder.path().join("env");
    let site = env.join("lib/python3.10/site-packages");
    for dist in dists {
        fs::create_dir_all(site.join(format!("{dist}-1.0.dist-info"))).unwrap();
        let include = site.join(dist).join("include").join(dist);
        fs::create_dir_all(&include).unwrap();
        fs::write(include.join(format!("{dist}.h")), "").unwrap();
    }
    let host = Host {
        path: "/nowhere".into(),
        cuda_home: nvcc.map(|release| toolkit(folder.path(), release)),
        memory_bytes: Some(memory),
        cores: 72,
    };
    let recipe = recipe(
        &["pybind11", "packaging>=24", "Ninja", "numpy"],
        &["nvcc", "pybind11/pybind11.h"],
    );
    let target = PlanTarget {
        name: "gh200".into(),
        os: "linux".into(),
        arch: "aarch64".into(),
        glibc: None,
        gpus: vec![(9, 0)],
        driver: None,
        cuda_limit: None,
        tegra: false,
        memory_bytes: None,
        source: "test".into(),
    };
    let build = Build {
        package: "ffpa-attn",
        recipe: &recipe,
        source: Source::Archive(Path::new("x.tar.gz")),
        env: &env,
        python: "3.10",
        target: &target,
        cuda: Some("12.8"),
        host: &host,
        folder: folder.path(),
    };
    missing_in_env(&build).into_iter().map(|it| format!("{} | {}", it.what, it.hint)).collect()
}

#[test]
fn r3_03_what_a_build_needs_is_looked_for_before_it_starts() {
    let all = ["pybind11", "packaging", "ninja", "numpy"];
    assert_eq!(found(&all, Some("12.8"), 480 * GIB), [""; 0]);
    // Another minor release of CUDA is as good.
    assert_eq!(found(&all, Some("12.4"), 480 * GIB), [""; 0]);

    let one = |found: Vec<String>, words: &[&str]| {
        assert_eq!(found.len(), 1, "{found:?}");
        for word in words {
            assert!(found[0].contains(word), "no {word} in {found:?}");
        }
    };
    one(
        found(&all, Some("13.0"), 480 * GIB),
        &["nvcc is CUDA 13.0, but torch is compiled with CUDA 12.8", "toolkit 12.8"],
    );
    one(found(&all, None, 480 * GIB), &["no nvcc in CUDA_HOME or on PATH", "CUDA toolkit 12.8"]);
    one(
        found(&all[..3], Some("12.8"), 480 * GIB),
        &["numpy is not in", "--no-build-isolation", "uv pip install 'numpy'"],
    );
    one(found(&all, Some("12.8"), 4 * GIB), &["takes 5.0 GiB of memory, and there are 4.0 GiB"]);
    // The report's own error: no pybind11 means no header either.
    let without = found(&all[1..], Some("12.8"), 480 * GIB);
    assert_eq!(without.len(), 2, "{without:?}");
    assert!(without[1].contains("no pybind11/pybind11.h") && without[1].contains("uv pip install"));
    assert_eq!(found(&[], None, GIB).len(), 4 + 2 + 1);
}

#[test]
fn r3_03_what_the_plan_brings_itself_is_not_asked_of_the_machine() {
    let host =
        Host { path: "/nowhere".into(), cuda_home: None, memory_bytes: None, cores: 1 };
    let recipe = recipe(&["pybind11"], &["c++", "pybind11/pybind11.h", "no-such/header.h"]);
    let found: Vec<String> =
        missing(&recipe, None, &host).into_iter().map(|missing| missing.what).collect();
    assert_eq!(found, ["no c++ on PATH", "no no-such/header.h where a compiler looks"]);
}
