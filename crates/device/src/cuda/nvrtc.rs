//! NVRTC, NVIDIA's run-time compiler, found on the machine: needed only for shapes that are not in the bundle.
#![allow(unsafe_code)] // Functions of a C library.

use super::search::LibrarySearch;
use super::{DeviceError, KernelSource};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

type Program = *mut c_void;

/// The bundle's NVRTC version first: its binaries load on every supported driver.
pub(super) const WANTED: LibrarySearch = LibrarySearch {
    variable: "FIRSTLIGHT_NVRTC",
    names: ["libnvrtc.so.12", "libnvrtc.so.13"],
    wheels: ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"],
};

/// The compiler's library.
pub struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut u8) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut u8) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    version: (u32, u32),
    path: PathBuf,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}

impl Nvrtc {
    /// The first NVRTC on this machine up to CUDA `newest`, searched for once per process.
    ///
    /// # Errors
    /// The paths that were tried.
    pub fn find(newest: u32) -> Result<&'static Self, Vec<PathBuf>> {
        static FOUND: OnceLock<Result<Nvrtc, Vec<PathBuf>>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let candidates = WANTED.candidates();
            let mut loaded = candidates.iter().filter_map(|path| Self::load(path));
            loaded.find(|nvrtc| nvrtc.version.0 <= newest).ok_or(candidates)
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// NVRTC at this path; `None` if it cannot be loaded.
    pub fn load(path: &Path) -> Option<Self> {
        // SAFETY: loading NVRTC runs its initialisers, which touch nothing of this program.
        let library = unsafe { Library::new(path) }.ok()?;
        // The compiler's state lives as long as the process; it is never unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: each type is the one that nvrtc.h declares for its symbol.
        let mut nvrtc = unsafe {
            Self {
                create: *library.get(b"nvrtcCreateProgram").ok()?,
                compile: *library.get(b"nvrtcCompileProgram").ok()?,
                log_size: *library.get(b"nvrtcGetProgramLogSize").ok()?,
                log: *library.get(b"nvrtcGetProgramLog").ok()?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize").ok()?,
                cubin: *library.get(b"nvrtcGetCUBIN").ok()?,
                destroy: *library.get(b"nvrtcDestroyProgram").ok()?,
                version: (0, 0),
                path: path.to_owned(),
            }
        };
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the pointers are to locals that outlive the call.
        let code = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                *library.get(b"nvrtcVersion").ok()?;
            version(&raw mut major, &raw mut minor)
        };
        nvrtc.version = (major.unsigned_abs(), minor.unsigned_abs());
        (code == 0).then_some(nvrtc)
    }

    /// Its CUDA version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles a source to a cubin; also returns the compiler's log.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] with the log.
    pub fn compile(&self, source: &KernelSource) -> Result<(Vec<u8>, String), DeviceError> {
        let compiled = self.compile_text(&source.text(), &source.options());
        compiled.map_err(|log| source.does_not_compile(log))
    }

    /// Compiles a text with options; the error is the log.
    pub(super) fn compile_text(
        &self,
        code: &str,
        options: &[String],
    ) -> Result<(Vec<u8>, String), String> {
        let text =
            |text: &str| CString::new(text).map_err(|_| "the source holds a zero byte".to_owned());
        let code = text(code)?;
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Compilation { nvrtc: self, raw: std::ptr::null_mut() };
        // SAFETY: the strings end with zeros and live until the program is destroyed; there are no headers.
        let created = unsafe {
            (self.create)(
                &raw mut program.raw,
                code.as_ptr(),
                c"firstlight.cu".as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if created != 0 {
            return Err(format!("nvrtcCreateProgram gave {created}"));
        }
        // SAFETY: the program was created, and the number of options is correct.
        let compiled =
            unsafe { (self.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let log = String::from_utf8_lossy(&program.bytes(self.log_size, self.log))
            .trim_end_matches(['\0', '\n'])
            .to_owned();
        if compiled != 0 {
            return Err(log);
        }
        let cubin = program.bytes(self.cubin_size, self.cubin);
        if !cubin.starts_with(b"\x7fELF") {
            return Err("the compiler gave no binary".to_owned());
        }
        Ok((cubin, log))
    }
}

/// A program that is destroyed when dropped.
struct Compilation<'a> {
    nvrtc: &'a Nvrtc,
    raw: Program,
}

impl Compilation<'_> {
    /// The result of a pair of size and content functions; empty if they fail.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        content: unsafe extern "C" fn(Program, *mut u8) -> c_int,
    ) -> Vec<u8> {
        let mut length = 0;
        // SAFETY: the program was created; the pointer is to a local.
        if unsafe { size(self.raw, &raw mut length) } != 0 {
            return Vec::new();
        }
        let mut bytes = vec![0; length];
        // SAFETY: the buffer has the size that the library returned.
        if unsafe { content(self.raw, bytes.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        bytes
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
        }
    }
}
