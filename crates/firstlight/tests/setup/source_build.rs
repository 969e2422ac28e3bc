//! Source builds of a small package whose setup.py works like flash-attn's: it takes a prebuilt wheel if its release page
//! has one and no switch forbids it, and compiles a C++ extension with pybind11 otherwise.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::server::Server;
use crate::tools::{done, python, uv_command, venv};
use crate::wheel::File;
use facts::BuildRecipe;
use setup::build::{BuildError, BuildSource, BuiltWheel, LinkEvidence, WheelBuild, build};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

const SETUP_PY: &str = include_str!("source_build/setup.py");
const FASTOP_CPP: &str = include_str!("source_build/fastop.cpp");

/// The environment that all builds use and none changes.
fn env() -> &'static Path {
    static ENV: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let env = venv(folder.path(), &["pybind11", "setuptools", "packaging"]);
        (folder, env)
    });
    &ENV.1
}

/// The build recipe with these switches and this release page.
pub(crate) fn recipe(page: &str, switches: &[(&str, &str)]) -> BuildRecipe {
    let asked = [("FASTOP_WHEELS", page)];
    let all = switches.iter().chain(&asked);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    BuildRecipe {
        requirement: "fastop==1.0".into(),
        env: all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        build_requires: words(&["pybind11", "setuptools", "packaging"]),
        requires: Vec::new(),
        system_requires: words(&["c++", "pybind11/pybind11.h", "Python.h"]),
        minutes: (0, 1),
        job_bytes: 1 << 28,
        source: "this test".into(),
    }
}

/// Writes the source folder, with a change to the C++.
fn source(folder: &Path, change: impl Fn(&str) -> String) -> PathBuf {
    let source = folder.join("fastop-1.0");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("setup.py"), SETUP_PY).unwrap();
    std::fs::write(source.join("fastop.cpp"), change(FASTOP_CPP)).unwrap();
    source
}

/// Packs a source folder into an archive next to it.
fn packed(source: &Path) -> PathBuf {
    let (folder, name) = (source.parent().unwrap(), source.file_name().unwrap());
    let archive = folder.join("fastop-1.0.tar.gz");
    done(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(folder).arg(name));
    archive
}

/// The package's sdist.
pub(crate) fn sdist(folder: &Path) -> File {
    let archive = packed(&source(folder, str::to_owned));
    File::new("fastop-1.0.tar.gz", std::fs::read(archive).unwrap())
}

/// A release page, and a folder for builds.
struct World {
    server: Server,
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        Self { server: Server::start(), folder: tempfile::tempdir().unwrap() }
    }

    /// Writes the source, with `change` applied to the C++.
    fn source(&self, change: impl Fn(&str) -> String) -> PathBuf {
        source(self.folder.path(), change)
    }

    /// Builds with these switches, in the same folder each time.
    fn build(
        &self,
        source: BuildSource,
        switches: &[(&str, &str)],
    ) -> Result<BuiltWheel, BuildError> {
        let recipe = recipe(&self.server.url("releases/v1.0"), switches);
        let task = WheelBuild {
            package: "fastop",
            recipe: &recipe,
            source,
            env: env(),
            python: python(),
            gpus: &[],
            cuda_home: None,
            jobs: 2,
            folder: &self.folder.path().join("build"),
        };
        build(&task, uv_command(&[]))
    }

    /// Publishes a wheel on the release page that setup.py reads.
    fn publish(&self, wheel: &Path) {
        let name = wheel.file_name().unwrap().to_str().unwrap();
        self.server.release("releases/v1.0", &File::new(name, std::fs::read(wheel).unwrap()));
    }
}

/// The switch that forbids a prebuilt wheel.
pub(crate) const FORCED: (&str, &str) = ("FASTOP_FORCE_BUILD", "TRUE");

/// The value of the built extension, imported by the environment's Python.
fn answer(world: &World) -> String {
    let site =
        world.folder.path().join(format!("build/unpacked/lib/python{}/site-packages", python()));
    let program =
        "import sys; sys.path.insert(0, sys.argv[1]); import fastop; print(fastop.twice(21))";
    let mut command = Command::new(env().join("bin/python"));
    let said = done(command.args(["-I", "-c", program]).arg(site)).stdout;
    String::from_utf8(said).unwrap().trim().to_owned()
}

#[test]
fn r2_06_forced_build_compiles_and_prebuilt_is_refused() {
    let world = World::new();
    let archive = packed(&world.source(str::to_owned));
    let built = world.build(BuildSource::Archive(&archive), &[FORCED]).unwrap();
    assert_eq!(answer(&world), "42");
    let [linked] = built.linked.as_slice() else { panic!("{:?}", built.linked) };
    assert!(linked.file.contains("fastop.cpython-"), "{linked:?}");
    let compiled = built.runs.iter().any(|run| run.output.ends_with("fastop.o") && run.status == 0);
    assert!(compiled, "{:?}", built.runs);
    // Compiling pybind11's headers takes time and tens of megabytes.
    assert!(built.seconds > 0.5, "{}", built.seconds);
    assert!(built.peak_memory_bytes.is_some_and(|bytes| bytes > 50 << 20), "{built:?}");
    let log = std::fs::read_to_string(&built.log).unwrap();
    assert!(log.contains("FASTOP_FORCE_BUILD=TRUE") && log.contains("MAX_JOBS=2"), "{log}");
    assert!(world.server.asked(".whl").is_empty(), "a forced build asks for no wheel");

    // The published wheel has the same bytes, but was not compiled here.
    world.publish(&built.wheel);
    let error = world.build(BuildSource::Archive(&archive), &[]).unwrap_err();
    assert_eq!(world.server.asked(".whl").len(), 1);
    let BuildError::Prebuilt { .. } = error else { panic!("{error}") };
    let text = format!("{error}\nhint: {}", error.hint());
    for words in [
        "fastop was not compiled here: lib/python",
        "is not one of the 0 files that the build's 0 compiler runs linked",
        "the log says `Guessing wheel URL: ",
        "hint: ",
        "_FORCE_BUILD=TRUE (none was set)",
    ] {
        assert!(text.contains(words), "no {words} in {text}");
    }

    // With the switch, setup.py does not read the release page.
    world.build(BuildSource::Archive(&archive), &[FORCED]).unwrap();
    assert_eq!(world.server.asked(".whl").len(), 1);
}

#[test]
fn r2_06_unforced_build_compiles_without_prebuilt_wheel() {
    let world = World::new();
    let archive = packed(&world.source(str::to_owned));
    // A strip after the link changes the bytes.
    let built = world.build(BuildSource::Archive(&archive), &[("FASTOP_STRIP", "1")]).unwrap();
    assert_eq!((world.server.asked(".whl").len(), built.linked.len()), (1, 1));
    assert_eq!(built.linked[0].by, LinkEvidence::BuildId);
    assert_eq!(answer(&world), "42");
}

#[test]
fn r2_06_builds_a_repository_tag() {
    let world = World::new();
    let source = world.source(str::to_owned);
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&source).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
        done(git.args(arguments));
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "1.0"]);
    git(&["tag", "v1.0"]);
    // The commit after the tag does not compile.
    world.source(|text| format!("{text}\nno C++"));
    git(&["commit", "--quiet", "-a", "-m", "later"]);
    let requirement = format!("git+file://{}@v1.0", source.display());
    world.build(BuildSource::git(&requirement).unwrap(), &[FORCED]).unwrap();
    assert_eq!(answer(&world), "42");
    let error =
        world.build(BuildSource::git(&requirement.replace("v1.0", "v9")).unwrap(), &[FORCED]);
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("the source of fastop is not available") && text.contains("v9"),
        "{text}"
    );
}

#[test]
fn r3_05_builds_are_clean_and_repeatable() {
    let world = World::new();
    let source = world.source(str::to_owned);
    let archive = packed(&source);
    let first = world.build(BuildSource::Archive(&archive), &[FORCED]).unwrap();
    let (wheel, runs) = (std::fs::read(&first.wheel).unwrap(), first.runs.len());
    // The second build must not reuse files of the first: its source is changed and gets newer timestamps.
    let left = world.folder.path().join("build/source/fastop-1.0");
    let text = FASTOP_CPP.replace("2 *", "3 *");
    std::fs::write(left.join("fastop.cpp"), text).unwrap();
    assert!(left.join("build").is_dir(), "the build left nothing that could be taken");
    let second = world.build(BuildSource::Archive(&archive), &[FORCED]).unwrap();
    assert_eq!(answer(&world), "42");
    assert_eq!(second.runs.len(), runs);
    assert_eq!(std::fs::read(&second.wheel).unwrap(), wheel, "two builds of one source differ");

    // An archive with a build folder contains objects that were not compiled here.
    let kept = world.folder.path().join("build/source/fastop-1.0/build");
    std::fs::rename(kept, source.join("build")).unwrap();
    let stale = packed(&source);
    let error = world.build(BuildSource::Archive(&stale), &[FORCED]).unwrap_err();
    let BuildError::Prebuilt { .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains("is not one of the 0 files"), "{error}");
    let hint = error.hint();
    assert!(hint.contains("FASTOP_FORCE_BUILD=TRUE was set without effect"), "{hint}");
}

#[test]
fn failed_build_shows_compiler_error() {
    let world = World::new();
    let source =
        world.source(|text| text.replace("#include <pybind11/pybind11.h>", "#include <no_such.h>"));
    let archive = packed(&source);
    let error = world.build(BuildSource::Archive(&archive), &[FORCED]).unwrap_err();
    assert!(error.hint().contains("build.log"), "{}", error.hint());
    let error = error.to_string();
    assert!(error.contains("building fastop failed"), "{error}");
    assert!(error.contains("fatal error: no_such.h: No such file or directory"), "{error}");
}

#[test]
fn rejects_build_without_extension() {
    let world = World::new();
    let archive = packed(&world.source(str::to_owned));
    let switches = [FORCED, ("FASTOP_SKIP_BUILD", "TRUE")];
    let error = world.build(BuildSource::Archive(&archive), &switches).unwrap_err();
    assert!(matches!(error, BuildError::NothingCompiled { .. }), "{error}");
}
