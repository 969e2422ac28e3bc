//! Plans locked by the real uv: with an index in a folder, and with PyPI.

use crate::index::TestIndex;
use crate::plans::{PYPI, index, plan, target, wheel};
use crate::tools::{folder_with, uv};
use facts::{BuildRecipe, InstallPlan, PackageOrigin};
use setup::emit::{emit, read_plan};
use setup::lock::{LockError, lock};

#[test]
fn dependencies_come_from_the_index_that_each_package_names() {
    let (_kept, folder) = folder_with(&[]);
    let (pypi, own) = (TestIndex::at(&folder.join("pypi")), TestIndex::at(&folder.join("own")));
    let torch = "torch-2.10.0+cu128-cp312-cp312-manylinux_2_28_aarch64.whl";
    let hash = own.wheel(torch, &["filelock", "einops<1 ; sys_platform == 'linux'"]);
    own.wheel("torch-2.10.0+cu128-cp312-cp312-manylinux_2_28_x86_64.whl", &["filelock"]);
    pypi.wheel("filelock-3.1-py3-none-any.whl", &[]);
    own.wheel("filelock-9.9-py3-none-any.whl", &[]);
    pypi.wheel("einops-0.8.1-py3-none-any.whl", &[]);
    let plan = plan(
        target("gh200", "linux", "aarch64", &[(9, 0)]),
        &[index("pypi", &pypi.url()), index("own", &own.url())],
        &[wheel("torch==2.10.0", "own")],
    );
    let locked = lock(&plan, uv()).unwrap();
    assert!(locked.locked);
    let names: Vec<_> =
        locked.packages.iter().map(|one| (one.name.as_str(), one.version.as_str())).collect();
    // The version is the index's, with its label.
    assert_eq!(names, [("torch", "2.10.0+cu128"), ("einops", "0.8.1"), ("filelock", "3.1")]);
    let file = &locked.packages[0].files;
    assert_eq!(file.len(), 1, "one file is for this machine: {file:?}");
    assert_eq!((file[0].name.as_str(), file[0].sha256.as_ref()), (torch, Some(&hash)));
    assert_eq!(lock(&locked, uv()).unwrap(), locked, "locking again changes nothing");
    let text = emit(&locked, "plan.toml").unwrap();
    assert_eq!(read_plan(&text).unwrap(), locked);
}

#[test]
fn r1_06_requests_of_the_torch_index_is_named_with_its_index() {
    let (_kept, folder) = folder_with(&[]);
    let (pypi, own) = (TestIndex::at(&folder.join("pypi")), TestIndex::at(&folder.join("own")));
    own.wheel("requests-2.28.1-py3-none-any.whl", &[]);
    pypi.wheel("requests-2.32.5-py3-none-any.whl", &[]);
    pypi.wheel("transformers-4.57.1-py3-none-any.whl", &["requests>=2.32.5"]);
    let target = || target("a10", "linux", "x86_64", &[(8, 6)]);
    let indexes = [index("pypi", &pypi.url()), index("pytorch-cu128", &own.url())];
    let wrong = [wheel("transformers==4.57.1", "pypi"), wheel("requests==2.28.1", "pytorch-cu128")];
    let error = lock(&plan(target(), &indexes, &wrong), uv()).unwrap_err();
    let LockError::Conflict { wants, indexes: from, .. } = &error else { panic!("{error}") };
    assert!(wants.contains(&"requests==2.28.1".to_owned()), "{error}");
    assert!(from.contains(&("requests".to_owned(), own.url())), "{from:?}");
    assert!(!error.to_string().contains("unsafe"), "{error}");
    // If only torch's packages name that index, its `requests` is not visible.
    let right = lock(&plan(target(), &indexes, &wrong[..1]), uv()).unwrap();
    assert_eq!(right.packages[1].version, "2.32.5");
}

/// Release pages list their files without hashes.
#[test]
fn files_without_a_published_hash_are_downloaded_and_hashed() {
    let (_kept, folder) = folder_with(&[]);
    let (pypi, page) = (TestIndex::at(&folder.join("pypi")), TestIndex::at(&folder.join("page")));
    let file = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl";
    let hash = page.wheel(file, &[]);
    pypi.wheel("small-1.0-py3-none-any.whl", &[]);
    let listed = folder.join("page.html");
    std::fs::write(&listed, format!("<a href=\"page/flash-attn/{file}\">{file}</a>")).unwrap();
    let releases = facts::PlanIndex {
        flat: true,
        ..index("releases", &format!("file://{}", listed.display()))
    };
    let plan = plan(
        target("a10", "linux", "x86_64", &[(8, 6)]),
        &[index("pypi", &pypi.url()), releases],
        &[
            wheel("small==1.0", "pypi"),
            wheel("flash-attn==2.8.3+cu12torch2.8cxx11abiTRUE", "releases"),
        ],
    );
    let locked = lock(&plan, uv()).unwrap();
    assert!(locked.locked);
    let [found] = &locked.packages[1].files[..] else { panic!("{locked:?}") };
    assert_eq!((found.name.as_str(), found.sha256.as_ref()), (file, Some(&hash)));
}

#[test]
fn a_package_without_a_wheel_is_not_built() {
    let (_kept, folder) = folder_with(&[]);
    let pypi = TestIndex::at(&folder.join("pypi"));
    pypi.wheel("arm-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", &[]);
    let plan = plan(
        target("a10", "linux", "x86_64", &[(8, 6)]),
        &[index("pypi", &pypi.url())],
        &[wheel("arm==1.0", "pypi")],
    );
    let error = lock(&plan, uv()).unwrap_err();
    assert!(error.to_string().contains("arm==1.0"), "{error}");
    assert!(error.hint().contains("allow a source build"), "{}", error.hint());
}

#[test]
fn an_index_that_does_not_answer_is_named() {
    let plan = plan(
        target("cpu-x86_64", "linux", "x86_64", &[]),
        &[index("pypi", "http://127.0.0.1:9/simple")],
        &[wheel("numpy==2.3.4", "pypi")],
    );
    let error = lock(&plan, uv()).unwrap_err();
    let LockError::Unreachable { url, .. } = &error else { panic!("{error}") };
    assert_eq!(url, "http://127.0.0.1:9/simple/numpy/");
}

/// With PyPI: numpy for another machine and another Python, and flash-attn from its source.
#[test]
fn real_packages_are_locked_for_another_machine() {
    let recipe = BuildRecipe {
        requirement: "flash-attn==2.8.3".to_owned(),
        env: Vec::new(),
        build_requires: vec!["ninja".to_owned()],
        requires: vec!["einops".to_owned()],
        system_requires: Vec::new(),
        minutes: (5, 10),
        job_bytes: 5_000_000_000,
        source: "a test".to_owned(),
    };
    let mut flash_attn = wheel("flash-attn==2.8.3", "pypi");
    flash_attn.origin = PackageOrigin::Build(recipe);
    let plan = plan(
        target("gh200", "linux", "aarch64", &[(9, 0)]),
        &[index("pypi", PYPI)],
        &[wheel("numpy==2.3.4", "pypi"), flash_attn],
    );
    let locked = lock(&plan, uv()).unwrap();
    let files = |plan: &InstallPlan, name: &str| {
        let package = plan.packages.iter().find(|package| package.name == name).unwrap();
        package.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>()
    };
    let numpy = "numpy-2.3.4-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl";
    assert_eq!(files(&locked, "numpy"), [numpy]);
    assert_eq!(files(&locked, "flash-attn"), ["flash_attn-2.8.3.tar.gz"]);
    let order: Vec<_> = locked.packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(
        order,
        ["numpy", "einops", "ninja", "flash-attn"],
        "build requirements precede the build"
    );
}
