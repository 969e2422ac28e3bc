//! Wheels that were opened and not installed, judged by what `firstlight doctor` is made of.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use crate::stack::{GPU, MislabeledWheel, NEW_ABI, flash_attn, kernels, mislabeled_wheels, torch};
use crate::support::fake_driver::with_driver;
use crate::tools::python;
use crate::wheel::{File, Wheel};
use serde_json::Value;
use setup::wheel::unpack;
use std::path::Path;

/// What doctor says of a folder in which these wheels were opened beside each other.
fn findings(wheels: &[File]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let opened = folder.path().join("opened");
    std::fs::create_dir_all(opened.join("bin")).unwrap();
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("python3"))
        .find(|file| file.is_file());
    std::os::unix::fs::symlink(found.unwrap(), opened.join("bin/python")).unwrap();
    let home = format!("home = /usr/bin\nversion = {}.0\n", python());
    std::fs::write(opened.join("pyvenv.cfg"), home).unwrap();
    for wheel in wheels {
        unpack(&wheel.save(&folder.path().join("wheels")), &opened, python()).unwrap();
    }
    // A busy machine may keep even this driver from answering within the usual two seconds.
    let arguments = ["doctor", "--json", "--wait", "60", "--venv", opened.to_str().unwrap()];
    let mut doctor = with_driver(folder.path(), &arguments, &[("FAKE_NVML_GPU", GPU)]);
    let said = doctor.env("PATH", "/nowhere").output().unwrap();
    let report: Value = serde_json::from_slice(&said.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&said.stderr)));
    report["findings"].as_array().unwrap().clone()
}

/// The errors alone: the rule, and all that the finding says.
fn errors(wheels: &[File]) -> Vec<(String, String)> {
    let errors = findings(wheels).into_iter().filter(|finding| finding["severity"] == "error");
    errors.map(|it| (it["rule"].as_str().unwrap().to_owned(), it.to_string())).collect()
}

#[test]
fn r3_04_a_wheel_s_tags_and_the_gpu_code_in_it_are_checked_before_it_is_installed() {
    let torch = torch("2.8.0+cu128").build();
    // Row R3-04's wheel was built for a GH200, so sm_90 has to be in it, as a cubin that runs there.
    let ffpa = |images: &[&str]| {
        let module = crate::stack::extension("pyffpa_cuda");
        let wheel = Wheel::new("ffpa_attn", "0.0.2.1", &crate::stack::tag());
        wheel.library(&module, &kernels(NEW_ABI, images), std::env::consts::ARCH).build()
    };
    for images in [&["sm_90"][..], &["sm_80", "sm_89", "sm_90a"], &["compute_80 8.0"]] {
        assert_eq!(errors(&[torch.clone(), ffpa(images)]), [], "{images:?}");
    }
    let found = errors(&[torch, ffpa(&["sm_80", "sm_89"])]);
    let [(rule, text)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(rule, "no-kernel-image");
    for words in ["ffpa_attn 0.0.2.1", "pyffpa_cuda", "sm_89", "9.0"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
}

#[test]
fn a_stack_that_fits_has_no_error() {
    let fits = flash_attn(&kernels(NEW_ABI, &["sm_80", "sm_90"]));
    assert_eq!(errors(&[torch("2.8.0+cu128").build(), fits.build()]), []);
}

#[test]
fn r4_08_a_label_that_fits_does_not_help_a_wheel_whose_bytes_do_not() {
    let torch = torch("2.8.0+cu128").build();
    for MislabeledWheel { what, wheel, rule, says } in mislabeled_wheels() {
        let found = errors(&[torch.clone(), wheel.build()]);
        assert_eq!(
            found.iter().map(|(rule, _)| rule).collect::<Vec<_>>(),
            [rule],
            "{what}: {found:?}"
        );
        assert!(found[0].1.contains(says), "{what}: no `{says}` in {}", found[0].1);
    }
}

#[test]
fn wheels_that_are_not_what_they_say_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let wheel =
        || Wheel::new("a_package", "1.0+cu128", "py3-none-any").file("a/__init__.py", "x = 1\n");
    let open = |file: File| {
        let prefix = folder.path().join("opened");
        let result = unpack(&file.save(folder.path()), &prefix, "3.12");
        let _ = std::fs::remove_dir_all(&prefix);
        result.map_err(|error| format!("{error}\nhint: {}", error.hint()))
    };
    let opened = open(wheel().file("a_package-1.0+cu128.data/scripts/tool", "#!python\n").build());
    let opened = opened.unwrap();
    let site = Path::new("lib/python3.12/site-packages");
    let info = site.join("a_package-1.0+cu128.dist-info");
    let expected = [
        Path::new("bin/tool").to_owned(),
        site.join("a/__init__.py"),
        info.join("METADATA"),
        info.join("RECORD"),
        info.join("WHEEL"),
    ];
    let mut sorted = expected.to_vec();
    sorted.sort();
    assert_eq!(opened.files().collect::<Vec<_>>(), sorted);

    let mut cut = wheel().build();
    cut.bytes.truncate(cut.bytes.len() - 40);
    let whole = wheel().build();
    let refused = [
        ("cut off", cut, "cannot be unpacked"),
        ("no wheel", File::new("a_package-1.0.zip", whole.bytes.clone()), "is not a wheel's name"),
        (
            "another hash",
            wheel().listed_as("a/__init__.py", "sha256=AAAA,6").build(),
            "a/__init__.py: sha256=",
        ),
        (
            "another size",
            wheel().listed_as("a/__init__.py", "sha256=AAAA,7").build(),
            "6 bytes instead of 7",
        ),
        (
            "a weak hash",
            wheel().listed_as("a/__init__.py", "md5=AAAA,6").build(),
            "sha256 or better",
        ),
        (
            "a file that is not there",
            wheel().listed_as("a/more.py", "sha256=AAAA,6").build(),
            "a/more.py is listed in RECORD and missing",
        ),
        ("a way out", wheel().file("../outside.py", "").build(), "is outside of the environment"),
        (
            "an absolute path",
            wheel().file("/etc/outside.py", "").build(),
            "is outside of the environment",
        ),
        (
            "another project",
            wheel().called("other-1.0+cu128-py3-none-any.whl"),
            "its name has other",
        ),
        ("another version", wheel().called("a_package-1.1-py3-none-any.whl"), "its name has 1.1"),
    ];
    for (what, file, words) in refused {
        let error = open(file).expect_err(what);
        assert!(error.contains(words) && error.contains("hint: "), "{what}: {error}");
    }
    assert!(!folder.path().join("outside.py").exists() && !Path::new("/etc/outside.py").exists());
}
