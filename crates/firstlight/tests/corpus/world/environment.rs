//! Changes to the environment of a world.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use super::World;
use crate::library::Library;
use facts::Dist;
use std::path::PathBuf;

impl World {
    /// Replaces the virtual environment with one of another Python version.
    pub(crate) fn python(mut self, version: &str) -> Self {
        if self.disk(&self.venv).exists() {
            std::fs::remove_dir_all(self.disk(&self.venv)).unwrap();
        }
        self.python = version.to_owned();
        let program = format!("/usr/bin/python{version}");
        let cfg = format!("home = /usr/bin\nversion = {version}.3\n");
        let venv = self.venv.clone();
        self.file(&program[1..], "")
            .file(&format!("{venv}/pyvenv.cfg"), &cfg)
            .link(&format!("{venv}/bin/python"), &program)
            .site_folder()
    }

    fn site_folder(self) -> Self {
        std::fs::create_dir_all(self.disk(&self.site(""))).unwrap();
        self
    }

    /// Makes the environment look like one of uv.
    pub(crate) fn uv(mut self) -> Self {
        self.installer = "uv";
        let text = format!("home = /usr/bin\nuv = 0.9.1\nversion_info = {}.3\n", self.python);
        let cfg = format!("{}/pyvenv.cfg", self.venv);
        self.file(&cfg, &text)
    }

    /// Replaces the virtual environment with a conda environment.
    pub(crate) fn conda(mut self) -> Self {
        std::fs::remove_dir_all(self.disk(&self.venv)).unwrap();
        self.installer = "conda";
        let (venv, python) = (self.venv.clone(), self.python.clone());
        self.file(&format!("{venv}/bin/python{python}"), "")
            .link(&format!("{venv}/bin/python"), &format!("python{python}"))
            .file(&format!("{venv}/lib/python{python}/os.py"), "")
            .file(&format!("{venv}/conda-meta/python-{python}.3-h2628c8c_0_cpython.json"), "{}")
            .file(&format!("{venv}/conda-meta/history"), "")
            .site_folder()
    }

    /// Uses the system's Python, which is found on PATH.
    pub(crate) fn system_python(mut self, version: &str) -> Self {
        std::fs::remove_dir_all(self.disk(&self.venv)).unwrap();
        self.venv = "usr".to_owned();
        self.python = version.to_owned();
        self.named = false;
        self.file(&format!("usr/bin/python{version}"), "")
            .link("usr/bin/python3", &format!("python{version}"))
            .link("usr/bin/python", "python3")
            .file(&format!("usr/lib/python{version}/os.py"), "")
            .file(
                &format!("usr/include/python{version}/patchlevel.h"),
                &format!("#define PY_VERSION \"{version}.3\"\n"),
            )
            .var("PATH", "/usr/bin")
            .site_folder()
    }

    /// Moves the environment to `.venv` in the working folder, without naming it on the command line.
    pub(crate) fn in_working_folder(mut self) -> Self {
        let (old, new) = (self.disk(&self.venv), "home/user/.venv");
        std::fs::rename(old, self.disk(new)).unwrap();
        self.venv = new.to_owned();
        self.named = false;
        self.working_folder = PathBuf::from("/home/user");
        self
    }

    pub(super) fn site(&self, relative: &str) -> String {
        format!("{}/lib/python{}/site-packages/{relative}", self.venv, self.python)
    }

    /// A file below site-packages.
    pub(crate) fn in_site(self, relative: &str, text: &str) -> Self {
        let path = self.site(relative);
        self.file(&path, text)
    }

    /// A compiled file below site-packages: a Python module, unless its name begins with `lib`.
    pub(crate) fn library(self, relative: &str, library: &Library) -> Self {
        let path = self.site(relative);
        let name = relative.rsplit('/').next().unwrap_or(relative);
        let stem = name.split('.').next().unwrap_or(name);
        match name.starts_with("lib") || !name.contains(".so") {
            true => self.library_at(&path, library),
            false => {
                let init = format!("PyInit_{stem}");
                self.library_at(&path, &library.clone().exports(&[&init]))
            }
        }
    }

    /// A link in site-packages to a file anywhere on the machine.
    pub(crate) fn site_link(self, relative: &str, target: &str) -> Self {
        let path = self.site(relative);
        let up = "../".repeat(path.matches('/').count());
        self.link(&path, &format!("{up}{target}"))
    }

    /// A link anywhere on the machine to a file of site-packages.
    pub(crate) fn link_to_site(self, path: &str, relative: &str) -> Self {
        let up = "../".repeat(path.matches('/').count());
        let target = format!("{up}{}", self.site(relative));
        self.link(path, &target)
    }

    /// A compiled file anywhere on the machine.
    pub(crate) fn library_at(mut self, path: &str, library: &Library) -> Self {
        self.write(path, library.bytes(self.processor));
        self.libraries.push((path.to_owned(), library.clone()));
        self
    }

    /// A compiled file below site-packages for another processor than the machine's.
    pub(crate) fn foreign_library(
        self,
        relative: &str,
        library: &Library,
        processor: &str,
    ) -> Self {
        self.write(&self.site(relative), library.bytes(processor));
        self
    }

    /// A distribution that owns these files.
    pub(crate) fn dist(self, name: &str, version: &str, files: &[&str]) -> Self {
        self.dist_requiring(name, version, files, &[])
    }

    /// A distribution that owns these files and requires others.
    pub(crate) fn dist_requiring(
        self,
        name: &str,
        version: &str,
        files: &[&str],
        requires: &[&str],
    ) -> Self {
        let info = self.site(&format!("{name}-{version}.dist-info"));
        let requires: String =
            requires.iter().map(|line| format!("Requires-Dist: {line}\n")).collect();
        let record: String = files.iter().map(|file| format!("{file},,\n")).collect();
        let tag = format!("cp{0}-cp{0}-linux_{1}", self.python.replace('.', ""), self.processor);
        let installer = format!("{}\n", self.installer);
        self.file(
            &format!("{info}/METADATA"),
            &format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"),
        )
        .file(&format!("{info}/WHEEL"), &format!("Wheel-Version: 1.0\nTag: {tag}\n"))
        .file(&format!("{info}/INSTALLER"), &installer)
        .file(&format!("{info}/RECORD"), &record)
    }

    /// Removes a distribution with the files of its RECORD, as an uninstall does.
    pub(crate) fn uninstall(&self, name: &str) {
        let Some(info) = self.info_of(name) else { return };
        for path in self.record(&info) {
            // A file that two distributions list may already be removed.
            let _ = std::fs::remove_file(self.disk(&self.site(&path)));
        }
        std::fs::remove_dir_all(self.disk(&self.site(&info))).unwrap();
    }

    /// Installs a distribution with its files from another world.
    pub(crate) fn install_from(&self, other: &Self, name: &str) {
        self.uninstall(name);
        let info = other.info_of(name).unwrap();
        for path in other.record(&info) {
            let (from, to) = (other.disk(&other.site(&path)), self.disk(&self.site(&path)));
            // A RECORD of the corpus may list files that do not exist.
            if from.exists() {
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::copy(from, to).unwrap();
            }
        }
        super::copy(&other.disk(&other.site(&info)), &self.disk(&self.site(&info)));
    }

    /// The version of an installed distribution.
    pub(crate) fn version_of(&self, name: &str) -> Option<String> {
        let info = self.info_of(name)?;
        Some(info.strip_suffix(".dist-info")?.split_once('-')?.1.to_owned())
    }

    /// The name of a distribution's dist-info folder.
    fn info_of(&self, name: &str) -> Option<String> {
        let entries = std::fs::read_dir(self.disk(&self.site(""))).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut infos = names.filter(|file| file.ends_with(".dist-info"));
        infos.find(|file| Dist::same_name(file.split('-').next().unwrap(), name))
    }

    /// Paths that a RECORD lists, below site-packages.
    fn record(&self, info: &str) -> Vec<String> {
        let path = self.disk(&self.site(&format!("{info}/RECORD")));
        let text = std::fs::read_to_string(path).unwrap();
        let paths = text.lines().filter_map(|line| line.split(',').next());
        paths.filter(|path| !path.contains("..")).map(str::to_owned).collect()
    }

    /// CPython's file name of an extension: `x.cpython-312-x86_64-linux-gnu.so`.
    pub(crate) fn extension(&self, name: &str) -> String {
        format!("{name}.cpython-{}-{}-linux-gnu.so", self.python.replace('.', ""), self.processor)
    }

    /// A torch of this version (`2.9.1+cu128`, `2.9.0+cpu`) whose libc10.so exports these symbols and whose
    /// libtorch_cuda.so has this GPU code. Its extension needs libc10.so alone.
    pub(crate) fn torch(self, version: &str, exports: &[&str], images: &[&str]) -> Self {
        let (public, label) = version.split_once('+').unwrap_or((version, ""));
        let cuda = label.strip_prefix("cu").filter(|digits| digits.parse::<u32>().is_ok());
        let cuda = cuda.map_or("None".to_owned(), |digits| {
            let (major, minor) = digits.split_at(digits.len() - 1);
            format!("'{major}.{minor}'")
        });
        let c10 = Library::named("libc10.so").exports(exports);
        let own = self.extension("torch/_C");
        let extension = Library::new().linked_with(&c10).search("RPATH $ORIGIN/lib");
        let code = Library::named("libtorch_cuda.so").code(images);
        let files = ["torch/lib/libc10.so", "torch/lib/libtorch_cuda.so", &own];
        let files = if images.is_empty() { vec![files[0], files[2]] } else { files.to_vec() };
        let world = self
            .dist("torch", public, &files)
            .in_site(
                "torch/version.py",
                &format!("__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"),
            )
            .library("torch/lib/libc10.so", &c10)
            .library(&own, &extension);
        if images.is_empty() { world } else { world.library("torch/lib/libtorch_cuda.so", &code) }
    }

    /// A model's config.json for `doctor --model`.
    pub(crate) fn model(mut self, config: &str) -> Self {
        let path = self.disk("home/user/model/config.json");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, config).unwrap();
        self.model = Some(path);
        self
    }
}
