//! The driver's functions, looked up by name in the installed library.
#![allow(unsafe_code)] // Functions of a C library; each call site says why its arguments are right.

use super::DeviceError;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`, `CUgraph` and `CUgraphExec` are opaque pointers.
pub(super) type Handle = *mut c_void;
/// `CUdeviceptr`.
pub(super) type DevicePointer = u64;

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// The first driver version with all of the functions below: CUDA 12.0.
const LEAST_INTERFACE: c_int = 12_000;

/// Errors after which the driver refuses every further call on the same context: ECC, illegal address, time-out,
/// assertion, stack, instruction, misaligned address, address space, program counter, launch failure.
const STICKY: &[c_int] = &[214, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// Whether this error ends the context.
pub(super) fn is_sticky(code: c_int) -> bool {
    STICKY.contains(&code)
}

/// `CUlaunchAttribute`: an identifier, and a value of 64 bytes at offset 8.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pub(super) pad: c_uint,
    pub(super) value: [c_uint; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// `CUtensorMap`: 128 opaque bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RawTensorMap(pub(super) [u64; 16]);

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions used here. Each returns a `CUresult`, 0 for success.
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// `cuFuncGetParamInfo`, of CUDA 12.4 and later.
            pub(super) parameter: Option<unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> c_int>,
            /// CUDA IPC, which some systems lack.
            pub(super) ipc: Option<Ipc>,
            version: c_int,
        }

        impl Driver {
            fn read(library: Library) -> Result<Self, DeviceError> {
                // The driver cannot be unloaded: its threads and handlers remain.
                let library: &'static Library = Box::leak(Box::new(library));
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is the one that cuda.h declares for this symbol.
                        let found = unsafe { library.get($symbol) };
                        *found.map_err(|_| DeviceError::unavailable(format!(
                            "the driver is older than CUDA 12.0, it has no {}",
                            String::from_utf8_lossy($symbol)
                        )))?
                    },)*
                    // SAFETY: as above.
                    parameter: unsafe { library.get(b"cuFuncGetParamInfo") }.ok().map(|found| *found),
                    ipc: Ipc::read(library),
                    version: 0,
                })
            }
        }
    };
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// The functions of CUDA IPC memory.
#[derive(Clone, Copy)]
pub(super) struct Ipc {
    /// `cuIpcGetMemHandle`.
    pub(super) handle: unsafe extern "C" fn(*mut IpcHandle, DevicePointer) -> c_int,
    /// `cuIpcOpenMemHandle_v2`.
    pub(super) open: unsafe extern "C" fn(*mut DevicePointer, IpcHandle, c_uint) -> c_int,
    /// `cuIpcCloseMemHandle`.
    pub(super) close: unsafe extern "C" fn(DevicePointer) -> c_int,
}

impl Ipc {
    fn read(library: &'static Library) -> Option<Self> {
        // SAFETY: the types are those that cuda.h declares for these symbols.
        unsafe {
            Some(Self {
                handle: *library.get(b"cuIpcGetMemHandle").ok()?,
                open: *library.get(b"cuIpcOpenMemHandle_v2").ok()?,
                close: *library.get(b"cuIpcCloseMemHandle").ok()?,
            })
        }
    }
}

functions! {
    init = b"cuInit" (c_uint);
    driver_version = b"cuDriverGetVersion" (*mut c_int);
    error_name = b"cuGetErrorName" (c_int, *mut *const c_char);
    error_string = b"cuGetErrorString" (c_int, *mut *const c_char);
    device_count = b"cuDeviceGetCount" (*mut c_int);
    device_get = b"cuDeviceGet" (*mut c_int, c_int);
    device_uuid = b"cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    device_name = b"cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_memory = b"cuDeviceTotalMem_v2" (*mut usize, c_int);
    device_attribute = b"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_retain = b"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_release = b"cuDevicePrimaryCtxRelease_v2" (c_int);
    context_current = b"cuCtxGetCurrent" (*mut Handle);
    context_set_current = b"cuCtxSetCurrent" (Handle);
    context_push = b"cuCtxPushCurrent_v2" (Handle);
    context_pop = b"cuCtxPopCurrent_v2" (*mut Handle);
    memory_info = b"cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = b"cuMemAlloc_v2" (*mut DevicePointer, usize);
    free = b"cuMemFree_v2" (DevicePointer);
    host_allocate = b"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = b"cuMemFreeHost" (*mut c_void);
    host_register = b"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister = b"cuMemHostUnregister" (*mut c_void);
    copy_to_device = b"cuMemcpyHtoDAsync_v2" (DevicePointer, *const c_void, usize, Handle);
    copy_to_host = b"cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Handle);
    copy_on_device = b"cuMemcpyDtoDAsync_v2" (DevicePointer, DevicePointer, usize, Handle);
    fill16 = b"cuMemsetD16Async" (DevicePointer, u16, usize, Handle);
    fill32 = b"cuMemsetD32Async" (DevicePointer, c_uint, usize, Handle);
    stream_create = b"cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy = b"cuStreamDestroy_v2" (Handle);
    stream_synchronize = b"cuStreamSynchronize" (Handle);
    stream_wait_event = b"cuStreamWaitEvent" (Handle, Handle, c_uint);
    exchange_capture_mode = b"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    stream_capturing = b"cuStreamIsCapturing" (Handle, *mut c_int);
    capture_begin = b"cuStreamBeginCapture_v2" (Handle, c_int);
    capture_end = b"cuStreamEndCapture" (Handle, *mut Handle);
    graph_instantiate = b"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_launch = b"cuGraphLaunch" (Handle, Handle);
    graph_upload = b"cuGraphUpload" (Handle, Handle);
    graph_destroy = b"cuGraphDestroy" (Handle);
    graph_exec_destroy = b"cuGraphExecDestroy" (Handle);
    event_create = b"cuEventCreate" (*mut Handle, c_uint);
    event_query = b"cuEventQuery" (Handle);
    event_destroy = b"cuEventDestroy_v2" (Handle);
    event_record = b"cuEventRecord" (Handle, Handle);
    event_synchronize = b"cuEventSynchronize" (Handle);
    event_elapsed = b"cuEventElapsedTime" (*mut f32, Handle, Handle);
    module_load = b"cuModuleLoadData" (*mut Handle, *const c_void);
    module_unload = b"cuModuleUnload" (Handle);
    module_function = b"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_attribute = b"cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    function_set_attribute = b"cuFuncSetAttribute" (Handle, c_int, c_int);
    occupancy = b"cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Handle, c_int, usize);
    launch = b"cuLaunchKernelEx" (*const LaunchConfig, Handle, *const *const c_void, *const *const c_void);
    encode_tiled = b"cuTensorMapEncodeTiled" (
        *mut RawTensorMap, c_int, c_uint, DevicePointer, *const u64, *const u64, *const c_uint, *const c_uint,
        c_int, c_int, c_int, c_int
    );
    replace_address = b"cuTensorMapReplaceAddress" (*mut RawTensorMap, DevicePointer);
    can_access_peer = b"cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    reach = b"cuCtxEnablePeerAccess" (Handle, c_uint);
    copy_to_peer = b"cuMemcpyPeerAsync" (DevicePointer, Handle, DevicePointer, Handle, usize, Handle);
}

/// Names for the loader. WSL keeps the driver outside the loader's paths.
const NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1", "nvcuda.dll"];

/// Why `CUDA_VISIBLE_DEVICES` hides every GPU from this process, if it does.
pub(super) fn hidden() -> Option<String> {
    let value = std::env::var_os("CUDA_VISIBLE_DEVICES")?;
    Some(match value.to_string_lossy().trim() {
        "" => "CUDA_VISIBLE_DEVICES is empty, which hides every GPU".to_owned(),
        value => format!("CUDA_VISIBLE_DEVICES is `{value}`, which names no GPU that is here"),
    })
}

impl Driver {
    /// The driver, loaded and initialised once per process.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn get() -> Result<&'static Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, DeviceError> {
        let mut driver = Self::read(Self::library()?)?;
        // SAFETY: no flag is defined, 0 is the only value.
        let code = unsafe { (driver.init)(0) };
        if code != SUCCESS {
            let (name, what) = driver.describe(code);
            let reason = match hidden() {
                Some(hidden) if code == NO_DEVICE => hidden,
                _ => format!("the NVIDIA driver does not start: {name} ({what})"),
            };
            return Err(DeviceError::unavailable(reason));
        }
        let mut version = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (driver.driver_version)(&raw mut version) };
        driver.check("cuDriverGetVersion", code)?;
        driver.version = version;
        if driver.version < LEAST_INTERFACE {
            let (major, minor) = driver.interface();
            let reason =
                format!("the NVIDIA driver supports CUDA {major}.{minor}, these kernels need 12.0");
            return Err(DeviceError::unavailable(reason));
        }
        Ok(driver)
    }

    /// The driver's library, or why it cannot be loaded.
    fn library() -> Result<Library, DeviceError> {
        let mut broken = None;
        for name in NAMES {
            // SAFETY: loading the driver runs its initialisers, as every CUDA program does.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(library),
                // The loader's text is the only way to distinguish a missing library from one that cannot be loaded.
                Err(error) if error.to_string().contains("No such file") => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        let module = Path::new("/proc/driver/nvidia/version").exists();
        Err(DeviceError::unavailable(match broken {
            Some(error) => format!("the NVIDIA driver's library cannot be loaded: {error}"),
            None if module => {
                "the NVIDIA kernel module is loaded, but its library libcuda.so.1 is missing"
                    .to_owned()
            }
            None => "no NVIDIA driver is installed (no libcuda.so.1)".to_owned(),
        }))
    }

    /// The newest CUDA this driver supports.
    pub(super) fn interface(&self) -> (u32, u32) {
        let version = self.version.unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }

    /// The name and the text of an error code.
    pub(super) fn describe(&self, code: c_int) -> (String, String) {
        let text = |of: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the driver writes a pointer to one of its constants, or null for an unknown code.
            let found = unsafe { of(code, &raw mut text) };
            if found != SUCCESS || text.is_null() {
                return format!("error {code}");
            }
            // SAFETY: not null, so a constant string of the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        (text(self.error_name), text(self.error_string))
    }

    /// An error code as a value.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        let (name, what) = self.describe(code);
        Err(DeviceError::Call { call, code, name, what })
    }
}
