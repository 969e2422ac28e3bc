//! Errors of a GPU, after which it stays usable. On a machine without a GPU the same file checks that the absence is
//! reported; a machine with one runs every step below.
#![allow(unsafe_code)] // Launches of kernels with arguments of this file.
#![allow(clippy::unwrap_used)] // A test.

use device::cuda::{
    Buffer, Bundle, Cuda, DeviceError, GpuArch, Kernel, KernelSource, Launch, SourcePart, Swizzle,
    TiledLayout, TmaElement,
};
use device::{Device, DeviceOwnership};

static BUNDLE: Bundle = Bundle::new(&[]);

const ADD: &str = r#"extern "C" __global__ void add(float* x, float by, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[i] += by;
}"#;

/// Writes through the null pointer it is given.
const WILD: &str = r#"extern "C" __global__ void wild(float* x) { *x = 1.0f; }"#;

device::arguments! { Add: add | add_again { x: Nullable, by: f32, count: i32 } }
device::arguments! { Few: add { x: Nullable, by: f32 } }
device::arguments! { Swapped: add { x: Nullable, count: i64, by: f32 } }
device::arguments! { Wild: wild { x: Nullable } }

#[cfg(target_os = "linux")] // The fake driver is found through the loader's path and built by the C compiler.
#[path = "../../../verify/tests/stand_in/machine.rs"]
mod machine;

#[cfg(target_os = "linux")]
mod borrowed;
#[cfg(target_os = "linux")]
mod swap;
#[cfg(target_os = "linux")]
mod threads;

#[test]
fn a_gpu_reports_errors_and_still_works() {
    let device = match device::cuda::open(0, DeviceOwnership::Owned) {
        Ok(device) => device,
        Err(absent) => {
            let sentence = absent.to_string();
            assert!(sentence.split_whitespace().count() > 3, "{sentence}");
            return;
        }
    };
    let cuda = Cuda::of(&device).unwrap();
    eprintln!("on {}", cuda.capabilities().name);
    memory_that_is_not_there(cuda);
    works(&device, cuda);
    sizes_that_do_not_fit(cuda);
    works(&device, cuda);
    maps_the_copy_engine_cannot_read(cuda);
    works(&device, cuda);
    launches_that_do_not_fit(&device, cuda);
    works(&device, cuda);
    another_device(&device, cuda);
    works(&device, cuda);
    recordings_that_fail(&device, cuda);
    works(&device, cuda);
    // Last: after an error inside a kernel the context is lost for the whole process.
    a_wild_write(&device, cuda);
}

fn kernel(device: &Device, cuda: &Cuda, name: &'static str, text: &'static str) -> Kernel {
    let arch = GpuArch::of(Cuda::of(device).unwrap().capabilities().compute);
    let parts: &'static [SourcePart] = Box::leak(Box::new([SourcePart::Text(text)]));
    cuda.kernel(&KernelSource::new(name, parts, arch), &BUNDLE).unwrap()
}

/// A round trip through a kernel that is counted.
fn works(device: &Device, cuda: &Cuda) {
    let stream = cuda.stream();
    let buffer = stream.upload(&1.5f32.to_ne_bytes().repeat(1000)).unwrap();
    let before = device.launches().of("test.add").count;
    let args = Add { x: Some(&buffer), by: 2.0, count: 1000 }.into();
    // SAFETY: 1000 floats, as passed to the kernel.
    unsafe {
        stream
            .launch(
                "test.add",
                &kernel(device, cuda, "add", ADD),
                &Launch::new([8, 1, 1], 128, 0),
                &args,
            )
            .unwrap();
    }
    let mut bytes = vec![0; 4000];
    stream.read(&buffer, &mut bytes).unwrap();
    assert!(bytes.chunks(4).all(|word| word == 3.5f32.to_ne_bytes()));
    assert_eq!(device.launches().of("test.add").count, before + 1);
}

fn memory_that_is_not_there(cuda: &Cuda) {
    let before = cuda.memory_use();
    let DeviceError::OutOfMemory { asked, free, total, .. } =
        cuda.stream().allocate(1 << 50).unwrap_err()
    else {
        panic!("a petabyte was given, or refused for another reason");
    };
    assert_eq!(asked, 1 << 50);
    assert!(0 < free && free <= total && total < asked, "{free} of {total}");
    assert_eq!(cuda.memory_use().live, before.live, "what was not given is not counted");
    // Cached blocks are freed before memory counts as full.
    let most = free as usize / 8 * 5;
    drop(cuda.stream().allocate(most).unwrap());
    assert!(cuda.memory_use().kept >= most as u64);
    let other = cuda.stream().allocate(most - (64 << 20)).unwrap();
    assert!(cuda.memory_use().high_water >= other.bytes() as u64);
}

fn refused<T: std::fmt::Debug>(result: Result<T, DeviceError>, words: &str) {
    match result.unwrap_err() {
        DeviceError::Refused { what } => assert!(what.contains(words), "{what}"),
        other => panic!("{other}"),
    }
}

fn sizes_that_do_not_fit(cuda: &Cuda) {
    let stream = cuda.stream();
    let buffer = stream.allocate(64).unwrap();
    refused(stream.write(&buffer, &[0; 65]), "65");
    refused(stream.read(&buffer, &mut [0; 65]), "65");
    refused(stream.copy(&buffer, &buffer, 65), "65");
}

fn maps_the_copy_engine_cannot_read(cuda: &Cuda) {
    let buffer = cuda.stream().allocate(1 << 16).unwrap();
    let good = TiledLayout {
        element: TmaElement::Bf16,
        offset: 0,
        sizes: &[64, 100],
        strides: &[128],
        tile: &[64, 64],
        swizzle: Swizzle::Bytes128,
    };
    cuda.tensor_map(&buffer, &good).unwrap();
    refused(cuda.tensor_map(&buffer, &TiledLayout { offset: 8, ..good }), "multiple of 16");
    refused(cuda.tensor_map(&buffer, &TiledLayout { strides: &[120], ..good }), "strides");
    refused(cuda.tensor_map(&buffer, &TiledLayout { sizes: &[64, 1000], ..good }), "covers");
}

fn launch(
    cuda: &Cuda,
    kernel: &Kernel,
    shape: &Launch,
    buffer: &Buffer,
    count: i32,
) -> Result<(), DeviceError> {
    let args = Add { x: Some(buffer), by: 1.0, count }.into();
    // SAFETY: callers give a buffer of at least `count` floats.
    unsafe { cuda.stream().launch("test.refused", kernel, shape, &args) }
}

fn launches_that_do_not_fit(device: &Device, cuda: &Cuda) {
    let add = kernel(device, cuda, "add", ADD);
    let buffer = cuda.stream().allocate(64).unwrap();
    let good = Launch::new([1, 1, 1], 32, 0);
    let few = Few { x: Some(&buffer), by: 1.0 }.into();
    let swapped = Swapped { x: Some(&buffer), count: 1, by: 1.0 }.into();
    let others = Wild { x: Some(&buffer) }.into();
    for (args, words) in [(few, "parameters"), (swapped, "parameters"), (others, "wild")] {
        // SAFETY: refused before the driver sees it.
        refused(unsafe { cuda.stream().launch("test.refused", &add, &good, &args) }, words);
    }
    let odd = Launch::new([3, 1, 1], 32, 0).with_cluster([2, 1, 1]);
    refused(launch(cuda, &add, &odd, &buffer, 0), "cluster");
    for shape in [Launch::new([1, 1, 1], 4096, 0), Launch::new([1, 1, 1], 32, 1 << 20)] {
        let error = launch(cuda, &add, &shape, &buffer, 0).unwrap_err().to_string();
        assert!(error.split_whitespace().count() > 3, "{error}");
    }
    assert_eq!(device.launches().of("test.refused").count, 0, "no refused launch is counted");
}

/// Opening the same GPU again gives a separate context, like a second GPU.
fn another_device(device: &Device, cuda: &Cuda) {
    let second = device::cuda::open(0, DeviceOwnership::Owned).unwrap();
    let foreign = Cuda::of(&second).unwrap().stream().allocate(64).unwrap();
    let add = kernel(device, cuda, "add", ADD);
    refused(launch(cuda, &add, &Launch::new([1, 1, 1], 32, 0), &foreign, 0), "device");
    refused(cuda.stream().write(&foreign, &[0; 4]), "device");
}

fn recordings_that_fail(device: &Device, cuda: &Cuda) {
    let stream = cuda.stream();
    let failed = stream.capture(|_| Err(DeviceError::Refused { what: "planted".to_owned() }));
    refused(failed, "planted");
    // A captured graph counts no launch until it is replayed.
    let buffer = stream.upload(&[0; 400]).unwrap();
    let add = kernel(device, cuda, "add", ADD);
    let args = Add { x: Some(&buffer), by: 1.0, count: 100 }.into();
    let graph = stream
        .capture(|stream| {
            // SAFETY: 100 floats, as passed to the kernel.
            (0..3).try_for_each(|_| unsafe {
                stream.launch("test.recorded", &add, &Launch::new([1, 1, 1], 128, 0), &args)
            })
        })
        .unwrap();
    assert_eq!(device.launches().of("test.recorded").count, 0);
    graph.launch(stream).unwrap();
    graph.launch(stream).unwrap();
    let mut bytes = vec![0; 400];
    stream.read(&buffer, &mut bytes).unwrap();
    assert!(bytes.chunks(4).all(|word| word == 6f32.to_ne_bytes()));
    assert_eq!(device.launches().of("test.recorded").count, 6);
}

fn a_wild_write(device: &Device, cuda: &Cuda) {
    let wild = kernel(device, cuda, "wild", WILD);
    let args = Wild { x: None }.into();
    // SAFETY: it is meant to fail; only this process's context is affected.
    unsafe {
        cuda.stream().launch("test.wild", &wild, &Launch::new([1, 1, 1], 1, 0), &args).unwrap();
    }
    let error = cuda.stream().synchronize().unwrap_err();
    let DeviceError::Lost { kernels, .. } = &error else { panic!("{error}") };
    assert!(kernels.contains("test.wild"), "{kernels}");
    assert_eq!(cuda.stream().allocate(64).unwrap_err(), error, "later calls say the same");
}
