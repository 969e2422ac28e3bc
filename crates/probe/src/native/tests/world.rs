//! An environment of libraries compiled for the test, and a program instead of Python that opens them.

use crate::{EnvOptions, Source, environments};
use facts::{Elf, PyEnv};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Opens its arguments in order, as `import` does, and prints the loader's messages. The second line of an opened
/// library is the result of its function `which`. `Py_Initialize` exists for extensions to find.
const PYTHON: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
void Py_Initialize(void) {}
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        if (!library) { printf("%s\n", dlerror()); continue; }
        int (*which)(void) = (int (*)(void))dlsym(library, "which");
        printf("opened %d\n", which ? which() : 0);
    }
    return 0;
}
"#;

pub(super) struct World {
    folder: TempDir,
    ld_library_path: Option<String>,
}

impl World {
    pub(super) fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap(), ld_library_path: None };
        world.write("pyvenv.cfg", "home = /nowhere/bin\nversion = 3.12.3\n");
        world.write("lib/python3.12/site-packages/empty.txt", "");
        world.compile("bin/python", PYTHON, &["-rdynamic", "-ldl"], false);
        world
    }

    pub(super) fn with_ld_library_path(mut self, folder: &str) -> Self {
        self.ld_library_path = Some(self.path(folder).display().to_string());
        self
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(relative)
    }

    pub(super) fn site(&self, relative: &str) -> PathBuf {
        self.path("lib/python3.12/site-packages").join(relative)
    }

    pub(super) fn write(&self, relative: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }

    /// Compiles a library into site-packages. Arguments may name other libraries by `site:path`.
    pub(super) fn library(&self, relative: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let relative = format!("lib/python3.12/site-packages/{relative}");
        self.compile(&relative, source, arguments, true)
    }

    pub(super) fn compile(
        &self,
        relative: &str,
        source: &str,
        arguments: &[&str],
        shared: bool,
    ) -> PathBuf {
        let source = self.write(&format!("{relative}.c"), source);
        let out = self.path(relative);
        let arguments = arguments.iter().map(|word| match word.strip_prefix("site:") {
            Some(path) => self.site(path).display().to_string(),
            None => (*word).to_owned(),
        });
        let mut command = Command::new("cc");
        command.arg("-o").arg(&out).arg(&source);
        if shared {
            command.args(["-shared", "-fPIC", "-nostdlib", "-Wl,--allow-shlib-undefined"]);
        }
        let done = command.args(arguments).output().expect("a C compiler named cc");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::remove_file(source).unwrap();
        out
    }

    pub(super) fn env(&self) -> PyEnv {
        self.env_cached(None)
    }

    pub(super) fn env_cached(&self, cache: Option<PathBuf>) -> PyEnv {
        let mut source = Source::live().without_vars().with_working_folder(self.folder.path());
        if let Some(folder) = &self.ld_library_path {
            source = source.with_var("LD_LIBRARY_PATH", folder);
        }
        let options = EnvOptions { source, venv: Some(self.path("")), cache, verify_files: false };
        environments(&options).unwrap().remove(0)
    }

    /// The probe's facts of one file.
    pub(super) fn elf(&self, relative: &str) -> Elf {
        of(&self.env(), &self.site(relative))
    }

    /// The loader's results for files opened in this order, one line each.
    pub(super) fn open(&self, files: &[&str]) -> Vec<String> {
        let mut command = Command::new(self.path("bin/python"));
        command.args(files.iter().map(|file| self.site(file))).env_clear();
        if let Some(folder) = &self.ld_library_path {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let out = command.output().unwrap();
        String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

pub(super) fn of(env: &PyEnv, path: &Path) -> Elf {
    let file = env.native_files.iter().find(|file| Path::new(&file.path) == path);
    file.and_then(|file| file.elf.clone()).unwrap_or_else(|| panic!("{}", path.display()))
}
