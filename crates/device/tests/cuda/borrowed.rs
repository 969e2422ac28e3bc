//! GPUs, streams and memory that belong to another library of the same process, with a fake driver.

use super::machine;
use device::cuda::{Bundle, Cuda, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use device::{Device, DeviceOwnership};
use libloading::{Library, Symbol};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Driver calls of another library.
struct ForeignLibrary(Library);

impl ForeignLibrary {
    fn find() -> Self {
        // SAFETY: the fake driver has no initialisers.
        Self(unsafe { Library::new("libcuda.so.1") }.unwrap())
    }

    /// A call that takes or returns a handle.
    fn handle(&self, function: &str, mut handle: *mut c_void, returns: bool) -> *mut c_void {
        let given = (&raw mut handle).cast();
        // SAFETY: each of these functions takes one pointer.
        let code = unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> i32> =
                self.0.get(function.as_bytes()).unwrap();
            function(if returns { given } else { handle })
        };
        assert_eq!(code, 0, "{function}");
        handle
    }

    fn current(&self) -> *mut c_void {
        self.handle("cuCtxGetCurrent", null_mut(), true)
    }

    fn context_of(&self, gpu: i32) -> *mut c_void {
        let mut context = null_mut();
        // SAFETY: the type is the one that cuda.h declares.
        unsafe {
            let retain: Symbol<'_, unsafe extern "C" fn(*mut *mut c_void, i32) -> i32> =
                self.0.get(b"cuDevicePrimaryCtxRetain").unwrap();
            retain(&raw mut context, gpu);
        }
        context
    }
}

device::arguments! { Borrowed: borrowed { x: Pointer, count: i32 } }

fn driver_log() -> String {
    std::fs::read_to_string(std::env::var_os("FAKE_CUDA_ARGUMENTS").unwrap()).unwrap_or_default()
}

/// Launches a kernel on a stream, or on the device's own.
fn launch(device: &Device, stream: Option<usize>) -> Result<(), DeviceError> {
    let cuda = Cuda::of(device).unwrap();
    let arch = GpuArch::of(cuda.capabilities().compute);
    let source = KernelSource::new(
        "borrowed",
        &[SourcePart::Text(r#"extern "C" __global__ void borrowed(float* x, int count) {}"#)],
        arch,
    );
    let kernel = cuda.kernel(&source, &Bundle::new(&[]))?;
    // SAFETY: the fake driver does not read it.
    let borrowed = unsafe { cuda.borrow_buffer(0x1234_5600, 64) };
    assert_eq!((borrowed.address(), borrowed.bytes()), (0x1234_5600, 64));
    let stream = match stream {
        // SAFETY: the handle is that of a stream, or of the legacy one.
        Some(handle) => unsafe { cuda.borrow_stream(handle) },
        None => cuda.stream().clone(),
    };
    let args = Borrowed { x: &borrowed, count: 0 }.into();
    // SAFETY: the fake driver runs nothing.
    unsafe { stream.launch("test.borrowed", &kernel, &Launch::new([1; 3], 32, 0), &args) }
}

/// A single test, because each starts processes and builds the fake driver.
#[test]
fn borrowed_memory_is_not_freed() {
    machine::launched("borrowed::borrowed_memory_is_not_freed", || {
        let other = ForeignLibrary::find();
        let borrow = |ordinal| device::cuda::open(ordinal, DeviceOwnership::Borrowed);
        let (first, second) = (&borrow(0).unwrap(), &borrow(1).unwrap());
        let absent = borrow(2).unwrap_err().to_string();
        assert!(absent.ends_with("there is no GPU 2, the NVIDIA driver sees 0 to 1"), "{absent}");

        // A thread without a context gets one; a thread with another GPU's context keeps it.
        let contexts = [other.context_of(0), other.context_of(1)];
        let fresh = || {
            launch(first, None).unwrap();
            assert_eq!(ForeignLibrary::find().current(), ForeignLibrary::find().context_of(0));
            launch(second, None).unwrap();
            assert_eq!(ForeignLibrary::find().current(), ForeignLibrary::find().context_of(0));
        };
        std::thread::scope(|scope| scope.spawn(fresh).join().unwrap());
        other.handle("cuCtxSetCurrent", contexts[1], false);
        for _ in 0..20 {
            launch(first, None).unwrap();
            assert_eq!(other.current(), contexts[1]);
        }

        // Its streams: the legacy one, and one that it created, which still exists afterwards.
        let foreign = other.handle("cuStreamCreate", null_mut(), true);
        launch(second, Some(0)).unwrap();
        launch(second, Some(foreign.expose_provenance())).unwrap();
        let refused = launch(first, Some(foreign.expose_provenance())).unwrap_err();
        assert!(refused.to_string().contains("INVALID_HANDLE"), "{refused}");
        assert!(!driver_log().contains("destroyed a stream"), "{}", driver_log());

        // Borrowed memory does not come from the pool, and is not returned to it.
        let cuda = Cuda::of(second).unwrap();
        assert_eq!(cuda.memory_use(), device::cuda::MemoryUse::default());
        // SAFETY: it is never read.
        let part = unsafe { cuda.borrow_buffer(4096, 100) }.part(60, 40).unwrap();
        assert_eq!(part.address(), 4156);
        let own = cuda.stream().allocate(100).unwrap();
        assert_ne!(own.address(), 4096);
        drop((own, part));
        assert_eq!(cuda.memory_use().live, 0);

        // A device opened here is separate, and closing it does not affect the borrowed one.
        let owned = device::cuda::open(0, DeviceOwnership::Owned).unwrap();
        launch(&owned, None).unwrap();
        drop(owned);
        launch(first, None).unwrap();
        assert_eq!(driver_log().matches("released GPU 0").count(), 1, "{}", driver_log());
        assert_eq!(first.launches().of("test.borrowed").count, 22);
        assert_eq!(second.launches().of("test.borrowed").count, 3);
    });
}
