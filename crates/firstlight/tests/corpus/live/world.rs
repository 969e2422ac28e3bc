//! One environment with a torch of compiled libraries, and a stand-in program for Python.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::support;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// torch's extension: opening it is what `import torch` does.
pub(crate) const TORCH: &str = "torch/_C.cpython-312-x86_64-linux-gnu.so";

/// Opens its arguments in order, like imports, and prints the loader's messages.
const PYTHON: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        printf("%s\n", library ? "opened" : dlerror());
    }
    return 0;
}
"#;

pub(crate) struct World {
    folder: TempDir,
    ld_library_path: Option<PathBuf>,
}

impl World {
    /// An environment with a torch of this version, whose libc10.so exports one function.
    pub(crate) fn with_torch(version: &str, exported: &str) -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap(), ld_library_path: None };
        world.write("venv/pyvenv.cfg", "home = /nowhere/bin\nversion = 3.12.3\n");
        world.compile("venv/bin/python", PYTHON, &["-ldl"]);
        let (public, cuda) = version.split_once("+cu").unwrap();
        let (major, minor) = cuda.split_at(cuda.len() - 1);
        world.dist("torch", public, &["torch/lib/libc10.so", TORCH]);
        let text = format!("__version__ = '{version}'\ncuda: Optional[str] = '{major}.{minor}'\n");
        world.write("venv/lib/python3.12/site-packages/torch/version.py", &text);
        let source = format!("void f(void) __asm__(\"{exported}\"); void f(void) {{}}");
        world.library("torch/lib/libc10.so", &source, &["-Wl,-soname,libc10.so"]);
        let needs = ["-Wl,--no-as-needed", "site:torch/lib/libc10.so", "-Wl,-rpath,$ORIGIN/lib"];
        world.library(TORCH, "int unused;", &needs);
        world
    }

    pub(crate) fn with_ld_library_path(mut self, folder: &str) -> Self {
        self.ld_library_path = Some(self.folder.path().join(folder));
        self
    }

    pub(crate) fn site(&self, relative: &str) -> PathBuf {
        self.folder.path().join("venv/lib/python3.12/site-packages").join(relative)
    }

    fn write(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A linker argument with this version script.
    pub(crate) fn version_script(&self, text: &str) -> String {
        format!("-Wl,--version-script={}", self.write("versions", text).display())
    }

    /// A distribution that owns these compiled files.
    pub(crate) fn dist(&self, name: &str, version: &str, files: &[&str]) {
        let info = format!("venv/lib/python3.12/site-packages/{name}-{version}.dist-info");
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        self.write(&format!("{info}/METADATA"), &metadata);
        let machine = std::env::consts::ARCH;
        self.write(&format!("{info}/WHEEL"), &format!("Tag: cp312-cp312-linux_{machine}\n"));
        self.write(&format!("{info}/INSTALLER"), "pip\n");
        let record: String = files.iter().map(|file| format!("{file},,\n")).collect();
        self.write(&format!("{info}/RECORD"), &record);
    }

    /// Compiles a library into site-packages, or a module if its name does not begin with `lib`. The argument `site:x` is
    /// the path of another library there.
    pub(crate) fn library(&self, relative: &str, source: &str, arguments: &[&str]) {
        let name = relative.rsplit('/').next().unwrap();
        let stem = name.split('.').next().unwrap();
        let source = match name.starts_with("lib") {
            true => source.to_owned(),
            false => format!("{source}\nvoid PyInit_{stem}(void) {{}}\n"),
        };
        let path = format!("venv/lib/python3.12/site-packages/{relative}");
        self.outside(&path, &source, arguments);
    }

    /// Compiles a library anywhere.
    pub(crate) fn outside(&self, relative: &str, source: &str, arguments: &[&str]) {
        let shared = ["-shared", "-fPIC", "-nostdlib", "-Wl,--allow-shlib-undefined"];
        // Symbols such as `free` must not conflict with compiler builtins.
        let all: Vec<&str> =
            shared.iter().chain(&["-fno-builtin"]).chain(arguments).copied().collect();
        self.compile(relative, source, &all);
    }

    fn compile(&self, relative: &str, source: &str, arguments: &[&str]) {
        let file = self.write(&format!("{relative}.c"), source);
        let argument = |word: &&str| match word.strip_prefix("site:") {
            Some(path) => self.site(path).display().to_string(),
            None => (*word).to_owned(),
        };
        let mut command = Command::new("cc");
        command.arg("-o").arg(self.folder.path().join(relative)).arg(&file);
        let done = command.args(arguments.iter().map(argument)).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::remove_file(file).unwrap();
    }

    /// Runs firstlight on this environment.
    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let venv = self.folder.path().join("venv").display().to_string();
        let arguments = [arguments, &["--venv", &venv, "--json"]].concat();
        let mut command = support::command(self.folder.path(), &arguments);
        command.env("PATH", "/nowhere").env_remove("LD_LIBRARY_PATH");
        command.envs(self.ld_library_path.iter().map(|folder| ("LD_LIBRARY_PATH", folder)));
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn findings(&self) -> Vec<(String, String)> {
        let report = self.json(&["doctor"]);
        let findings = report["findings"].as_array().unwrap().iter();
        let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        findings
            .filter(|finding| finding["severity"] != "info")
            .map(|finding| (word(&finding["severity"]), word(&finding["rule"])))
            .collect()
    }

    /// The rules with findings, without severity info.
    pub(crate) fn rules(&self) -> Vec<String> {
        self.findings().into_iter().map(|(_, rule)| rule).collect()
    }

    /// The loader's messages when it opens the files in this order.
    pub(crate) fn open(&self, files: &[&str]) -> Vec<String> {
        let mut command = Command::new(self.folder.path().join("venv/bin/python"));
        command.args(files.iter().map(|file| self.site(file))).env_clear();
        command.envs(self.ld_library_path.iter().map(|folder| ("LD_LIBRARY_PATH", folder)));
        let out = command.output().unwrap().stdout;
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    /// Asserts that doctor finds the rule as an error, the loader fails on the last file with this message, and explain
    /// finds the rule by the message, confirmed by the files.
    pub(crate) fn breaks(&self, rule: &str, files: &[&str], words: &str) {
        let findings = self.findings();
        assert_eq!(findings, [("error".to_owned(), rule.to_owned())]);
        let said = self.open(files);
        let last = said.last().unwrap();
        assert!(last.contains(words), "the loader said {said:?}");
        let explained = self.json(&["explain", &format!("ImportError: {last}")]);
        let first = &explained["matches"][0];
        assert_eq!(
            (&first["rule"], &first["confirmed_here"]),
            (&rule.into(), &true.into()),
            "{explained}"
        );
        assert!(!first["fix"].as_array().unwrap().is_empty());
    }

    /// Asserts that doctor finds no error and the loader opens all files.
    pub(crate) fn works(&self, files: &[&str]) {
        let errors: Vec<_> =
            self.findings().into_iter().filter(|(severity, _)| severity == "error").collect();
        assert_eq!(errors, []);
        assert_eq!(self.open(files), vec!["opened"; files.len()]);
    }
}
