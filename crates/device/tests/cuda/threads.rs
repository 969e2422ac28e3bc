//! Many threads that request the same kernels at once, with a fake driver.

use super::{machine, swap};
use device::cuda::{
    Bundle, Cuda, DeviceError, GpuArch, Kernel, KernelSource, Launch, SourcePart, UPLOAD_BYTES,
};
use device::{Device, DeviceOwnership};
use std::path::PathBuf;
use std::sync::Barrier;

const THREADS: u32 = 16;

const ADD: &str = r#"extern "C" __global__ void add(float* x, float by, int count) {}
extern "C" __global__ void add_again(float* x, float by, int count) {}"#;

/// The results of all threads, which start at the same time.
fn at_once<R: Send>(work: impl Fn(u32) -> R + Sync) -> Vec<R> {
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let start = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(thread)
            })
        };
        let all: Vec<_> = (0..THREADS).map(start).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A source that was not requested before.
fn source(device: &Device, name: &'static str, nth: u32) -> KernelSource {
    let arch = GpuArch::of(Cuda::of(device).unwrap().capabilities().compute);
    let parts: &'static [SourcePart] = Box::leak(Box::new([SourcePart::Text(ADD)]));
    KernelSource::new(name, parts, arch).define("NTH", nth)
}

fn launch(cuda: &Cuda, kernel: &Kernel, shape: &Launch) -> Result<(), DeviceError> {
    let args = super::Add { x: None, by: 1.0, count: 0 }.into();
    // SAFETY: the fake driver runs nothing.
    unsafe { cuda.stream().launch("test.shared", kernel, shape, &args) }
}

/// A single test, because each starts processes and builds the fake driver.
#[test]
fn share_kernels() {
    machine::launched("threads::share_kernels", || {
        let device = device::cuda::open(0, DeviceOwnership::Owned).unwrap();
        let cuda = Cuda::of(&device).unwrap();
        limits_are_never_lowered(&device, cuda);
        a_large_cluster_needs_no_shared_memory(&device, cuda);
        a_module_is_loaded_once_without_a_cache(&device, cuda);
        uploads_arrive_whole(cuda);
        the_first_failed_upload_is_reported(cuda);
        swap::comes_back(cuda);
        swap::is_pinned_once(cuda);
    });
}

#[test]
fn large_uploads_arrive_in_real_memory() {
    machine::launched("threads::large_uploads_arrive_in_real_memory", || {
        let device = device::cuda::open(0, DeviceOwnership::Owned).unwrap();
        let cuda = Cuda::of(&device).unwrap();
        // Below the size that several threads copy, that size, and above it with half a part at the end.
        for len in [5, 64 << 20, (64 << 20) + UPLOAD_BYTES / 2] {
            let sent: Vec<u8> = (0..len).map(|at| (at * 7 + 131) as u8).collect();
            let mut found = vec![0; len];
            cuda.stream().read(&cuda.upload(&sent).unwrap(), &mut found).unwrap();
            assert!(found == sent, "{len}");
        }
    });
}

fn uploads_arrive_whole(cuda: &Cuda) {
    // More uploads than slots, of many lengths; two of them in parts of one buffer.
    let bytes = |nth: usize, len: usize| (0..len).map(move |at| (at * 7 + nth * 131) as u8);
    let whole: Vec<_> = (0..300)
        .map(|nth| {
            let len = if nth % 50 == 0 { UPLOAD_BYTES } else { nth * 37 % 5000 };
            cuda.stream().allocate(2 * len).unwrap()
        })
        .collect();
    let given = cuda.uploading(|uploads| {
        for (nth, to) in whole.iter().enumerate() {
            let len = to.bytes() / 2;
            for half in [0, 1] {
                let part = to.part(half * len, len)?;
                uploads.submit(part, move |into| {
                    into.iter_mut()
                        .zip(bytes(2 * nth + half, len))
                        .for_each(|(to, byte)| *to = byte);
                    Ok(())
                })?;
            }
        }
        Ok::<_, DeviceError>(whole.len())
    });
    assert_eq!(given.unwrap(), 300);
    for (nth, buffer) in whole.iter().enumerate() {
        let len = buffer.bytes() / 2;
        let mut found = vec![0; 2 * len];
        cuda.stream().read(buffer, &mut found).unwrap();
        assert!(bytes(2 * nth, len).chain(bytes(2 * nth + 1, len)).eq(found), "{nth}");
    }
}

fn the_first_failed_upload_is_reported(cuda: &Cuda) {
    let refused = |what: &str| DeviceError::Refused { what: what.to_owned() };
    let failed = cuda.uploading(|uploads| {
        for nth in 0..40 {
            let to = cuda.stream().allocate(8)?;
            uploads.submit(to, move |_| match nth {
                3 => {
                    // Later ones have failed by then.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    Err(refused("3"))
                }
                0..10 => Ok(()),
                _ => Err(refused("a later one")),
            })?;
        }
        Ok(())
    });
    assert_eq!(failed.unwrap_err(), refused("3"));
    let failed = cuda.uploading(|_| Err::<(), _>(refused("the giver")));
    assert_eq!(failed.unwrap_err(), refused("the giver"));
    let failed = cuda.uploading(|uploads| {
        uploads.submit(cuda.stream().allocate(UPLOAD_BYTES + 1)?, |_| Ok::<_, DeviceError>(()))
    });
    assert!(failed.unwrap_err().to_string().contains("at the most"));
}

fn limits_are_never_lowered(device: &Device, cuda: &Cuda) {
    for nth in 0..8 {
        let launched = at_once(|thread| {
            let kernel = cuda.kernel(&source(device, "add", nth), &Bundle::new(&[]))?;
            // From the default limit to nearly the maximum of a block.
            let bytes = (48 + thread * 7) << 10;
            (0..4).try_for_each(|_| launch(cuda, &kernel, &Launch::new([1; 3], 32, bytes)))
        });
        let refused: Vec<_> = launched.into_iter().filter_map(Result::err).collect();
        assert!(refused.is_empty(), "{} of {THREADS}: {}", refused.len(), refused[0]);
    }
}

fn a_large_cluster_needs_no_shared_memory(device: &Device, cuda: &Cuda) {
    let kernel = cuda.kernel(&source(device, "add", 100), &Bundle::new(&[])).unwrap();
    let shape = Launch::new([16, 1, 1], 32, 0).with_cluster([16, 1, 1]);
    launch(cuda, &kernel, &shape).unwrap();
}

fn a_module_is_loaded_once_without_a_cache(device: &Device, cuda: &Cuda) {
    let folder = PathBuf::from(std::env::var_os("FIRSTLIGHT_CACHE").unwrap()).join("kernels");
    let arch = GpuArch::of(Cuda::of(device).unwrap().capabilities().compute);
    std::fs::remove_dir_all(&folder).unwrap();
    // A file instead of the cache's folder: no kernel can be stored.
    std::fs::write(folder, "").unwrap();
    at_once(|thread| {
        // Two functions of one module.
        let name = if thread % 2 == 0 { "add" } else { "add_again" };
        let kernel = cuda.kernel(&source(device, name, 200), &Bundle::new(&[])).unwrap();
        assert_eq!(kernel.name(), name);
        launch(cuda, &kernel, &Launch::new([1; 3], 32, 0)).unwrap();
    });
    let said = std::fs::read_to_string(std::env::var_os("FAKE_CUDA_LAUNCHES").unwrap()).unwrap();
    let compiled = |line: &&str| {
        line.starts_with("compiled ") && line.contains(arch.as_str()) && line.ends_with("-DNTH=200")
    };
    assert_eq!(said.lines().filter(compiled).count(), 1, "{said}");
}
