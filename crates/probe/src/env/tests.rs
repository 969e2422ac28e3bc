//! Environments on disk, valid and broken.

use super::{EnvOptions, environments};
use crate::{ProbeError, Source};
use facts::{EnvKind, EnvManager, PyEnv};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder with an environment, valid until a test breaks it.
struct TestEnvironment {
    folder: TempDir,
}

impl TestEnvironment {
    fn new() -> Self {
        let laid = Self { folder: tempfile::tempdir().unwrap() };
        laid.write("env/pyvenv.cfg", "home = /nowhere/bin\nversion = 3.12.3\n");
        laid.write("env/bin/python", "");
        laid.write("env/lib/python3.12/site-packages/README.txt", "");
        laid
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    fn site(&self, path: &str, content: impl AsRef<[u8]>) {
        self.write(&format!("env/lib/python3.12/site-packages/{path}"), content);
    }

    /// A distribution with one compiled file.
    fn dist(&self, name: &str, version: &str) {
        let info = format!("{name}-{version}.dist-info");
        self.site(&format!("{info}/METADATA"), format!("Name: {name}\nVersion: {version}\n"));
        self.site(&format!("{info}/WHEEL"), "Tag: cp312-cp312-linux_x86_64\n");
        self.site(&format!("{info}/INSTALLER"), "pip\n");
        self.site(&format!("{info}/RECORD"), format!("{name}/_C.so,,4\n{info}/RECORD,,\n"));
        self.site(&format!("{name}/_C.so"), "code");
    }

    fn source(&self) -> Source {
        Source::live().without_vars().with_working_folder(self.folder.path())
    }

    /// Reads it as the environment selected by the user.
    fn read(&self) -> PyEnv {
        let options = EnvOptions {
            source: self.source(),
            venv: Some(self.path("env")),
            cache: None,
            verify_files: false,
        };
        environments(&options).unwrap().remove(0)
    }

    /// Reads the environments of a source, with this folder's path replaced by `.`.
    fn discover(&self, source: Source) -> Vec<String> {
        let envs =
            environments(&EnvOptions { source, venv: None, cache: None, verify_files: false })
                .unwrap();
        let line = |env: PyEnv| {
            let version = env.interpreter.version.map_or("?".to_string(), |fact| fact.value);
            format!("{} {:?} {} {version} {:?}", env.root, env.kind, env.found_by, env.problems)
        };
        envs.into_iter().map(|env| self.shorten(&line(env))).collect()
    }

    fn shorten(&self, text: &str) -> String {
        text.replace(self.folder.path().to_str().unwrap(), ".")
    }

    /// Reads the environment and compares its problems.
    fn check(&self, problems: &[&str]) -> PyEnv {
        let env = self.read();
        let got: Vec<String> = env.problems.iter().map(|problem| self.shorten(problem)).collect();
        assert_eq!(got, problems);
        env
    }
}

const SITE: &str = "./env/lib/python3.12/site-packages";

#[test]
fn a_whole_environment() {
    let laid = TestEnvironment::new();
    laid.dist("flash_attn", "2.8.3");
    laid.dist("Einops", "0.8.1");
    let env = laid.check(&[]);
    assert_eq!((env.kind, env.found_by.as_str()), (EnvKind::Venv, "--venv"));
    assert_eq!(env.manager.unwrap().value, EnvManager::Pip);
    assert_eq!(env.interpreter.base.as_deref(), Some("/nowhere/bin"));
    assert_eq!(env.interpreter.abi_tag.unwrap().value, "cp312");
    let names: Vec<&str> = env.dists.iter().map(|dist| dist.name.as_str()).collect();
    assert_eq!(names, ["Einops", "flash_attn"]);
    assert_eq!(env.dists[1].tags, ["cp312-cp312-linux_x86_64"]);
    assert_eq!(env.dists[1].record_files, Some(2));
    assert_eq!(
        env.native_files[1].path,
        laid.path("env/lib/python3.12/site-packages/flash_attn/_C.so").to_str().unwrap()
    );
    assert_eq!(
        (env.native_files[1].dist.as_deref(), env.native_files[1].bytes),
        (Some("flash_attn"), Some(4))
    );
}

#[test]
fn a_named_environment_that_is_none() {
    let laid = TestEnvironment::new();
    laid.write("plain/file", "");
    laid.write("odd/pyvenv.cfg/file", "");
    let check = |path: &str, message: &str, hint: &str| {
        let options = EnvOptions {
            source: laid.source(),
            venv: Some(laid.path(path)),
            cache: None,
            verify_files: false,
        };
        let error: ProbeError = environments(&options).unwrap_err();
        assert_eq!(laid.shorten(&error.to_string()), message);
        assert_eq!(laid.shorten(&error.hint()), hint);
    };
    check(
        "gone",
        "environment ./gone does not exist",
        "create it with `python3 -m venv ./gone`, or correct the path",
    );
    check(
        "env/bin/python",
        "environment ./env/bin/python is a file, not a folder",
        "name the environment's folder: ./env",
    );
    check(
        "plain",
        "./plain is not a python environment: it has no pyvenv.cfg, no conda-meta and no bin/python with lib/python3.*/site-packages",
        "name the folder that holds pyvenv.cfg (often ./plain/.venv), or make one with `python3 -m venv`",
    );
    check(
        "odd",
        "environment ./odd cannot be read: ./odd/pyvenv.cfg (Is a directory (os error 21))",
        "check what `ls -ld ./odd/pyvenv.cfg` says about its owner and permissions",
    );
}

#[test]
fn corrupt_metadata_is_named_and_the_rest_is_read() {
    let laid = TestEnvironment::new();
    laid.dist("good", "1.0");
    laid.dist("torn", "2.0");
    laid.site("torn-2.0.dist-info/METADATA", [0xff, 0xfe, 0x00, 0x80]);
    laid.site("latin-3.0.dist-info/METADATA", b"Name: latin\nVersion: 3.0\nAuthor: Andr\xe9\n");
    laid.site("empty-4.0.dist-info/WHEEL", "");
    laid.site("nameless.dist-info/METADATA", "");
    let env = laid.check(&[
        &format!("{SITE}/empty-4.0.dist-info/METADATA cannot be read: No such file or directory (os error 2)"),
        &format!("{SITE}/nameless.dist-info/METADATA has no readable `Name:` line"),
        &format!("{SITE}/torn-2.0.dist-info/METADATA has no readable `Name:` line"),
    ]);
    let dists: Vec<String> =
        env.dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect();
    assert_eq!(dists, ["empty 4.0", "good 1.0", "latin 3.0", "torn 2.0"]);
    assert_eq!(env.dist("torn").unwrap().tags, ["cp312-cp312-linux_x86_64"]);
}

#[test]
fn problems_of_site_packages_are_named() {
    let laid = TestEnvironment::new();
    laid.dist("lost", "1.0");
    std::fs::remove_file(laid.path("env/lib/python3.12/site-packages/lost/_C.so")).unwrap();
    laid.dist("twice", "1.0");
    laid.site("twice-2.0.dist-info/METADATA", "Name: Twice\nVersion: 2.0\n");
    laid.site("~orch-2.9.0.dist-info/METADATA", "Name: torch\nVersion: 2.9.0\n");
    laid.site("~orch/_C.so", "half removed");
    laid.site("far.egg-link", "/no/such/source\n.");
    let env = laid.check(&[
        &format!("{SITE}/far.egg-link leads to no egg-info (/no/such/source)"),
        &format!("{SITE}/lost-1.0.dist-info/RECORD lists {SITE}/lost/_C.so, which is not there"),
        &format!("{SITE}/~orch-2.9.0.dist-info is a remnant of an interrupted pip"),
        &format!("twice is there 2 times: {SITE}/twice-1.0.dist-info, {SITE}/twice-2.0.dist-info"),
    ]);
    // Half-removed packages do not count as compiled files of the environment.
    assert!(
        env.native_files.iter().all(|file| file.dist.as_deref() == Some("twice")),
        "{:?}",
        env.native_files
    );
}

#[test]
fn torch_without_a_readable_version() {
    let laid = TestEnvironment::new();
    laid.dist("torch", "2.9.0");
    let env = laid
        .check(&[&format!("{SITE}/torch-2.9.0.dist-info is there, but torch/version.py is not")]);
    assert_eq!(env.torch, None);
    laid.site("torch/version.py", "cuda = 12");
    let env = laid.check(&[&format!("{SITE}/torch/version.py has no readable `__version__` line")]);
    assert_eq!(env.torch, None);
}

#[test]
fn legacy_and_development_installations() {
    let laid = TestEnvironment::new();
    laid.site("old-1.0-py3.12.egg-info", "Metadata-Version: 1.1\nName: old\nVersion: 1.0\n");
    laid.site("ffpa_attn.egg-info/PKG-INFO", "Name: ffpa-attn\nVersion: 0.0.2.1\n");
    laid.site("ffpa_attn.egg-info/requires.txt", "torch\n[all]\npytest\n");
    laid.site("ffpa_attn.egg-info/installed-files.txt", "../ffpa/_C.so\n../ffpa/__init__.py\n");
    laid.site("ffpa/_C.so", "code");
    laid.write("src/dev.egg-info/PKG-INFO", "Name: dev\nVersion: 0.1\n");
    laid.write("src/dev.egg-info/top_level.txt", "dev\n");
    laid.write("src/dev/_ext.so", "code");
    laid.site("dev.egg-link", format!("{}\n.", laid.path("src").display()));
    let env = laid.check(&[]);
    let dists: Vec<String> =
        env.dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect();
    assert_eq!(dists, ["dev 0.1", "ffpa-attn 0.0.2.1", "old 1.0"]);
    assert_eq!(env.dist("ffpa-attn").unwrap().requires, ["torch", "pytest; extra == \"all\""]);
    let native: Vec<(String, Option<&str>)> = env
        .native_files
        .iter()
        .map(|file| (laid.shorten(&file.path), file.dist.as_deref()))
        .collect();
    let expect = [
        (format!("{SITE}/ffpa/_C.so"), Some("ffpa-attn")),
        ("./src/dev/_ext.so".to_string(), Some("dev")),
    ];
    assert_eq!(native, expect);
}

#[test]
fn compiled_files_without_a_package_are_found() {
    let laid = TestEnvironment::new();
    laid.dist("mine", "1.0");
    laid.site("copied/deep/inside/lib.so.2", "12345");
    laid.site("lonely.so", "1");
    laid.site("copied/note.txt", "");
    let env = laid.check(&[]);
    let strays: Vec<(String, Option<u64>)> = env
        .native_files
        .iter()
        .filter(|f| f.dist.is_none())
        .map(|f| (laid.shorten(&f.path), f.bytes))
        .collect();
    assert_eq!(
        strays,
        [
            (format!("{SITE}/copied/deep/inside/lib.so.2"), Some(5)),
            (format!("{SITE}/lonely.so"), Some(1))
        ]
    );
}

#[test]
fn interpreters_that_are_gone_or_of_another_version() {
    let laid = TestEnvironment::new();
    std::fs::remove_file(laid.path("env/bin/python")).unwrap();
    laid.link("env/bin/python", "/nowhere/bin/python3.12");
    laid.write("env/lib/python3.10/site-packages/left.txt", "");
    let env = laid.check(&[
        "./env/bin/python is a link to an interpreter that is not there any more",
        "./env/lib/python3.10 holds packages for another python than the environment's own",
    ]);
    assert_eq!(env.interpreter.resolved, None);
    assert_eq!(env.site_packages.len(), 1);
    std::fs::remove_dir_all(laid.path("env/lib")).unwrap();
    laid.check(&[
        "./env/bin/python is a link to an interpreter that is not there any more",
        "./env has no lib/python3.*/site-packages",
    ]);
}

#[test]
fn packages_are_looked_for_where_the_interpreter_of_today_does() {
    let laid = TestEnvironment::new();
    laid.write("base/bin/python3.13", "");
    std::fs::remove_file(laid.path("env/bin/python")).unwrap();
    laid.link("env/bin/python", laid.path("base/bin/python3.13"));
    let sites = || -> Vec<String> {
        laid.read().site_packages.iter().map(|site| laid.shorten(site)).collect()
    };
    // Upgraded in place: only the packages of the old release exist.
    assert_eq!(sites(), [SITE]);
    laid.write("env/lib/python3.13/site-packages/README.txt", "");
    assert_eq!(sites(), ["./env/lib/python3.13/site-packages"]);
}

#[test]
fn system_packages_are_seen_only_where_asked_for_and_shadowed() {
    let laid = TestEnvironment::new();
    laid.dist("numpy", "2.0");
    for (name, version) in [("numpy", "1.26"), ("six", "1.17")] {
        let file = format!("base/lib/python3.12/site-packages/{name}-{version}.dist-info/METADATA");
        laid.write(&file, format!("Name: {name}\nVersion: {version}\n"));
    }
    let cfg = |shared| {
        let home = laid.path("base/bin");
        format!(
            "home = {}\nversion = 3.12.3\ninclude-system-site-packages = {shared}\n",
            home.display()
        )
    };
    let dists = || -> Vec<String> {
        laid.check(&[]).dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect()
    };
    laid.write("env/pyvenv.cfg", cfg("false"));
    assert_eq!(dists(), ["numpy 2.0"]);
    laid.write("env/pyvenv.cfg", cfg("true"));
    assert_eq!(dists(), ["numpy 2.0", "six 1.17"]);
}

#[test]
fn found_in_order_and_each_once() {
    let laid = TestEnvironment::new();
    laid.write(".venv/pyvenv.cfg", "home = /x\nversion = 3.11.1\n");
    laid.write(".venv/bin/python", "");
    laid.write(".venv/lib/python3.11/site-packages/x", "");
    let path = |text: &str| laid.path(text).display().to_string();
    let env = "./env Venv VIRTUAL_ENV 3.12.3 []";
    let local = "./.venv Venv ./.venv 3.11.1 []";
    assert_eq!(laid.discover(laid.source()), [local]);
    assert_eq!(laid.discover(laid.source().with_var("VIRTUAL_ENV", &path("env"))), [env, local]);
    // The python on PATH is that of the active environment.
    let source =
        laid.source().with_var("VIRTUAL_ENV", &path("env")).with_var("PATH", &path("env/bin"));
    assert_eq!(laid.discover(source), [env, local]);
    // Row R3-06: the python on PATH is not that of the active environment.
    laid.write("other/pyvenv.cfg", "home = /x\nversion = 3.9.1\n");
    laid.write("other/bin/python3", "");
    laid.write("other/lib/python3.9/site-packages/x", "");
    let source =
        laid.source().with_var("VIRTUAL_ENV", &path("env")).with_var("PATH", &path("other/bin"));
    assert_eq!(laid.discover(source), [env, local, "./other Venv python on PATH 3.9.1 []"]);
}

#[test]
fn stale_variables_stay_in_the_list() {
    let laid = TestEnvironment::new();
    laid.write("plain/file", "");
    let path = |text: &str| laid.path(text).display().to_string();
    let source = laid
        .source()
        .with_var("VIRTUAL_ENV", &path("gone"))
        .with_var("CONDA_PREFIX", &path("plain"));
    assert_eq!(
        laid.discover(source),
        [
            "./gone Venv VIRTUAL_ENV ? [\"VIRTUAL_ENV names ./gone, which does not exist\"]",
            "./plain Conda CONDA_PREFIX ? [\"CONDA_PREFIX names ./plain, which is no python environment\", \"./plain has no bin/python\"]",
        ]
    );
}

#[test]
fn pyenv_shims_are_followed_without_running_them() {
    let laid = TestEnvironment::new();
    for version in ["3.12.1", "3.11.7"] {
        let minor = &version[..4];
        laid.write(&format!("pyenv/versions/{version}/bin/python"), "");
        laid.write(&format!("pyenv/versions/{version}/lib/python{minor}/os.py"), "");
        laid.write(&format!("pyenv/versions/{version}/lib/python{minor}/site-packages/x"), "");
        let header = format!("pyenv/versions/{version}/include/python{minor}/patchlevel.h");
        laid.write(&header, format!("#define PY_VERSION \"{version}\"\n"));
    }
    laid.write("pyenv/shims/python", "");
    laid.write("pyenv/version", "9.9.9\n3.11.7\n");
    let source = || laid.source().with_var("PATH", laid.path("pyenv/shims").to_str().unwrap());
    let expect =
        |version: &str| [format!("./pyenv/versions/{version} System python on PATH {version} []")];
    assert_eq!(laid.discover(source()), expect("3.11.7"));
    laid.write(".python-version", "3.12.1\n");
    assert_eq!(laid.discover(source()), expect("3.12.1"));
    assert_eq!(laid.discover(source().with_var("PYENV_VERSION", "3.11.7")), expect("3.11.7"));
}

/// The launchers are in fixtures/: one written here could not be started while another test's child still holds it
/// open.
#[test]
fn an_interpreter_is_asked_only_where_no_file_tells() {
    let laid = TestEnvironment::new();
    let launchers = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/launchers");
    let source = |launcher: &str| {
        let source = laid.source().with_var("PREFIX", laid.path("far").to_str().unwrap());
        source.with_var("PATH", launchers.join(launcher).join("bin").to_str().unwrap())
    };
    laid.write("far/pkgs/solo-1.0.dist-info/METADATA", "Name: solo\nVersion: 1.0\n");
    let env = environments(&EnvOptions {
        source: source("far"),
        venv: None,
        cache: None,
        verify_files: false,
    })
    .unwrap()
    .remove(0);
    assert_eq!(env.problems, Vec::<String>::new());
    assert_eq!((laid.shorten(&env.root).as_str(), env.kind), ("./far", EnvKind::System));
    assert_eq!(env.interpreter.version.unwrap().value, "3.13.2");
    assert_eq!(env.interpreter.abi_tag.unwrap().value, "cp313t");
    assert_eq!(env.dists[0].name, "solo");
    // Isolated, without site-packages, without writing files.
    assert_eq!(std::fs::read_to_string(laid.path("far/flags")).unwrap(), "-I -S -B\n");
    // A broken launcher is a problem of its environment only.
    let broken = launchers.join("broken").display().to_string();
    assert_eq!(
        laid.discover(source("broken")),
        [format!(
            "{broken} System python on PATH ? [\"{broken}/bin/python -I -S -c ...: broken\"]"
        )]
    );
}

/// pip and uv leave the files of an editable install in its source folder, which direct_url.json names.
#[test]
fn compiled_files_of_an_editable_install() {
    let laid = TestEnvironment::new();
    let info = "mamba_ssm-2.2.6.dist-info";
    laid.site(&format!("{info}/METADATA"), "Name: mamba-ssm\nVersion: 2.2.6\n");
    laid.site(&format!("{info}/RECORD"), "__editable__.mamba_ssm-2.2.6.pth,,\n");
    let url = |folder: &Path| {
        let folder = folder.display().to_string().replace(' ', "%20");
        format!("{{\"url\": \"file://{folder}\", \"dir_info\": {{\"editable\": true}}}}")
    };
    laid.site(&format!("{info}/direct_url.json"), url(&laid.path("my src")));
    laid.write("real/selective_scan_cuda.so", "code");
    laid.write("real/mamba_ssm/ops/_C.so", "code");
    // Build folders and other environments are not imported here.
    laid.write("real/build/lib/selective_scan_cuda.so", "code");
    laid.write("real/.venv/lib/python3.12/site-packages/torch/_C.so", "code");
    laid.write("real/env/pyvenv.cfg", "home = /usr/bin\n");
    laid.write("real/env/lib/_C.so", "code");
    laid.link("my src", "real");
    let env = laid.check(&[]);
    let native: Vec<(String, Option<&str>)> = env
        .native_files
        .iter()
        .map(|file| (laid.shorten(&file.path), file.dist.as_deref()))
        .collect();
    let own = |path: &str| (format!("./real/{path}"), Some("mamba-ssm"));
    assert_eq!(native, [own("mamba_ssm/ops/_C.so"), own("selective_scan_cuda.so")]);

    laid.site(&format!("{info}/direct_url.json"), url(Path::new("/no/such/source")));
    laid.check(&[&format!("{SITE}/{info}/direct_url.json leads to no folder (/no/such/source)")]);
}
