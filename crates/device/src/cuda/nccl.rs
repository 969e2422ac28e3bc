//! NCCL, NVIDIA's library of collectives, found on the machine: needed only if several GPUs run one model.
#![allow(unsafe_code)] // Functions of a C library.

use super::context::Context;
use super::memory::is_of;
use super::search::LibrarySearch;
use super::{Buffer, Cuda, DeviceError, Stream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const WANTED: LibrarySearch = LibrarySearch {
    variable: "FIRSTLIGHT_NCCL",
    names: ["libnccl.so.2", "libnccl.so"],
    wheels: ["nvidia/nccl/lib", "nvidia/nccl/lib"],
};

/// A variable and its value that NCCL reads when it is loaded: without it NCCL uses NVLink multicast, which virtual
/// machines and containers often forbid.
pub const NCCL_SETTING: (&str, &str) = ("NCCL_NVLS_ENABLE", "0");

/// Size of a unique id, through which ranks connect.
pub const NCCL_ID_BYTES: usize = 128;

/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([c_char; NCCL_ID_BYTES]);

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            error: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Functions {
            fn read(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: each type is the one that nccl.h declares for its symbol.
                Ok(unsafe {
                    Self {
                        $($field: *library.get($symbol)?,)*
                        error: *library.get(b"ncclGetErrorString")?,
                    }
                })
            }
        }
    };
}

functions! {
    version = b"ncclGetVersion" (*mut c_int);
    unique_id = b"ncclGetUniqueId" (*mut UniqueId);
    init = b"ncclCommInitRank" (*mut Handle, c_int, UniqueId, c_int);
    destroy = b"ncclCommDestroy" (Handle);
    all_reduce = b"ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
    all_gather = b"ncclAllGather" (*const c_void, *mut c_void, usize, c_int, Handle, Handle);
    reduce_scatter = b"ncclReduceScatter" (*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
    send = b"ncclSend" (*const c_void, usize, c_int, c_int, Handle, Handle);
    receive = b"ncclRecv" (*mut c_void, usize, c_int, c_int, Handle, Handle);
    group_start = b"ncclGroupStart" ();
    group_end = b"ncclGroupEnd" ();
}

/// The library.
pub struct Nccl {
    functions: Functions,
    version: c_int,
    path: PathBuf,
    /// Another copy on this machine.
    other: Option<PathBuf>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.describe())
    }
}

impl Nccl {
    /// The first NCCL on this machine that loads, searched for once per process.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`]: there is none, none loads, or it reports no version.
    pub fn find() -> Result<&'static Self, DeviceError> {
        static FOUND: OnceLock<Result<Nccl, DeviceError>> = OnceLock::new();
        FOUND.get_or_init(Self::search).as_ref().map_err(Clone::clone)
    }

    fn search() -> Result<Self, DeviceError> {
        let mut broken = None;
        let candidates = WANTED.candidates();
        // A library named by the variable is the only candidate.
        if let Some(named) = std::env::var_os(WANTED.variable).filter(|named| !named.is_empty()) {
            let named = PathBuf::from(named);
            let file = if named.is_dir() { named.join(WANTED.names[0]) } else { named };
            return Self::load(&file).map_err(DeviceError::unavailable);
        }
        for path in &candidates {
            match Self::load(path) {
                Ok(found) => return Ok(Self { other: other(&found.path, &candidates), ..found }),
                // A name for the loader's search paths, or a candidate path that does not exist.
                Err(error) if !path.exists() && error.contains("No such file") => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        Err(DeviceError::unavailable(broken.unwrap_or_else(|| {
            "there is no NCCL here (libnccl.so.2): `pip install nvidia-nccl-cu12` into the active environment, or \
             set FIRSTLIGHT_NCCL to it"
                .to_owned()
        })))
    }

    fn load(path: &Path) -> Result<Self, String> {
        let wrong = |what: String| format!("NCCL at {} {what}", path.display());
        // SAFETY: loading NCCL runs its initialisers, which touch nothing of this program.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| wrong(format!("does not load: {error}")))?;
        // Its threads run for the lifetime of the process; it is never unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        let functions = Functions::read(library);
        let functions = functions.map_err(|error| wrong(format!("is no NCCL: {error}")))?;
        let mut version = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (functions.version)(&raw mut version) };
        match code {
            0 => Ok(Self { functions, version, path: path.to_owned(), other: None }),
            _ => Err(wrong(format!("does not say its version: error {code}"))),
        }
    }

    /// Major, minor and patch.
    pub fn version(&self) -> [u32; 3] {
        let version = self.version.unsigned_abs();
        // Before 2.9, version codes had two digits fewer for the minor version.
        match version {
            0..10_000 => [version / 1000, version % 1000 / 100, version % 100],
            _ => [version / 10_000, version % 10_000 / 100, version % 100],
        }
    }

    /// Another copy on this machine.
    pub fn other(&self) -> Option<&Path> {
        self.other.as_deref()
    }

    /// The version and path, and another copy if there is one.
    pub fn describe(&self) -> String {
        let [major, minor, patch] = self.version();
        let other = match &self.other {
            Some(other) => format!("; another one is at {}", other.display()),
            None => String::new(),
        };
        format!("NCCL {major}.{minor}.{patch} at {}{other}", self.path.display())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), DeviceError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a constant string for any code.
        let what = unsafe { CStr::from_ptr((self.functions.error)(code)) };
        let (what, name) = (what.to_string_lossy().into_owned(), format!("error {code}"));
        Err(DeviceError::Call { call, code, name, what })
    }

    /// A unique id, through which ranks connect; one rank creates it and sends it to the others.
    ///
    /// # Errors
    /// [`DeviceError::Call`] of the library.
    pub fn id(&self) -> Result<[u8; NCCL_ID_BYTES], DeviceError> {
        let mut id = UniqueId([0; NCCL_ID_BYTES]);
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (self.functions.unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id.0.map(|byte| byte as u8))
    }
}

/// Another file that may be loaded under the same name.
fn other(taken: &Path, candidates: &[PathBuf]) -> Option<PathBuf> {
    let taken = taken.canonicalize().ok()?;
    let mut files = candidates.iter().filter_map(|path| path.canonicalize().ok());
    files.find(|path| *path != taken)
}

/// One rank's NCCL communicator.
#[derive(Debug)]
pub struct Communicator {
    nccl: &'static Nccl,
    context: Arc<Context>,
    raw: Handle,
    ranks: usize,
}

// SAFETY: the library accepts calls with a communicator from any thread, one at a time.
unsafe impl Send for Communicator {}
// SAFETY: calls pass a stream, which only one thread uses at a time.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Connects to the other ranks; returns when all of them have joined.
    ///
    /// # Errors
    /// [`DeviceError`] of the library.
    pub fn new(
        nccl: &'static Nccl,
        cuda: &Cuda,
        id: &[u8; NCCL_ID_BYTES],
        [rank, ranks]: [usize; 2],
    ) -> Result<Self, DeviceError> {
        let context = Arc::clone(cuda.stream().context());
        let _entered = context.enter()?;
        let id = UniqueId(id.map(|byte| byte as c_char));
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        let code =
            unsafe { (nccl.functions.init)(&raw mut raw, ranks as c_int, id, rank as c_int) };
        nccl.check("ncclCommInitRank", code)?;
        Ok(Self { nccl, context: Arc::clone(&context), raw, ranks })
    }

    /// The library.
    pub fn nccl(&self) -> &'static Nccl {
        self.nccl
    }

    /// All-reduces the first `count` float32 values of a buffer in place, in stream order.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for a buffer of another device or a shorter one, and [`DeviceError::Call`] of the
    /// library.
    pub fn sum(&self, buffer: &Buffer, count: usize, stream: &Stream) -> Result<(), DeviceError> {
        self.sum_into([buffer, buffer], count, stream)
    }

    /// All-reduces the first `count` float32 values of one buffer into another one.
    ///
    /// # Errors
    /// As [`Communicator::sum`].
    pub fn sum_into(
        &self,
        [from, to]: [&Buffer; 2],
        count: usize,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (from, to) = self.both((from, count), (to, count))?;
        let _entered = self.context.enter()?;
        // SAFETY: the buffers have as many values, and stream order keeps them until the sum.
        let code = unsafe {
            (self.nccl.functions.all_reduce)(from, to, count, FLOAT32, SUM, self.raw, stream.raw())
        };
        self.nccl.check("ncclAllReduce", code)
    }

    /// All-gathers the first `count` float32 values of every rank's buffer, `[ranks, count]`.
    ///
    /// # Errors
    /// As [`Communicator::sum`].
    pub fn gather(
        &self,
        [from, to]: [&Buffer; 2],
        count: usize,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (from, to) = self.both((from, count), (to, count * self.ranks))?;
        let _entered = self.context.enter()?;
        // SAFETY: as above.
        let code = unsafe {
            (self.nccl.functions.all_gather)(from, to, count, FLOAT32, self.raw, stream.raw())
        };
        self.nccl.check("ncclAllGather", code)
    }

    /// Reduce-scatters `[ranks, count]` float32 values: each rank gets the sum of its row, `[count]`.
    ///
    /// # Errors
    /// As [`Communicator::sum`].
    pub fn scatter_sums(
        &self,
        [from, to]: [&Buffer; 2],
        count: usize,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let (from, to) = self.both((from, count * self.ranks), (to, count))?;
        let _entered = self.context.enter()?;
        let functions = &self.nccl.functions;
        // SAFETY: as above.
        let code = unsafe {
            (functions.reduce_scatter)(from, to, count, FLOAT32, SUM, self.raw, stream.raw())
        };
        self.nccl.check("ncclReduceScatter", code)
    }

    /// All-to-all: sends each rank its row of `[ranks, count]` float32 values, and writes the received rows in the
    /// order of ranks.
    ///
    /// # Errors
    /// As [`Communicator::sum`].
    pub fn exchange(
        &self,
        [from, to]: [&Buffer; 2],
        count: usize,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let all = count * self.ranks;
        let (from, to) = self.both((from, all), (to, all))?;
        let _entered = self.context.enter()?;
        let (functions, nccl) = (&self.nccl.functions, self.nccl);
        // SAFETY: it has no arguments.
        nccl.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let row = |rank: usize| {
            let bytes = rank * count * size_of::<f32>();
            // SAFETY: each row is within its buffer.
            unsafe { (from.byte_add(bytes), to.byte_add(bytes)) }
        };
        let moved = (0..self.ranks).try_for_each(|rank| {
            let ((from, to), peer) = (row(rank), rank as c_int);
            // SAFETY: the rows have as many values, and stream order keeps them.
            let sent =
                unsafe { (functions.send)(from, count, FLOAT32, peer, self.raw, stream.raw()) };
            nccl.check("ncclSend", sent)?;
            // SAFETY: as above.
            let received =
                unsafe { (functions.receive)(to, count, FLOAT32, peer, self.raw, stream.raw()) };
            nccl.check("ncclRecv", received)
        });
        // SAFETY: it has no arguments; the group ends also if a call was refused.
        let ended = nccl.check("ncclGroupEnd", unsafe { (functions.group_end)() });
        moved.and(ended)
    }

    /// Pointers to the first `count` values of both buffers.
    fn both(
        &self,
        (from, sent): (&Buffer, usize),
        (to, received): (&Buffer, usize),
    ) -> Result<(*const c_void, *mut c_void), DeviceError> {
        self.takes(from, sent)?;
        self.takes(to, received)?;
        Ok((from.address() as *const c_void, to.address() as *mut c_void))
    }

    fn takes(&self, buffer: &Buffer, count: usize) -> Result<(), DeviceError> {
        is_of(buffer, &self.context)?;
        let (wanted, has) = (count * size_of::<f32>(), buffer.bytes());
        if has >= wanted {
            return Ok(());
        }
        Err(DeviceError::refused(format!("ranks sum {wanted} bytes, the buffer has {has}")))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made in `new`, destroyed once; graphs captured with it are gone before.
            unsafe { (self.nccl.functions.destroy)(self.raw) };
        }
    }
}
