use serde::{Deserialize, Serialize};

/// A compiled file inside an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeFile {
    /// The file.
    pub path: String,
    /// The distribution whose RECORD lists it.
    pub dist: Option<String>,
    /// Size in bytes, where RECORD or the file system tells.
    pub bytes: Option<u64>,
    /// What the file itself says, and what the dynamic loader would do with it; `None` when it is no ELF file.
    pub elf: Option<Elf>,
    /// Why the dynamic loader cannot map it, by its own bytes: `is cut off: ...`; `None` where nothing is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl NativeFile {
    /// The name after the last slash.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The name without what CPython's own build or a release of the library puts behind it: `_C` of
    /// `_C.cpython-312-x86_64-linux-gnu.so`, `MPI.mpich` of `MPI.mpich.abi3.so`, `libfoo` of `libfoo.so.1`.
    pub fn stem(&self) -> &str {
        let name = self.name();
        let endings = [".cpython-", ".pypy", ".abi3.so", ".so"];
        let end = endings.iter().filter_map(|ending| name.find(ending)).min();
        &name[..end.unwrap_or(name.len())]
    }
}

/// One shared object, read from its bytes, and its place in a Python process of its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elf {
    /// Processor it was compiled for, as `uname -m` names it: `x86_64`, `aarch64`; `elf-machine-243` for others.
    pub machine: String,
    /// DT_SONAME: the name other files ask for it by.
    pub soname: Option<String>,
    /// The folders of DT_RUNPATH, or of DT_RPATH where there is no DT_RUNPATH, as written.
    pub search: Vec<String>,
    /// DT_NEEDED in order, each as the loader would find it.
    pub needed: Vec<Needed>,
    /// Symbol versions it asks for that the library found does not have.
    pub missing_versions: Vec<MissingVersion>,
    /// Symbols it must have and no loaded library exports; a bounded number of them.
    pub missing_symbols: Vec<MissingSymbol>,
    /// How many symbols are missing in all.
    pub missing_symbols_total: u32,
    /// Whether Python can import it: it exports the `PyInit_` function of its name. `None` where its symbols were not
    /// read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<bool>,
    /// What makes an import of its package open it, where something in the package's files does: the file that needs it
    /// or the Python file that names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// The Python file that tries to load it and handles the failure, where every attempt in its distribution does so: the
    /// distribution works without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional_in: Option<String>,
    /// The NumPy C API it was compiled against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numpy: Option<NumpyApi>,
    /// Whether its PT_GNU_STACK asks for a stack that can be executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable_stack: bool,
    /// GPU code, by the distinct sets of images its fatbin containers hold.
    pub gpu_code: Vec<GpuCode>,
    /// What of the file could not be read, one sentence each.
    pub problems: Vec<String>,
}

/// The NumPy C API a file was compiled against, by the messages that NumPy's headers put into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumpyApi {
    /// Whether the headers were NumPy 1's: such a file refuses NumPy 2.
    pub before_2: bool,
    /// The oldest NumPy that serves it, where the message names one: `1.25`.
    pub least: Option<String>,
}

/// One DT_NEEDED entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The name asked for: `libcudart.so.12`.
    pub name: String,
    /// The file the loader takes; `None` when it finds none.
    pub path: Option<String>,
    /// Which step of the search found it.
    pub found_by: Option<FoundBy>,
    /// Another file of that name: the one the search would have come to without `LD_LIBRARY_PATH` or without the copy that
    /// is already loaded; or, where the loader finds none, one that lies in the environment all the same.
    pub other: Option<String>,
}

/// The step of the dynamic loader's search that found a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FoundBy {
    /// A library of that name is in the process already: the main program's, or torch's.
    Loaded,
    /// DT_RPATH of the file, of what loaded it, or of the interpreter.
    Rpath,
    /// The `LD_LIBRARY_PATH` variable.
    LdLibraryPath,
    /// DT_RUNPATH of the file.
    Runpath,
    /// `/etc/ld.so.cache`.
    LdSoCache,
    /// The loader's own folders.
    Default,
    /// The entry is a path itself.
    Path,
}

impl FoundBy {
    /// The words evidence uses.
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

/// A symbol version the loader will not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingVersion {
    /// The version: `GLIBC_2.32`, `GLIBCXX_3.4.30`, `CXXABI_1.3.13`.
    pub version: String,
    /// The library it is asked of: `libc.so.6`.
    pub library: String,
    /// The file found for that library.
    pub path: String,
    /// The newest version of the same family that file has.
    pub newest: Option<String>,
}

/// A symbol the loader will not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingSymbol {
    /// The name in the file.
    pub symbol: String,
    /// The C++ name behind it.
    pub demangled: Option<String>,
    /// The version it is asked in, and of which library.
    pub version: Option<String>,
    /// The library the version is asked of: `libnvJitLink.so.12`.
    pub library: Option<String>,
    /// What the libraries found export under the same C++ name: the sign of another signature or another C++ ABI.
    pub instead: Vec<Exported>,
}

/// A symbol a library exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The name in the file.
    pub symbol: String,
    /// The C++ name behind it.
    pub demangled: Option<String>,
    /// The library file.
    pub path: String,
}

/// Fatbin containers that hold the same images. The driver picks one image of a container, so a container without one
/// that runs on a GPU is a set of kernels without code there.
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

/// What an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuImageKind {
    /// Machine code of one architecture.
    Cubin,
    /// PTX, which the driver compiles.
    Ptx,
    /// Something a driver does not run as it is: intermediate code for link-time optimisation, say.
    Other,
}

/// How far the code of an image carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuReach {
    /// Plain code: a cubin on the same major version from its minor version on, PTX on everything newer.
    Onward,
    /// The `a` suffix: exactly this architecture.
    Architecture,
    /// The `f` suffix: this family.
    Family,
}
