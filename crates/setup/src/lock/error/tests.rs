use super::{LockError, translate};
use facts::{InstallPlan, PackageOrigin, PlanIndex, PlanTarget, PlannedPackage, SCHEMA};

/// uv 0.13.9's stderr when the index of torch builds was first and served `requests` as well.
const REQUESTS: &str = "\
warning: The requested Python version 3.12 is not available; 3.11.7 will be used to build dependencies instead.
error: No solution found when resolving dependencies
  cause: Because all versions of bar depend on requests>=2.32.5 and only requests==2.28.1 is available, we can conclude that all versions of bar cannot be used.
         And because you require bar==1.0, we can conclude that your requirements are unsatisfiable.

hint: `requests` was found on https://download.pytorch.org/whl/cu128, but not at the requested version (requests>=2.32.5). A compatible version may be available on a subsequent index (e.g., https://pypi.org/simple). By default, uv will only consider versions that are published on the first index that contains a given package, to avoid dependency confusion attacks. If all indexes are equally trusted, use `--index-strategy unsafe-best-match` to consider all versions from all indexes, regardless of the order in which they were defined.
";

const NO_WHEEL: &str = "\
error: No solution found when resolving dependencies
  cause: Because arm==1.0 has no wheels with a matching platform tag (e.g., `manylinux_2_28_x86_64`) and you require arm==1.0, we can conclude that your requirements are unsatisfiable.

hint: Wheels are available for `arm` (v1.0) on the following platform: `linux_aarch64`
";

const UNREACHABLE: &str = "\
error: Request failed after 3 retries in 10.5s
  cause: Failed to fetch: https://download.pytorch.org/whl/cu128/torch/
  cause: error sending request for url (https://download.pytorch.org/whl/cu128/torch/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known
";

/// The format of uv 0.9.
const OLDER: &str = "  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of numpy==99 and you require numpy==99, we can conclude that your
      requirements are unsatisfiable.
";

/// Its output for a missing package.
const ABSENT: &str = "\
error: No solution found when resolving dependencies
  cause: Because arm was not found in the package registry and firstlight-plan depends on arm, we can conclude that your requirements are unsatisfiable.
";

fn plan() -> InstallPlan {
    let index = |name: &str, url: &str, explicit| PlanIndex {
        name: name.to_owned(),
        url: url.to_owned(),
        explicit,
        flat: false,
    };
    let arm = PlannedPackage {
        name: "arm".to_owned(),
        version: "1.0".to_owned(),
        index: "extensions".to_owned(),
        because: "wanted".to_owned(),
        origin: PackageOrigin::Wheel,
        marker: None,
        files: Vec::new(),
        source: "a test".to_owned(),
    };
    let target = PlanTarget {
        name: "a10".to_owned(),
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        glibc: None,
        gpus: vec![(8, 6)],
        driver: None,
        cuda_limit: None,
        tegra: false,
        memory_bytes: None,
        source: "a test".to_owned(),
    };
    InstallPlan {
        schema: SCHEMA,
        target,
        wants: Vec::new(),
        python: "3.12".to_owned(),
        cuda: None,
        indexes: vec![
            index("pypi", "https://pypi.org/simple", false),
            index("extensions", "https://extensions.example/simple", true),
        ],
        packages: vec![arm],
        warnings: Vec::new(),
        rejected: Vec::new(),
        locked: false,
    }
}

#[test]
fn r1_06_a_conflict_names_the_packages_and_the_index() {
    let error = translate(REQUESTS, &plan());
    let LockError::Conflict { wants, indexes, .. } = &error else { panic!("{error}") };
    assert_eq!(wants, &["bar==1.0", "requests==2.28.1", "requests>=2.32.5"]);
    let cu128 = "https://download.pytorch.org/whl/cu128".to_owned();
    assert_eq!(indexes, &[("requests".to_owned(), cu128)]);
    let hint = "use another version of `requests`, or install it from the default index";
    assert_eq!(error.hint(), hint);
    assert!(!error.to_string().contains("unsafe-best-match"), "uv's advice is not ours: {error}");
}

#[test]
fn a_missing_wheel_names_the_index_and_its_files() {
    let error = translate(NO_WHEEL, &plan());
    let text = format!("{error}; {}", error.hint());
    for part in [
        "arm==1.0; `arm` comes from https://extensions.example/simple",
        "no wheels with a matching platform tag",
        "; wheels are available for `arm` (v1.0) on the following platform: `linux_aarch64`; choose",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_index_that_does_not_answer_is_named() {
    let error = translate(UNREACHABLE, &plan());
    let LockError::Unreachable { url, reason } = &error else { panic!("{error}") };
    assert_eq!(url, "https://download.pytorch.org/whl/cu128/torch/");
    assert_eq!(reason, "failed to lookup address information: Name or service not known");
}

#[test]
fn wrapped_reason_is_whole() {
    let stderr = "\
  × Failed to fetch: `https://pypi.org/simple/torhc/`
  ├─▶ Request failed after 3 retries
  ├─▶ error sending request for url (https://pypi.org/simple/torhc/)
  ├─▶ dns error
  ╰─▶ failed to lookup address information: Temporary failure in name
      resolution
";
    for stderr in [stderr.to_owned(), stderr.replace("╰─▶", "Caused by:")] {
        let error = translate(&stderr, &plan());
        let LockError::Unreachable { url, reason } = &error else { panic!("{error}") };
        assert_eq!(url, "https://pypi.org/simple/torhc/");
        let whole = "failed to lookup address information: Temporary failure in name resolution";
        assert_eq!(reason, whole);
    }
}

#[test]
fn both_layouts_of_uv_are_read() {
    let error = translate(OLDER, &plan());
    let LockError::Conflict { wants, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(wants, &["numpy==99"]);
    assert!(reason.starts_with("Because there is no version of numpy==99"), "{reason}");
    let text = translate("error: something else\n  cause: new", &plan()).to_string();
    assert!(text.contains("error: something else\ncause: new"), "{text}");
}

#[test]
fn missing_package_is_named() {
    let error = translate(ABSENT, &plan());
    let LockError::Absent { package, url } = &error else { panic!("{error}") };
    assert_eq!((package.as_str(), url.as_str()), ("arm", plan().indexes[1].url.as_str()));
}

#[test]
fn missing_interpreter_is_answered_with_python() {
    // uv 0.13.9.
    let stderr = "error: No interpreter found in virtual environments, managed installations, or search path\n";
    let error = translate(stderr, &plan());
    assert!(matches!(error, LockError::NoPython), "{error}");
    assert_eq!(error.hint(), crate::python::INSTALL);
}
