//! One open GPU.
#![allow(unsafe_code)] // Calls of the driver.

use super::current::ContextGuard;
use super::driver::{self, Driver, Handle, OUT_OF_MEMORY, is_sticky};
use super::memory;
use super::modules::Modules;
use super::pool::Pool;
use super::{Buffer, ComputeCapability, CudaCapabilities, DeviceError, MemoryUse, Stream};
use crate::{Device, DeviceOwnership, Launches};
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The first GPUs with bfloat16 MMA, which every op here may use.
const LEAST_COMPUTE: ComputeCapability = ComputeCapability::new(8, 0);

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
const DEVICE_UNAVAILABLE: c_int = 46;

/// `CUdevice_attribute` numbers.
const MULTIPROCESSORS: c_int = 16;
const L2_BYTES: c_int = 38;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;
const SHARED_BYTES_OPT_IN: c_int = 97;

/// An open GPU: its primary context, a stream, the memory pool and the loaded kernels. Clones are the same GPU.
#[derive(Debug, Clone)]
pub struct Cuda {
    context: Arc<Context>,
    stream: Stream,
    capabilities: Arc<CudaCapabilities>,
}

/// The driver, and the number of visible GPUs.
fn counted() -> Result<(&'static Driver, c_int), DeviceError> {
    let driver = Driver::get()?;
    let mut count = 0;
    // SAFETY: the pointer is to a local that outlives the call.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_count)(&raw mut count) })?;
    if count == 0 {
        let reason = driver::hidden().unwrap_or_else(|| "the NVIDIA driver sees no GPU".to_owned());
        return Err(DeviceError::unavailable(reason));
    }
    Ok((driver, count))
}

fn too_old(CudaCapabilities { name, compute, .. }: &CudaCapabilities) -> Option<String> {
    (*compute < LEAST_COMPUTE).then(|| {
        format!(
            "{name} has compute capability {compute}, these kernels need {LEAST_COMPUTE} or later"
        )
    })
}

/// A visible GPU that is not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleGpu {
    /// UUID in the format of `CUDA_VISIBLE_DEVICES` and NVML: `GPU-` and 32 hexadecimal digits, `MIG-` for a partition.
    pub uuid: String,
    /// The driver's name of the GPU.
    pub name: String,
    /// Why firstlight's kernels cannot run on it.
    pub unusable: Option<String>,
}

/// The visible GPUs, in the driver's order, which is the index of [`super::open`]. None of them is opened.
///
/// # Errors
/// [`DeviceError::Unavailable`] if there is no driver, it does not start, or it shows no GPU.
pub fn visible_gpus() -> Result<Vec<VisibleGpu>, DeviceError> {
    let (driver, count) = counted()?;
    let seen = |number| {
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: the pointer is to a local that outlives the call, here and below.
        driver.check("cuDeviceGet", unsafe { (driver.device_get)(&raw mut device, number) })?;
        driver.check("cuDeviceGetUuid", unsafe { (driver.device_uuid)(&raw mut uuid, device) })?;
        let capabilities = read_capabilities(driver, device)?;
        let unusable = too_old(&capabilities);
        let uuid = uuid_text(uuid, is_partition(&capabilities.name));
        Ok(VisibleGpu { uuid, name: capabilities.name, unusable })
    };
    (0..count).map(seen).collect()
}

/// Whether a GPU of this name is a MIG partition: the driver appends `MIG 1g.10gb` to the board's name (NVIDIA's
/// Multi-Instance GPU user guide). A process sees at most one partition.
pub fn is_partition(name: &str) -> bool {
    name.contains(" MIG ")
}

fn uuid_text(bytes: [u8; 16], partition: bool) -> String {
    let mut text = String::from(if partition { "MIG" } else { "GPU" });
    for (at, byte) in bytes.iter().enumerate() {
        // Groups of 8, 4, 4, 4 and 12 digits.
        if [0, 4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// Opens the visible GPU with this index (`CUDA_VISIBLE_DEVICES` selects them).
pub(super) fn open(
    ordinal: u32,
    ownership: DeviceOwnership,
    launches: &Arc<Launches>,
) -> Result<Cuda, DeviceError> {
    let (driver, count) = counted()?;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    if number >= count {
        let last = count - 1;
        let reason = format!("there is no GPU {ordinal}, the NVIDIA driver sees 0 to {last}");
        return Err(DeviceError::unavailable(reason));
    }
    let mut device = 0;
    driver.check("cuDeviceGet", unsafe { (driver.device_get)(&raw mut device, number) })?;
    let capabilities = read_capabilities(driver, device)?;
    if let Some(reason) = too_old(&capabilities) {
        return Err(DeviceError::unavailable(reason));
    }
    let mut raw = std::ptr::null_mut();
    let code = unsafe { (driver.context_retain)(&raw mut raw, device) };
    if let Some(why) = taken(code) {
        let reason = format!("the GPU ({}) is taken: {why}", capabilities.name);
        return Err(DeviceError::unavailable(reason));
    }
    driver.check("cuDevicePrimaryCtxRetain", code)?;
    let context = Arc::new(Context {
        driver,
        device,
        ownership,
        raw,
        lost: OnceLock::new(),
        since_good: Mutex::default(),
        pool: Mutex::default(),
        modules: Modules::default(),
        launches: Arc::clone(launches),
    });
    let stream = Stream::new(&context)?;
    Ok(Cuda { context, stream, capabilities: Arc::new(capabilities) })
}

/// Why a context cannot be created on a GPU that another program uses; `firstlight ps` shows the program.
fn taken(code: c_int) -> Option<&'static str> {
    match code {
        DEVICE_UNAVAILABLE => Some(
            "its compute mode lets one program use it at a time, and another one does (`firstlight ps` shows them)",
        ),
        OUT_OF_MEMORY => Some(
            "other programs have its memory, and none is left for this one (`firstlight ps` shows them)",
        ),
        _ => None,
    }
}

fn read_capabilities(driver: &Driver, device: c_int) -> Result<CudaCapabilities, DeviceError> {
    let attribute = |number| {
        let mut value = 0;
        // SAFETY: the pointer is to a local that outlives the call, here and below.
        let code = unsafe { (driver.device_attribute)(&raw mut value, number, device) };
        driver.check("cuDeviceGetAttribute", code).map(|()| value.unsigned_abs())
    };
    let mut name = [0 as c_char; 256];
    driver.check("cuDeviceGetName", unsafe {
        (driver.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, device)
    })?;
    let mut memory = 0;
    driver.check("cuDeviceTotalMem", unsafe { (driver.device_memory)(&raw mut memory, device) })?;
    Ok(CudaCapabilities {
        // SAFETY: the last byte stayed zero, so the text ends.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
        compute: ComputeCapability::new(attribute(COMPUTE_MAJOR)?, attribute(COMPUTE_MINOR)?),
        multiprocessors: attribute(MULTIPROCESSORS)?,
        shared_bytes: attribute(SHARED_BYTES_OPT_IN)?,
        l2_bytes: attribute(L2_BYTES)?,
        memory_bytes: memory as u64,
        driver: driver.interface(),
    })
}

impl Cuda {
    /// The GPU of a device opened by [`super::open`]; none for a device of another backend.
    pub fn of(device: &Device) -> Option<&Self> {
        device.extension()
    }

    /// Its capabilities.
    pub fn capabilities(&self) -> &CudaCapabilities {
        &self.capabilities
    }

    /// The default stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Another stream of the same GPU.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn new_stream(&self) -> Result<Stream, DeviceError> {
        Stream::new(&self.context)
    }

    /// Free bytes of GPU memory, from the driver; 0 if the query fails.
    pub fn free_bytes(&self) -> u64 {
        self.context.enter().map_or(0, |_entered| self.context.free_and_total().0)
    }

    /// Bytes of GPU memory in use, cached, and the maximum in use at once.
    pub fn memory_use(&self) -> MemoryUse {
        self.context.pool().usage()
    }

    /// A stream of another library, by its driver handle; 0 is the legacy default stream.
    ///
    /// # Safety
    /// The stream belongs to this GPU, and is not destroyed before the work enqueued here.
    pub unsafe fn borrow_stream(&self, handle: usize) -> Stream {
        Stream::borrowed(&self.context, std::ptr::with_exposed_provenance_mut(handle))
    }

    /// Memory of this GPU that belongs to another library.
    ///
    /// # Safety
    /// The address has this many bytes, which stay allocated until the work that uses them has run.
    pub unsafe fn borrow_buffer(&self, address: u64, bytes: usize) -> Buffer {
        memory::borrowed(&self.stream, address, bytes)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// The driver's context and its resources. Streams, buffers and kernels hold a reference.
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    device: c_int,
    ownership: DeviceOwnership,
    raw: Handle,
    lost: OnceLock<DeviceError>,
    /// Kernels launched since the last successful synchronisation: the suspects if the context is lost.
    since_good: Mutex<Vec<String>>,
    pool: Mutex<Pool>,
    pub(super) modules: Modules,
    pub(super) launches: Arc<Launches>,
}

// SAFETY: the driver's handles may be used from every thread; `enter` makes the context current on the calling one.
unsafe impl Send for Context {}
// SAFETY: as above; mutable state is locked.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context(GPU {}, lost: {})", self.device, self.lost.get().is_some())
    }
}

impl Context {
    /// Makes this context current on the calling thread until the guard is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] after an error inside a kernel.
    pub(super) fn enter(&self) -> Result<ContextGuard, DeviceError> {
        if let Some(lost) = self.lost.get() {
            return Err(lost.clone());
        }
        ContextGuard::new(self.driver, self.raw).or_else(|code| {
            self.check("cuCtxSetCurrent", code)?;
            Err(DeviceError::refused("the driver's context cannot be entered"))
        })
    }

    /// An error code as a value; records an error that ends the context.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), DeviceError> {
        let checked = self.driver.check(call, code);
        if let Err(DeviceError::Call { call, code, name, what }) = &checked
            && is_sticky(*code)
        {
            let suspects = self.suspects();
            let kernels = if suspects.is_empty() { "none".to_owned() } else { suspects.join(", ") };
            let (name, what) = (name.clone(), what.clone());
            let lost = DeviceError::Lost { call, name, what, kernels };
            return Err(self.lost.get_or_init(|| lost).clone());
        }
        checked
    }

    /// The driver's ordinal of the GPU, and the context handle.
    pub(super) fn handles(&self) -> (c_int, Handle) {
        (self.device, self.raw)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    pub(super) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn suspects(&self) -> MutexGuard<'_, Vec<String>> {
        self.since_good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a launch as a suspect until the next synchronisation.
    pub(super) fn suspect(&self, kernel: &str) {
        let mut suspects = self.suspects();
        // A long run of launches names each kernel once.
        if !suspects.iter().any(|known| known == kernel) {
            suspects.push(kernel.to_owned());
        }
    }

    /// A synchronisation succeeded: all earlier launches were good.
    pub(super) fn is_good(&self) {
        self.suspects().clear();
    }

    /// Free and total bytes of the GPU.
    pub(super) fn free_and_total(&self) -> (u64, u64) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals; a failure leaves them 0, which the message then shows.
        unsafe { (self.driver.memory_info)(&raw mut free, &raw mut total) };
        (free as u64, total as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(driver) = self.enter() {
            self.pool().release_all(&driver);
            self.modules.unload(&driver);
        }
        if self.ownership == DeviceOwnership::Borrowed {
            return;
        }
        // A lost context has nothing to free, and the driver opens no other one in the same process. SAFETY: retained
        // once in `open`, released once here.
        unsafe { (self.driver.context_release)(self.device) };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_is_written_as_nvidia_smi_has_it() {
        let bytes = std::array::from_fn(|at| at as u8 * 17);
        for (partition, kind) in [(false, "GPU"), (true, "MIG")] {
            let text = super::uuid_text(bytes, partition);
            assert_eq!(text, format!("{kind}-00112233-4455-6677-8899-aabbccddeeff"));
        }
        assert!(super::is_partition("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
        assert!(!super::is_partition("NVIDIA H100 80GB HBM3"));
    }
}
