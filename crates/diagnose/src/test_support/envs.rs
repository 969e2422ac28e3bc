//! Python environments, as `probe` would record them.

use facts::{
    Dist, Elf, EnvKind, EnvManager, Exported, Fact, FoundBy, GpuCode, GpuImage, GpuImageKind,
    GpuReach, Interpreter, MissingSymbol, MissingVersion, NativeFile, Needed, Ptxas, PyEnv, Torch,
};

/// Builds one environment.
pub(crate) struct EnvBuilder(PyEnv);

/// A virtual environment with Python 3.12.3 and no recorded manager.
pub(crate) fn env(root: &str) -> EnvBuilder {
    EnvBuilder(PyEnv {
        root: root.into(),
        kind: EnvKind::Venv,
        found_by: "--venv".into(),
        manager: None,
        interpreter: Interpreter {
            executable: Some(format!("{root}/bin/python")),
            resolved: Some("/usr/bin/python3.12".into()),
            version: Some(Fact::new("3.12.3".into(), format!("{root}/pyvenv.cfg"))),
            abi_tag: None,
            base: Some("/usr/bin".into()),
        },
        site_packages: vec![format!("{root}/lib/python3.12/site-packages")],
        dists: Vec::new(),
        torch: None,
        native_files: Vec::new(),
        ptxas: Vec::new(),
        companions: Vec::new(),
        in_front: Vec::new(),
        unmet_imports: Vec::new(),
        missing_names: Vec::new(),
        problems: Vec::new(),
    })
}

impl EnvBuilder {
    pub(crate) fn build(self) -> PyEnv {
        self.0
    }

    fn managed_by(mut self, manager: EnvManager) -> Self {
        self.0.manager = Some(Fact::new(manager, format!("{}/pyvenv.cfg", self.0.root)));
        self
    }

    pub(crate) fn uv(self) -> Self {
        self.managed_by(EnvManager::Uv)
    }

    pub(crate) fn conda(mut self) -> Self {
        self.0.kind = EnvKind::Conda;
        self.0.interpreter.base = None;
        self.managed_by(EnvManager::Conda)
    }

    pub(crate) fn system(mut self) -> Self {
        self.0.kind = EnvKind::System;
        self.0.interpreter.base = None;
        self
    }

    pub(crate) fn found_by(mut self, how: &str) -> Self {
        self.0.found_by = how.into();
        self
    }

    pub(crate) fn python(mut self, version: &str) -> Self {
        self.0.interpreter.version =
            Some(Fact::new(version.into(), format!("{}/pyvenv.cfg", self.0.root)));
        self
    }

    /// Replaces the interpreter's path and the path that it resolves to.
    pub(crate) fn interpreter(mut self, executable: Option<&str>, resolved: Option<&str>) -> Self {
        self.0.interpreter.executable = executable.map(str::to_owned);
        self.0.interpreter.resolved = resolved.map(str::to_owned);
        self
    }

    /// Adds torch by its `__version__` and `cuda`, with its distribution (whose METADATA has no local label, as on
    /// PyPI).
    pub(crate) fn torch(self, version: &str, cuda: Option<&str>) -> Self {
        let public = version.split('+').next().unwrap_or(version).to_owned();
        let mut this = self.dist("torch", &public);
        let source = format!("{}/torch/version.py", this.0.site_packages[0]);
        this.0.torch = Some(Torch {
            version: version.into(),
            cuda: cuda.map(str::to_owned),
            hip: None,
            git_version: None,
            source,
        });
        this
    }

    pub(crate) fn dist(self, name: &str, version: &str) -> Self {
        let site = self.0.site_packages[0].clone();
        let folder = format!("{site}/{}-{version}.dist-info", name.replace('-', "_"));
        self.dist_at(name, version, &folder)
    }

    pub(crate) fn dist_at(mut self, name: &str, version: &str, folder: &str) -> Self {
        self.0.dists.push(Dist {
            name: name.into(),
            version: version.into(),
            path: folder.into(),
            record_files: Some(10),
            ..Dist::default()
        });
        self
    }

    /// Adds a compiled file of a distribution, by its path in site-packages.
    pub(crate) fn native(mut self, dist: &str, file: &str) -> Self {
        let path = format!("{}/{file}", self.0.site_packages[0]);
        self.0.native_files.push(NativeFile {
            path,
            dist: Some(dist.into()),
            bytes: Some(1 << 20),
            ..NativeFile::default()
        });
        self
    }

    fn change(mut self, name: &str, change: impl FnOnce(&mut Dist)) -> Self {
        let dist = self.0.dists.iter_mut().find(|dist| dist.name == name);
        change(dist.expect("a distribution added before"));
        self
    }

    pub(crate) fn installer(self, name: &str, word: &str) -> Self {
        self.change(name, |dist| dist.installer = Some(word.into()))
    }

    pub(crate) fn requires(self, name: &str, line: &str) -> Self {
        self.change(name, |dist| dist.requires.push(line.into()))
    }

    /// Adds a compiled file below site-packages that this distribution owns (none if empty).
    pub(crate) fn compiled(mut self, owner: &str, file: &str, elf: Elf) -> Self {
        let path = format!("{}/{file}", self.0.site_packages[0]);
        self.0.native_files.push(NativeFile {
            path,
            dist: (!owner.is_empty()).then(|| owner.to_owned()),
            bytes: Some(1 << 20),
            elf: Some(elf),
            damage: None,
        });
        self
    }

    /// Adds a ptxas of Triton that prints this CUDA release and lists these architectures.
    pub(crate) fn ptxas(mut self, name: &str, release: &str, targets: &[&str]) -> Self {
        let source = format!("{}/triton/backends/nvidia/bin/{name}", self.0.site_packages[0]);
        let targets = targets.iter().map(|target| (*target).into()).collect();
        self.0.ptxas.push(Ptxas { release: release.into(), targets, source });
        self
    }

    /// Adds a compiled file that needs a library and misses a symbol; the library exports another one (none if empty).
    pub(crate) fn misses(
        self,
        owner: &str,
        file: &str,
        symbol: &str,
        library: &str,
        exported: &str,
    ) -> Self {
        let path = format!("{}/{library}", self.0.site_packages[0]);
        let name = library.rsplit('/').next().unwrap_or(library);
        let instead = Exported { symbol: exported.into(), demangled: None, path: path.clone() };
        let elf = Elf {
            missing_symbols: vec![MissingSymbol {
                symbol: symbol.into(),
                demangled: None,
                version: None,
                library: None,
                instead: if exported.is_empty() { Vec::new() } else { vec![instead] },
            }],
            missing_symbols_total: 1,
            needed: vec![found(name, &path, FoundBy::Loaded)],
            ..elf()
        };
        self.compiled(owner, file, elf)
    }
}

/// An ELF file for x86-64 without other facts.
pub(crate) fn elf() -> Elf {
    Elf { machine: "x86_64".into(), ..Elf::default() }
}

/// A needed library that the loader finds.
pub(crate) fn found(name: &str, path: &str, by: FoundBy) -> Needed {
    Needed { name: name.into(), path: Some(path.into()), found_by: Some(by), other: None }
}

/// A symbol version that the found library does not have.
pub(crate) fn missing_version(
    version: &str,
    library: &str,
    path: &str,
    newest: &str,
) -> MissingVersion {
    MissingVersion {
        version: version.into(),
        library: library.into(),
        path: path.into(),
        newest: Some(newest.into()),
    }
}

/// An image from text: `sm_90a`, or `compute_80 8.7` with the PTX ISA last.
pub(crate) fn image(words: &str) -> GpuImage {
    let (name, isa) = words.split_once(' ').map_or((words, None), |(name, isa)| (name, Some(isa)));
    let (kind, number) = name.split_once('_').expect("an architecture");
    let digits = number.trim_end_matches(['a', 'f']);
    let sm: u32 = digits.parse().expect("a number");
    GpuImage {
        kind: if kind == "sm" { GpuImageKind::Cubin } else { GpuImageKind::Ptx },
        sm: (sm / 10, sm % 10),
        reach: match number.trim_start_matches(digits) {
            "a" => GpuReach::Architecture,
            "f" => GpuReach::Family,
            _ => GpuReach::Onward,
        },
        ptx_isa: isa.and_then(knowledge::minor_of),
        compressed: false,
    }
}

/// A file with containers that all have these images.
pub(crate) fn with_code(containers: u32, images: &[&str]) -> Elf {
    let images = images.iter().map(|words| image(words)).collect();
    Elf { gpu_code: vec![GpuCode { containers, images }], ..elf() }
}

/// A file that needs a library that the loader does not find.
pub(crate) fn elf_missing_library(name: &str) -> Elf {
    let needed = Needed { name: name.into(), path: None, found_by: None, other: None };
    Elf { needed: vec![needed], ..elf() }
}
