//! Tests of valid and broken environments on disk.

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
        let env_folder = Self { folder: tempfile::tempdir().unwrap() };
        env_folder.write("env/pyvenv.cfg", "home = /nowhere/bin\nversion = 3.12.3\n");
        env_folder.write("env/bin/python", "");
        env_folder.write("env/lib/python3.12/site-packages/README.txt", "");
        env_folder
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
fn complete_environment_is_read_without_problems() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("flash_attn", "2.8.3");
    env_folder.dist("Einops", "0.8.1");
    let env = env_folder.check(&[]);
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
        env_folder.path("env/lib/python3.12/site-packages/flash_attn/_C.so").to_str().unwrap()
    );
    assert_eq!(
        (env.native_files[1].dist.as_deref(), env.native_files[1].bytes),
        (Some("flash_attn"), Some(4))
    );
}

#[test]
fn path_that_is_no_environment_is_an_error_with_a_hint() {
    let env_folder = TestEnvironment::new();
    env_folder.write("plain/file", "");
    env_folder.write("odd/pyvenv.cfg/file", "");
    let check = |path: &str, message: &str, hint: &str| {
        let options = EnvOptions {
            source: env_folder.source(),
            venv: Some(env_folder.path(path)),
            cache: None,
            verify_files: false,
        };
        let error: ProbeError = environments(&options).unwrap_err();
        assert_eq!(env_folder.shorten(&error.to_string()), message);
        assert_eq!(env_folder.shorten(&error.hint()), hint);
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
fn corrupt_metadata_is_reported_and_other_packages_are_read() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("good", "1.0");
    env_folder.dist("torn", "2.0");
    env_folder.site("torn-2.0.dist-info/METADATA", [0xff, 0xfe, 0x00, 0x80]);
    env_folder
        .site("latin-3.0.dist-info/METADATA", b"Name: latin\nVersion: 3.0\nAuthor: Andr\xe9\n");
    env_folder.site("empty-4.0.dist-info/WHEEL", "");
    env_folder.site("nameless.dist-info/METADATA", "");
    let env = env_folder.check(&[
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
fn problems_of_site_packages_are_reported() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("lost", "1.0");
    std::fs::remove_file(env_folder.path("env/lib/python3.12/site-packages/lost/_C.so")).unwrap();
    env_folder.dist("twice", "1.0");
    env_folder.site("twice-2.0.dist-info/METADATA", "Name: Twice\nVersion: 2.0\n");
    // One version with two kinds of metadata, as Debian installs it.
    env_folder.site("both-1.0.dist-info/METADATA", "Name: both\nVersion: 1.0\n");
    env_folder.site("both.egg-info/PKG-INFO", "Name: both\nVersion: 1.0\n");
    env_folder.site("~orch-2.9.0.dist-info/METADATA", "Name: torch\nVersion: 2.9.0\n");
    env_folder.site("~orch/_C.so", "half removed");
    env_folder.site("far.egg-link", "/no/such/source\n.");
    let env = env_folder.check(&[
        &format!("{SITE}/far.egg-link points to no egg-info (/no/such/source)"),
        &format!("{SITE}/lost-1.0.dist-info/RECORD lists {SITE}/lost/_C.so, which does not exist"),
        &format!("{SITE}/~orch-2.9.0.dist-info is a remnant of an interrupted pip"),
        &format!(
            "twice is installed 2 times: {SITE}/twice-1.0.dist-info, {SITE}/twice-2.0.dist-info"
        ),
    ]);
    // Half-removed packages do not count as compiled files of the environment.
    assert!(
        env.native_files.iter().all(|file| file.dist.as_deref() == Some("twice")),
        "{:?}",
        env.native_files
    );
}

#[test]
fn torch_without_a_readable_version_is_reported() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("torch", "2.9.0");
    let env = env_folder
        .check(&[&format!("{SITE}/torch-2.9.0.dist-info exists, but torch/version.py does not")]);
    assert_eq!(env.torch, None);
    env_folder.site("torch/version.py", "cuda = 12");
    let env =
        env_folder.check(&[&format!("{SITE}/torch/version.py has no readable `__version__` line")]);
    assert_eq!(env.torch, None);
}

#[test]
fn legacy_and_development_installations_are_read() {
    let env_folder = TestEnvironment::new();
    env_folder.site("old-1.0-py3.12.egg-info", "Metadata-Version: 1.1\nName: old\nVersion: 1.0\n");
    env_folder.site("ffpa_attn.egg-info/PKG-INFO", "Name: ffpa-attn\nVersion: 0.0.2.1\n");
    env_folder.site("ffpa_attn.egg-info/requires.txt", "torch\n[all]\npytest\n");
    env_folder
        .site("ffpa_attn.egg-info/installed-files.txt", "../ffpa/_C.so\n../ffpa/__init__.py\n");
    env_folder.site("ffpa/_C.so", "code");
    env_folder.write("src/dev.egg-info/PKG-INFO", "Name: dev\nVersion: 0.1\n");
    env_folder.write("src/dev.egg-info/top_level.txt", "dev\n");
    env_folder.write("src/dev/_ext.so", "code");
    env_folder.site("dev.egg-link", format!("{}\n.", env_folder.path("src").display()));
    let env = env_folder.check(&[]);
    let dists: Vec<String> =
        env.dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect();
    assert_eq!(dists, ["dev 0.1", "ffpa-attn 0.0.2.1", "old 1.0"]);
    assert_eq!(env.dist("ffpa-attn").unwrap().requires, ["torch", "pytest; extra == \"all\""]);
    let native: Vec<(String, Option<&str>)> = env
        .native_files
        .iter()
        .map(|file| (env_folder.shorten(&file.path), file.dist.as_deref()))
        .collect();
    let expect = [
        (format!("{SITE}/ffpa/_C.so"), Some("ffpa-attn")),
        ("./src/dev/_ext.so".to_string(), Some("dev")),
    ];
    assert_eq!(native, expect);
}

#[test]
fn compiled_files_without_a_package_are_found() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("mine", "1.0");
    env_folder.site("copied/deep/inside/lib.so.2", "12345");
    env_folder.site("lonely.so", "1");
    env_folder.site("copied/note.txt", "");
    let env = env_folder.check(&[]);
    let strays: Vec<(String, Option<u64>)> = env
        .native_files
        .iter()
        .filter(|f| f.dist.is_none())
        .map(|f| (env_folder.shorten(&f.path), f.bytes))
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
fn missing_interpreter_and_packages_of_another_python_are_reported() {
    let env_folder = TestEnvironment::new();
    std::fs::remove_file(env_folder.path("env/bin/python")).unwrap();
    env_folder.link("env/bin/python", "/nowhere/bin/python3.12");
    env_folder.write("env/lib/python3.10/site-packages/left.txt", "");
    let env = env_folder.check(&[
        "./env/bin/python is a link to an interpreter that no longer exists",
        "./env/lib/python3.10 has packages for another Python than the environment's",
    ]);
    assert_eq!(env.interpreter.resolved, None);
    assert_eq!(env.site_packages.len(), 1);
    std::fs::remove_dir_all(env_folder.path("env/lib")).unwrap();
    env_folder.check(&[
        "./env/bin/python is a link to an interpreter that no longer exists",
        "./env has no lib/python3.*/site-packages",
    ]);
}

#[test]
fn site_packages_follow_the_version_of_the_interpreter() {
    let env_folder = TestEnvironment::new();
    env_folder.write("base/bin/python3.13", "");
    std::fs::remove_file(env_folder.path("env/bin/python")).unwrap();
    env_folder.link("env/bin/python", env_folder.path("base/bin/python3.13"));
    let sites = || -> Vec<String> {
        env_folder.read().site_packages.iter().map(|site| env_folder.shorten(site)).collect()
    };
    // Upgraded in place: only the packages of the old release exist.
    assert_eq!(sites(), [SITE]);
    env_folder.write("env/lib/python3.13/site-packages/README.txt", "");
    assert_eq!(sites(), ["./env/lib/python3.13/site-packages"]);
}

#[test]
fn system_packages_are_read_only_if_enabled_and_can_be_shadowed() {
    let env_folder = TestEnvironment::new();
    env_folder.dist("numpy", "2.0");
    for (name, version) in [("numpy", "1.26"), ("six", "1.17")] {
        let file = format!("base/lib/python3.12/site-packages/{name}-{version}.dist-info/METADATA");
        env_folder.write(&file, format!("Name: {name}\nVersion: {version}\n"));
    }
    let cfg = |shared| {
        let home = env_folder.path("base/bin");
        format!(
            "home = {}\nversion = 3.12.3\ninclude-system-site-packages = {shared}\n",
            home.display()
        )
    };
    let dists = || -> Vec<String> {
        env_folder
            .check(&[])
            .dists
            .iter()
            .map(|dist| format!("{} {}", dist.name, dist.version))
            .collect()
    };
    env_folder.write("env/pyvenv.cfg", cfg("false"));
    assert_eq!(dists(), ["numpy 2.0"]);
    env_folder.write("env/pyvenv.cfg", cfg("true"));
    assert_eq!(dists(), ["numpy 2.0", "six 1.17"]);
}

#[test]
fn environments_are_found_in_order_and_once() {
    let env_folder = TestEnvironment::new();
    env_folder.write(".venv/pyvenv.cfg", "home = /x\nversion = 3.11.1\n");
    env_folder.write(".venv/bin/python", "");
    env_folder.write(".venv/lib/python3.11/site-packages/x", "");
    let path = |text: &str| env_folder.path(text).display().to_string();
    let env = "./env Venv VIRTUAL_ENV 3.12.3 []";
    let local = "./.venv Venv ./.venv 3.11.1 []";
    assert_eq!(env_folder.discover(env_folder.source()), [local]);
    assert_eq!(
        env_folder.discover(env_folder.source().with_var("VIRTUAL_ENV", &path("env"))),
        [env, local]
    );
    // The Python on PATH belongs to the active environment.
    let source = env_folder
        .source()
        .with_var("VIRTUAL_ENV", &path("env"))
        .with_var("PATH", &path("env/bin"));
    assert_eq!(env_folder.discover(source), [env, local]);
    // R3-06: the Python on PATH does not belong to the active environment.
    env_folder.write("other/pyvenv.cfg", "home = /x\nversion = 3.9.1\n");
    env_folder.write("other/bin/python3", "");
    env_folder.write("other/lib/python3.9/site-packages/x", "");
    let source = env_folder
        .source()
        .with_var("VIRTUAL_ENV", &path("env"))
        .with_var("PATH", &path("other/bin"));
    assert_eq!(env_folder.discover(source), [env, local, "./other Venv python on PATH 3.9.1 []"]);
}

#[test]
fn variables_that_name_no_environment_are_reported() {
    let env_folder = TestEnvironment::new();
    env_folder.write("plain/file", "");
    let path = |text: &str| env_folder.path(text).display().to_string();
    let source = env_folder
        .source()
        .with_var("VIRTUAL_ENV", &path("gone"))
        .with_var("CONDA_PREFIX", &path("plain"));
    assert_eq!(
        env_folder.discover(source),
        [
            "./gone Venv VIRTUAL_ENV ? [\"VIRTUAL_ENV names ./gone, which does not exist\"]",
            "./plain Conda CONDA_PREFIX ? [\"CONDA_PREFIX names ./plain, which is no python environment\", \"./plain has no bin/python\"]",
        ]
    );
}

#[test]
fn pyenv_shims_are_resolved_without_running_them() {
    let env_folder = TestEnvironment::new();
    for version in ["3.12.1", "3.11.7"] {
        let minor = &version[..4];
        env_folder.write(&format!("pyenv/versions/{version}/bin/python"), "");
        env_folder.write(&format!("pyenv/versions/{version}/lib/python{minor}/os.py"), "");
        env_folder
            .write(&format!("pyenv/versions/{version}/lib/python{minor}/site-packages/x"), "");
        let header = format!("pyenv/versions/{version}/include/python{minor}/patchlevel.h");
        env_folder.write(&header, format!("#define PY_VERSION \"{version}\"\n"));
    }
    env_folder.write("pyenv/shims/python", "");
    env_folder.write("pyenv/version", "9.9.9\n3.11.7\n");
    let source =
        || env_folder.source().with_var("PATH", env_folder.path("pyenv/shims").to_str().unwrap());
    let expect =
        |version: &str| [format!("./pyenv/versions/{version} System python on PATH {version} []")];
    assert_eq!(env_folder.discover(source()), expect("3.11.7"));
    env_folder.write(".python-version", "3.12.1\n");
    assert_eq!(env_folder.discover(source()), expect("3.12.1"));
    assert_eq!(env_folder.discover(source().with_var("PYENV_VERSION", "3.11.7")), expect("3.11.7"));
}

/// The launchers are in fixtures/, because a file written here cannot be executed while a child of another test has it
/// open for writing.
#[test]
fn interpreter_is_run_only_if_no_file_has_its_version() {
    let env_folder = TestEnvironment::new();
    let launchers = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/launchers");
    let source = |launcher: &str| {
        let source =
            env_folder.source().with_var("PREFIX", env_folder.path("far").to_str().unwrap());
        source.with_var("PATH", launchers.join(launcher).join("bin").to_str().unwrap())
    };
    env_folder.write("far/pkgs/solo-1.0.dist-info/METADATA", "Name: solo\nVersion: 1.0\n");
    let env = environments(&EnvOptions {
        source: source("far"),
        venv: None,
        cache: None,
        verify_files: false,
    })
    .unwrap()
    .remove(0);
    assert_eq!(env.problems, Vec::<String>::new());
    assert_eq!((env_folder.shorten(&env.root).as_str(), env.kind), ("./far", EnvKind::System));
    assert_eq!(env.interpreter.version.unwrap().value, "3.13.2");
    assert_eq!(env.interpreter.abi_tag.unwrap().value, "cp313t");
    assert_eq!(env.dists[0].name, "solo");
    // Isolated, without site-packages, without writing files.
    assert_eq!(std::fs::read_to_string(env_folder.path("far/flags")).unwrap(), "-I -S -B\n");
    // A broken launcher is a problem of its environment only.
    let broken = launchers.join("broken").display().to_string();
    assert_eq!(
        env_folder.discover(source("broken")),
        [format!(
            "{broken} System python on PATH ? [\"{broken}/bin/python -I -S -c ...: broken\"]"
        )]
    );
}

/// pip and uv leave the files of an editable install in its source folder, which direct_url.json names.
#[test]
fn compiled_files_of_an_editable_install_are_found() {
    let env_folder = TestEnvironment::new();
    let info = "mamba_ssm-2.2.6.dist-info";
    env_folder.site(&format!("{info}/METADATA"), "Name: mamba-ssm\nVersion: 2.2.6\n");
    env_folder.site(&format!("{info}/RECORD"), "__editable__.mamba_ssm-2.2.6.pth,,\n");
    let url = |folder: &Path| {
        let folder = folder.display().to_string().replace(' ', "%20");
        format!("{{\"url\": \"file://{folder}\", \"dir_info\": {{\"editable\": true}}}}")
    };
    env_folder.site(&format!("{info}/direct_url.json"), url(&env_folder.path("my src")));
    env_folder.write("real/selective_scan_cuda.so", "code");
    env_folder.write("real/mamba_ssm/ops/_C.so", "code");
    // Build folders and other environments are not imported here.
    env_folder.write("real/build/lib/selective_scan_cuda.so", "code");
    env_folder.write("real/.venv/lib/python3.12/site-packages/torch/_C.so", "code");
    env_folder.write("real/env/pyvenv.cfg", "home = /usr/bin\n");
    env_folder.write("real/env/lib/_C.so", "code");
    env_folder.link("my src", "real");
    let env = env_folder.check(&[]);
    let native: Vec<(String, Option<&str>)> = env
        .native_files
        .iter()
        .map(|file| (env_folder.shorten(&file.path), file.dist.as_deref()))
        .collect();
    let own = |path: &str| (format!("./real/{path}"), Some("mamba-ssm"));
    assert_eq!(native, [own("mamba_ssm/ops/_C.so"), own("selective_scan_cuda.so")]);

    env_folder.site(&format!("{info}/direct_url.json"), url(Path::new("/no/such/source")));
    env_folder
        .check(&[&format!("{SITE}/{info}/direct_url.json points to no folder (/no/such/source)")]);
}
