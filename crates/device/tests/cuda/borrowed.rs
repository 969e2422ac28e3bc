//! GPUs, streams and memory that belong to another library of the same process, on the stand-in for the driver.

use super::machine;
use device::cuda::{Bundle, CudaError, GpuArch, KernelSource, Launch, Part};
use device::{Device, borrow_gpu};
use facts::BackendKind;
use libloading::{Library, Symbol};
use std::ffi::c_void;
use std::ptr::null_mut;

/// What another library does with the driver.
struct Other(Library);

impl Other {
    fn find() -> Self {
        // SAFETY: the stand-in has no initialisers.
        Self(unsafe { Library::new("libcuda.so.1") }.unwrap())
    }

    /// A call that takes or gives a handle.
    fn handle(&self, function: &str, mut handle: *mut c_void, gives: bool) -> *mut c_void {
        let given = (&raw mut handle).cast();
        // SAFETY: each of these functions takes one pointer.
        let code = unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(*mut c_void) -> i32> =
                self.0.get(function.as_bytes()).unwrap();
            function(if gives { given } else { handle })
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

fn said() -> String {
    std::fs::read_to_string(std::env::var_os("FAKE_CUDA_ARGUMENTS").unwrap()).unwrap_or_default()
}

/// Launches a kernel that adds nothing to nothing on a stream, or the device's own.
fn launch(device: &Device, stream: Option<usize>) -> Result<(), CudaError> {
    let cuda = device.cuda().unwrap();
    let arch = GpuArch::of(device.capabilities().cuda.as_ref().unwrap().compute);
    let source = KernelSource::new(
        "borrowed",
        &[Part::Text(r#"extern "C" __global__ void borrowed(float* x, int count) {}"#)],
        arch,
    );
    let kernel = cuda.kernel(&source, &Bundle::new(&[]))?;
    // SAFETY: the stand-in reads nothing of it.
    let lent = unsafe { cuda.borrow_buffer(0x1234_5600, 64) };
    assert_eq!((lent.address(), lent.bytes()), (0x1234_5600, 64));
    let stream = match stream {
        // SAFETY: the handle is that of a stream, or of the legacy one.
        Some(handle) => unsafe { cuda.borrow_stream(handle) },
        None => cuda.stream().clone(),
    };
    let args = Borrowed { x: &lent, count: 0 }.into();
    // SAFETY: the stand-in runs nothing.
    unsafe { stream.launch("test.borrowed", &kernel, &Launch::new([1; 3], 32, 0), &args) }
}

/// One test, for each starts processes and builds the stand-in.
#[test]
fn what_is_borrowed_stays_its_owners() {
    machine::launched("borrowed::what_is_borrowed_stays_its_owners", || {
        let other = Other::find();
        let (first, second) = (borrow_gpu(0).unwrap(), borrow_gpu(1).unwrap());
        assert!(std::ptr::eq(first, borrow_gpu(0).unwrap()));
        let absent = borrow_gpu(2).unwrap_err().to_string();
        assert!(absent.ends_with("there is no GPU 2, the NVIDIA driver sees 0 to 1"), "{absent}");

        // A thread that has no context gets one; a thread that has another GPU's keeps it.
        let contexts = [other.context_of(0), other.context_of(1)];
        let fresh = || {
            launch(first, None).unwrap();
            assert_eq!(Other::find().current(), Other::find().context_of(0));
            launch(second, None).unwrap();
            assert_eq!(Other::find().current(), Other::find().context_of(0));
        };
        std::thread::scope(|scope| scope.spawn(fresh).join().unwrap());
        other.handle("cuCtxSetCurrent", contexts[1], false);
        for _ in 0..20 {
            launch(first, None).unwrap();
            assert_eq!(other.current(), contexts[1]);
        }

        // Its streams: the legacy one, and one of its own, which is there afterwards.
        let theirs = other.handle("cuStreamCreate", null_mut(), true);
        launch(second, Some(0)).unwrap();
        launch(second, Some(theirs.expose_provenance())).unwrap();
        let refused = launch(first, Some(theirs.expose_provenance())).unwrap_err();
        assert!(refused.to_string().contains("INVALID_HANDLE"), "{refused}");
        assert!(!said().contains("destroyed a stream"), "{}", said());

        // Memory that was borrowed comes from no pool, and goes to none.
        let cuda = second.cuda().unwrap();
        assert_eq!(cuda.memory_use(), device::cuda::MemoryUse::default());
        // SAFETY: nothing reads it.
        let part = unsafe { cuda.borrow_buffer(4096, 100) }.part(60, 40).unwrap();
        assert_eq!(part.address(), 4156);
        let own = cuda.stream().allocate(100).unwrap();
        assert_ne!(own.address(), 4096);
        drop((own, part));
        assert_eq!(cuda.memory_use().live, 0);

        // A device of our own is another one, and its end is none of the borrowed one's.
        let owned = device::open(BackendKind::Cuda).unwrap();
        launch(&owned, None).unwrap();
        drop(owned);
        launch(first, None).unwrap();
        assert_eq!(said().matches("released GPU 0").count(), 1, "{}", said());
        assert_eq!(first.launches().of("test.borrowed").count, 22);
        assert_eq!(second.launches().of("test.borrowed").count, 3);
    });
}
