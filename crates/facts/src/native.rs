use serde::{Deserialize, Serialize};

/// A compiled file inside an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFile {
    /// The file.
    pub path: String,
    /// The distribution whose RECORD lists it.
    pub dist: Option<String>,
    /// Size in bytes, if RECORD or the file system gives it.
    pub bytes: Option<u64>,
    /// The file's ELF data, and what the dynamic loader would do with it; `None` if it is not an ELF file.
    pub elf: Option<Elf>,
    /// Why the dynamic loader cannot map it: `is cut off: ...`; `None` if nothing is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl NativeFile {
    /// The name after the last slash.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The name without the suffixes of CPython's build or of a library's release: `_C` of
    /// `_C.cpython-312-x86_64-linux-gnu.so`, `MPI.mpich` of `MPI.mpich.abi3.so`, `libfoo` of `libfoo.so.1`.
    pub fn stem(&self) -> &str {
        let name = self.name();
        let endings = [".cpython-", ".pypy", ".abi3.so", ".so"];
        let end = endings.iter().filter_map(|ending| name.find(ending)).min();
        &name[..end.unwrap_or(name.len())]
    }
}

/// A shared object, read from its bytes, and its role in a Python process of its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elf {
    /// Its machine type, in the terms of `uname -m`: `x86_64`, `aarch64`; `elf-machine-243` for others.
    pub machine: String,
    /// DT_SONAME: the name by which other files need it.
    pub soname: Option<String>,
    /// The folders of DT_RUNPATH, or of DT_RPATH without DT_RUNPATH, unexpanded.
    pub search: Vec<String>,
    /// DT_NEEDED in order, each resolved as by the loader.
    pub needed: Vec<Needed>,
    /// Required symbol versions that the resolved library does not have.
    pub missing_versions: Vec<MissingVersion>,
    /// Required symbols that no loaded library exports; a limited number of them.
    pub missing_symbols: Vec<MissingSymbol>,
    /// Total number of missing symbols.
    pub missing_symbols_total: u32,
    /// Whether it is an extension module: it exports the `PyInit_` function of its name. `None` if its symbols were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<bool>,
    /// The file that needs it or the Python file that names it, if importing its package loads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// The Python file that tries to load it and handles the failure, if all attempts in its distribution do: the
    /// distribution works without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional_in: Option<String>,
    /// The NumPy C API it was compiled against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numpy: Option<NumpyApi>,
    /// Whether its PT_GNU_STACK requires an executable stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable_stack: bool,
    /// GPU code, by the distinct sets of images in its fatbin containers.
    pub gpu_code: Vec<GpuCode>,
    /// Problems of reading it, one sentence each.
    pub problems: Vec<String>,
}

/// The NumPy C API a file was compiled against, derived from messages in NumPy's headers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumpyApi {
    /// Whether the headers were NumPy 1's: such a file refuses NumPy 2.
    pub before_2: bool,
    /// The minimum NumPy version, if the message names one: `1.25`.
    pub least: Option<String>,
}

/// One DT_NEEDED entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The needed name: `libcudart.so.12`.
    pub name: String,
    /// The file that the loader uses; `None` if it finds none.
    pub path: Option<String>,
    /// The step of the search that found it.
    pub found_by: Option<FoundBy>,
    /// Another file of that name: the one that the loader would find without `LD_LIBRARY_PATH` or without the loaded copy; or,
    /// if it finds none, one in the environment.
    pub other: Option<String>,
}

/// The step of the dynamic loader's search that found a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// A library of that name is already loaded: by the main program or torch.
    Loaded,
    /// DT_RPATH of the file, of what loaded it, or of the interpreter.
    Rpath,
    /// The `LD_LIBRARY_PATH` variable.
    LdLibraryPath,
    /// DT_RUNPATH of the file.
    Runpath,
    /// `/etc/ld.so.cache`.
    LdSoCache,
    /// The loader's default folders.
    Default,
    /// The entry is a path.
    Path,
}

impl FoundBy {
    /// The description used in evidence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "already loaded",
            Self::Rpath => "RPATH",
            Self::LdLibraryPath => "LD_LIBRARY_PATH",
            Self::Runpath => "RUNPATH",
            Self::LdSoCache => "/etc/ld.so.cache",
            Self::Default => "the loader's default folders",
            Self::Path => "its path",
        }
    }
}

/// A symbol version that the loader will not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingVersion {
    /// The version: `GLIBC_2.32`, `GLIBCXX_3.4.30`, `CXXABI_1.3.13`.
    pub version: String,
    /// The library it is needed from: `libc.so.6`.
    pub library: String,
    /// The file found for that library.
    pub path: String,
    /// The newest version of the same family in that file.
    pub newest: Option<String>,
}

/// A symbol that the loader will not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingSymbol {
    /// The name in the file.
    pub symbol: String,
    /// The demangled C++ name.
    pub demangled: Option<String>,
    /// The required symbol version.
    pub version: Option<String>,
    /// The library that the version is needed from: `libnvJitLink.so.12`.
    pub library: Option<String>,
    /// Exports of the resolved libraries with the same C++ name: a sign of another signature or another C++ ABI.
    pub instead: Vec<Exported>,
}

/// A symbol a library exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The name in the file.
    pub symbol: String,
    /// The demangled C++ name.
    pub demangled: Option<String>,
    /// The library file.
    pub path: String,
}

/// Fatbin containers with the same images. The driver selects one image per container, so a container without one that
/// runs on a GPU is a set of kernels without code for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCode {
    /// Number of containers with exactly these images.
    pub containers: u32,
    /// The images, each kind once.
    pub images: Vec<GpuImage>,
}

/// One image of GPU code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuImage {
    /// Machine code or PTX.
    pub kind: GpuImageKind,
    /// Compute capability, major and minor.
    pub sm: (u32, u32),
    /// Whether it uses features of one architecture or family only.
    pub reach: GpuReach,
    /// PTX ISA version of a PTX image, which the driver's compiler must know.
    pub ptx_isa: Option<(u32, u32)>,
    /// Whether the payload is compressed.
    pub compressed: bool,
}

impl GpuImage {
    /// `sm_90a`, `compute_80`.
    pub fn architecture(&self) -> String {
        let word = match self.kind {
            GpuImageKind::Cubin => "sm",
            GpuImageKind::Ptx => "compute",
            GpuImageKind::Other => "other",
        };
        let suffix = match self.reach {
            GpuReach::Onward => "",
            GpuReach::Architecture => "a",
            GpuReach::Family => "f",
        };
        format!("{word}_{}{}{suffix}", self.sm.0, self.sm.1)
    }
}

/// The kind of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuImageKind {
    /// Machine code of one architecture.
    Cubin,
    /// PTX, which the driver compiles.
    Ptx,
    /// Something that a driver cannot run directly, such as intermediate code for link-time optimization.
    Other,
}

/// The devices on which the code of an image runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuReach {
    /// No suffix: a cubin runs on GPUs with the same major and at least its minor compute capability, PTX on all newer GPUs.
    Onward,
    /// The `a` suffix: exactly this architecture.
    Architecture,
    /// The `f` suffix: this family.
    Family,
}
