//! Matrix products of cuBLASLt, if it is installed: the ceiling for firstlight's own kernels.
#![allow(unsafe_code)] // Functions of a C library.

use super::memory::is_of;
use super::search::LibrarySearch;
use super::{Buffer, Cuda, DeviceError, Stream};
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

const WANTED: LibrarySearch = LibrarySearch {
    variable: "FIRSTLIGHT_CUBLASLT",
    names: ["libcublasLt.so.13", "libcublasLt.so.12"],
    wheels: ["nvidia/cu13/lib", "nvidia/cublas/lib"],
};

type Handle = *mut c_void;

/// `CUBLAS_COMPUTE_32F`, `CUDA_R_32F` and `CUDA_R_16BF`.
const COMPUTE_F32: c_int = 68;
const TYPE_F32: c_int = 0;
const TYPE_BF16: c_int = 14;
/// `CUBLASLT_MATMUL_DESC_TRANSA`, and `CUBLAS_OP_T`.
const TRANSPOSE_FIRST: c_int = 3;
const TRANSPOSED: c_int = 1;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
const PREFERENCE_MAX_WORKSPACE: c_int = 1;
/// cuBLAS's own default on Hopper.
const WORKSPACE_BYTES: usize = 64 << 20;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl Functions {
            fn read(library: &'static Library) -> Option<Self> {
                // SAFETY: each type is the one that cublasLt.h declares for its symbol.
                Some(unsafe { Self { $($field: *library.get($symbol).ok()?,)* } })
            }
        }
    };
}

functions! {
    create = b"cublasLtCreate" (*mut Handle);
    destroy = b"cublasLtDestroy" (Handle);
    operation_create = b"cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
    operation_destroy = b"cublasLtMatmulDescDestroy" (Handle);
    operation_set = b"cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
    layout_create = b"cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
    layout_destroy = b"cublasLtMatrixLayoutDestroy" (Handle);
    preference_create = b"cublasLtMatmulPreferenceCreate" (*mut Handle);
    preference_destroy = b"cublasLtMatmulPreferenceDestroy" (Handle);
    preference_set = b"cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize);
    heuristic = b"cublasLtMatmulAlgoGetHeuristic" (
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Heuristic, *mut c_int
    );
    product = b"cublasLtMatmul" (
        Handle, Handle, *const f32, u64, Handle, u64, Handle, *const f32, u64, Handle, u64, Handle,
        *const Heuristic, u64, usize, *mut c_void
    );
}

/// cuBLASLt, prepared for one product of bf16 matrices: `c [m, n] = a [m, k] b [n, k]^T`, all row-major.
pub struct Cublas {
    functions: Functions,
    path: PathBuf,
    handle: Handle,
    operation: Handle,
    preference: Handle,
    /// For b, a and c: the library is column-major, so it computes the transpose.
    layouts: [Handle; 3],
    chosen: Heuristic,
    workspace: Buffer,
    sizes: [usize; 3],
}

impl std::fmt::Debug for Cublas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuBLASLt at {}, {:?}", self.path.display(), self.sizes)
    }
}

impl Cublas {
    /// Prepares a product; `None` if cuBLASLt is not installed.
    ///
    /// # Errors
    /// [`DeviceError`] if the library refuses.
    pub fn find(cuda: &Cuda, sizes: [usize; 3]) -> Result<Option<Self>, DeviceError> {
        // The library uses the calling thread's current context.
        let driver = cuda.context().enter()?;
        let newest = driver.interface().0;
        for path in WANTED.candidates() {
            // A library of a later CUDA than the driver's cannot start.
            if newest < 13 && path.to_string_lossy().ends_with(".so.13") {
                continue;
            }
            // SAFETY: loading the library runs its initialisers, which touch nothing of this program.
            let Ok(library) = (unsafe { Library::new(&path) }) else { continue };
            // It keeps threads; it is never unloaded.
            let library: &'static Library = Box::leak(Box::new(library));
            if let Some(functions) = Functions::read(library) {
                return Self::prepare(functions, path, cuda, sizes).map(Some);
            }
        }
        Ok(None)
    }

    fn prepare(
        functions: Functions,
        path: PathBuf,
        cuda: &Cuda,
        sizes: [usize; 3],
    ) -> Result<Self, DeviceError> {
        let none = std::ptr::null_mut();
        let chosen = Heuristic {
            algorithm: [0; 8],
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let workspace = cuda.stream().allocate(WORKSPACE_BYTES)?;
        let mut blas = Self {
            functions,
            path,
            handle: none,
            operation: none,
            preference: none,
            layouts: [none; 3],
            chosen,
            workspace,
            sizes,
        };
        let [m, n, k] = sizes;
        let mut found = 0;
        // SAFETY: every pointer is to a field or a local that outlives its call, with the given size.
        unsafe {
            check("cublasLtCreate", (blas.functions.create)(&raw mut blas.handle))?;
            let code =
                (blas.functions.operation_create)(&raw mut blas.operation, COMPUTE_F32, TYPE_F32);
            check("cublasLtMatmulDescCreate", code)?;
            let transposed = (&raw const TRANSPOSED_VALUE).cast();
            let code =
                (blas.functions.operation_set)(blas.operation, TRANSPOSE_FIRST, transposed, 4);
            check("cublasLtMatmulDescSetAttribute", code)?;
            for (layout, [rows, columns]) in blas.layouts.iter_mut().zip([[k, n], [k, m], [n, m]]) {
                let (rows, columns) = (rows as u64, columns as u64);
                let code =
                    (blas.functions.layout_create)(layout, TYPE_BF16, rows, columns, rows as i64);
                check("cublasLtMatrixLayoutCreate", code)?;
            }
            let code = (blas.functions.preference_create)(&raw mut blas.preference);
            check("cublasLtMatmulPreferenceCreate", code)?;
            let most = (&raw const WORKSPACE_BYTES_VALUE).cast();
            let code =
                (blas.functions.preference_set)(blas.preference, PREFERENCE_MAX_WORKSPACE, most, 8);
            check("cublasLtMatmulPreferenceSetAttribute", code)?;
            let [b, a, c] = blas.layouts;
            let code = (blas.functions.heuristic)(
                blas.handle,
                blas.operation,
                b,
                a,
                c,
                c,
                blas.preference,
                1,
                &raw mut blas.chosen,
                &raw mut found,
            );
            check("cublasLtMatmulAlgoGetHeuristic", code)?;
        }
        if found == 0 {
            return Err(DeviceError::refused("cuBLASLt knows no algorithm for this product"));
        }
        Ok(blas)
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Enqueues the product.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when a buffer is too short, or an error of the library.
    pub fn product(&self, stream: &Stream, [a, b, c]: [&Buffer; 3]) -> Result<(), DeviceError> {
        let [m, n, k] = self.sizes;
        let _entered = stream.context().enter()?;
        for (buffer, elements) in [(a, m * k), (b, n * k), (c, m * n), (&self.workspace, 0)] {
            is_of(buffer, stream.context())?;
            if buffer.bytes() < 2 * elements {
                let bytes = buffer.bytes();
                let what = format!("a matrix of {elements} elements does not fit {bytes} bytes");
                return Err(DeviceError::refused(what));
            }
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let [layout_b, layout_a, layout_c] = self.layouts;
        // SAFETY: the buffers hold the matrices that the layouts describe; the scalars are read before it returns.
        let code = unsafe {
            (self.functions.product)(
                self.handle,
                self.operation,
                &raw const one,
                b.address(),
                layout_b,
                a.address(),
                layout_a,
                &raw const zero,
                c.address(),
                layout_c,
                c.address(),
                layout_c,
                &raw const self.chosen,
                self.workspace.address(),
                self.workspace.bytes(),
                stream.raw(),
            )
        };
        check("cublasLtMatmul", code)
    }
}

static TRANSPOSED_VALUE: c_int = TRANSPOSED;
static WORKSPACE_BYTES_VALUE: usize = WORKSPACE_BYTES;

/// The library's status codes have no names at run time.
fn check(call: &'static str, code: c_int) -> Result<(), DeviceError> {
    if code == 0 {
        return Ok(());
    }
    let (name, what) = (format!("status {code}"), "cuBLAS refused".to_owned());
    Err(DeviceError::Call { call, code, name, what })
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let functions = &self.functions;
        let destroy = |with: unsafe extern "C" fn(Handle) -> c_int, what: Handle| {
            if !what.is_null() {
                // SAFETY: created once, destroyed once.
                unsafe { with(what) };
            }
        };
        self.layouts.iter().for_each(|layout| destroy(functions.layout_destroy, *layout));
        destroy(functions.preference_destroy, self.preference);
        destroy(functions.operation_destroy, self.operation);
        destroy(functions.destroy, self.handle);
    }
}
