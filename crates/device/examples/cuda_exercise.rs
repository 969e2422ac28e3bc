//! Exercises the CUDA device layer on a GPU: memory, errors, launches, events, graphs, TMA, clusters, and a lost
//! context. Prints one line per exercise; exits 1 if one failed, 2 without a GPU.
#![allow(unsafe_code)] // Launches of kernels.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a command.

use device::cuda::open;
use device::cuda::{
    Bundle, Cuda, DeviceError, GpuArch, Kernel, KernelSource, Launch, SourcePart, Swizzle,
    TiledLayout, TmaElement,
};
use device::{Device, DeviceOwnership};

use std::process::ExitCode;
use std::time::Instant;

type Outcome = Result<String, String>;
type Exercise = (&'static str, fn(&Device, &Cuda) -> Outcome);

// Arguments of the kernels in `cuda_exercise.cu`, which are all named `exercise`.
device::arguments! { Axpy: exercise { x: Nullable, y: Nullable, a: f32, n: i32 } }
device::arguments! { TooFew: exercise { n: i32, none: Nullable } }
device::arguments! { CopyTile: exercise { map: Map, out: Pointer, x: i32, y: i32 } }
device::arguments! { WriteOut: exercise { out: Pointer } }

/// The exercises in order: the last one loses the context.
const EXERCISES: &[Exercise] = &[
    ("an upload reads back unchanged", round_trip),
    ("pinned memory is copied to the GPU", pinned),
    ("a freed block is reused, and memory use is counted", reuse),
    ("out of memory is a typed error, and the device still works", out_of_memory),
    ("a kernel runs and is counted", launch),
    ("wrong arguments are refused", wrong_arguments),
    ("a launch of no blocks is counted as such", empty),
    ("events time a copy", events),
    ("a graph replays launches and counts them", graph),
    ("TMA reads a tile and pads with zeros", tma_tile),
    ("a misaligned tensor map is refused", misaligned),
    ("a cluster reads its neighbour's shared memory", cluster),
    ("buffers of two devices in one launch are refused", mixed_devices),
    ("an out-of-bounds store loses the context and names the kernel", lost),
];

fn main() -> ExitCode {
    let start = Instant::now();
    let device = match open(0, DeviceOwnership::Owned) {
        Ok(device) => device,
        Err(unavailable) => {
            eprintln!("error: {unavailable}");
            return ExitCode::from(2);
        }
    };
    let Some(cuda) = Cuda::of(&device) else { return ExitCode::from(2) };
    println!("{:?}", cuda.capabilities());
    println!("opened in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let first = launch(&device, cuda);
    let millis = start.elapsed().as_secs_f64() * 1e3;
    println!("first kernel done {millis:.1} ms after the start: {first:?}");
    let mut failed = 0;
    for (name, exercise) in EXERCISES {
        let start = Instant::now();
        let done = exercise(&device, cuda);
        let millis = start.elapsed().as_secs_f64() * 1e3;
        match done {
            Ok(detail) => println!("PASS {name} ({millis:.2} ms): {detail}"),
            Err(reason) => {
                failed += 1;
                println!("FAIL {name} ({millis:.2} ms): {reason}");
            }
        }
    }
    drop(device);
    match open(0, DeviceOwnership::Owned) {
        Ok(_) => println!("after the loss the GPU opens again in this process"),
        Err(unavailable) => println!("after the loss: {unavailable}"),
    }
    println!("{} of {} passed", EXERCISES.len() - failed, EXERCISES.len());
    ExitCode::from(u8::from(failed > 0))
}

fn to_text(error: DeviceError) -> String {
    error.to_string()
}

fn expect(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}

fn kernel(_: &Device, cuda: &Cuda, kind: u32) -> Result<Kernel, String> {
    let compute = cuda.capabilities().compute;
    let source = KernelSource::new(
        "exercise",
        &[SourcePart::Text(include_str!("cuda_exercise.cu"))],
        GpuArch::of(compute),
    )
    .define("KIND", kind);
    cuda.kernel(&source, &Bundle::new(&[])).map_err(to_text)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let four = |four: &[u8]| f32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
    bytes.chunks_exact(4).map(four).collect()
}

fn round_trip(_: &Device, cuda: &Cuda) -> Outcome {
    let sent: Vec<u8> =
        (0..1_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let buffer = cuda.stream().upload(&sent).map_err(to_text)?;
    let copy = cuda.stream().allocate(sent.len()).map_err(to_text)?;
    cuda.stream().copy(&buffer, &copy, sent.len()).map_err(to_text)?;
    let mut back = vec![0; sent.len()];
    cuda.stream().read(&copy, &mut back).map_err(to_text)?;
    expect(back == sent, || "the bytes that were read back differ".to_owned())?;
    cuda.stream().fill16(&copy, 0x7fc0).map_err(to_text)?;
    cuda.stream().read(&copy, &mut back).map_err(to_text)?;
    let filled = back[..1_000_002].chunks(2).all(|two| two == [0xc0, 0x7f]);
    expect(filled, || "not filled".to_owned())?;
    let long = cuda.stream().read(&copy, &mut vec![0; sent.len() + 1]);
    expect(long.is_err(), || "a read past the end was allowed".to_owned())?;
    Ok(format!("{} bytes", sent.len()))
}

fn pinned(_: &Device, cuda: &Cuda) -> Outcome {
    const BYTES: usize = 256 << 20;
    let mut host = cuda.pinned(BYTES).map_err(to_text)?;
    host.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    let buffer = cuda.stream().allocate(BYTES).map_err(to_text)?;
    let begin = cuda.stream().record().map_err(to_text)?;
    // SAFETY: the stream is synchronised before `host` is used again.
    unsafe { cuda.stream().write_pinned(&buffer, &host).map_err(to_text)? };
    let end = cuda.stream().record().map_err(to_text)?;
    let millis = begin.millis_until(&end).map_err(to_text)?;
    host.fill(0);
    cuda.stream().read(&buffer, &mut host).map_err(to_text)?;
    let same = host.iter().enumerate().all(|(i, byte)| *byte == i as u8);
    expect(same, || "the bytes that were read back differ".to_owned())?;
    Ok(format!("{:.1} GB/s to the GPU", BYTES as f64 / millis / 1e6))
}

fn reuse(_: &Device, cuda: &Cuda) -> Outcome {
    let before = cuda.memory_use();
    let first = cuda.stream().allocate(1 << 30).map_err(to_text)?.address();
    let start = Instant::now();
    let second = cuda.stream().allocate((1 << 30) - 5).map_err(to_text)?;
    let micros = start.elapsed().as_secs_f64() * 1e6;
    expect(first == second.address(), || "the block was not reused".to_owned())?;
    let during = cuda.memory_use();
    drop(second);
    let after = cuda.memory_use();
    let right = during.live >= 1 << 30 && after.live == before.live && after.high_water >= 1 << 30;
    expect(right, || format!("{before:?} {during:?} {after:?}"))?;
    Ok(format!("reuse takes {micros:.1} us, {after:?}"))
}

fn out_of_memory(_: &Device, cuda: &Cuda) -> Outcome {
    match cuda.stream().allocate(1 << 40) {
        Err(error @ DeviceError::OutOfMemory { asked, free, total, .. }) => {
            expect(asked == 1 << 40 && free > 0 && free <= total, || error.to_string())?;
            cuda.stream().allocate(1 << 20).map_err(to_text)?;
            Ok(error.to_string())
        }
        other => Err(format!("{other:?}")),
    }
}

fn launch(device: &Device, cuda: &Cuda) -> Outcome {
    const N: usize = 100_001;
    let kernel = kernel(device, cuda, 0)?;
    let x: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let (x_device, y_device) = (
        cuda.stream().upload(&bytes(&x)).map_err(to_text)?,
        cuda.stream().upload(&bytes(&vec![1.0; N])).map_err(to_text)?,
    );
    let args = Axpy { x: Some(&x_device), y: Some(&y_device), a: 2.0, n: N as i32 }.into();
    let before = device.launches().of("exercise.axpy");
    let shape = Launch::new([(N as u32).div_ceil(256), 1, 1], 256, 0);
    // SAFETY: the arguments are the kernel's, over buffers of N floats.
    unsafe { cuda.stream().launch("exercise.axpy", &kernel, &shape, &args).map_err(to_text)? };
    let mut y = vec![0; 4 * N];
    cuda.stream().read(&y_device, &mut y).map_err(to_text)?;
    let right = floats(&y).iter().enumerate().all(|(i, y)| *y == 2.0 * i as f32 + 1.0);
    expect(right, || "wrong results".to_owned())?;
    let after = device.launches().of("exercise.axpy");
    let counted = after.count == before.count + 1 && after.grid == [391, 1, 1];
    expect(counted, || format!("{after:?}"))?;
    Ok(format!("from {}, {:?}, {after:?}", kernel.origin(), kernel.resources()))
}

fn wrong_arguments(device: &Device, cuda: &Cuda) -> Outcome {
    let kernel = kernel(device, cuda, 0)?;
    let shape = Launch::new([1, 1, 1], 256, 0);
    let few = TooFew { n: 1, none: None }.into();
    // SAFETY: refused before it runs.
    let few = unsafe { cuda.stream().launch("exercise.bad", &kernel, &shape, &few) };
    let Err(few) = few else { return Err("too few arguments were accepted".to_owned()) };
    let buffer = cuda.stream().allocate(4).map_err(to_text)?;
    let args = Axpy { x: Some(&buffer), y: Some(&buffer), a: 2.0, n: 0 }.into();
    let large = Launch::new([1, 1, 1], 2048, 0);
    // SAFETY: refused by the driver.
    let large = unsafe { cuda.stream().launch("exercise.bad", &kernel, &large, &args) };
    let Err(large) = large else { return Err("2048 threads were accepted".to_owned()) };
    let shared = Launch::new([1, 1, 1], 256, 1 << 20);
    // SAFETY: refused by the driver.
    let shared = unsafe { cuda.stream().launch("exercise.bad", &kernel, &shared, &args) };
    let Err(shared) = shared else { return Err("a megabyte was accepted".to_owned()) };
    let counted = device.launches().of("exercise.bad").count;
    expect(counted == 0, || "a refused launch was counted".to_owned())?;
    Ok(format!("{few} | {large} | {shared}"))
}

fn empty(device: &Device, cuda: &Cuda) -> Outcome {
    let kernel = kernel(device, cuda, 0)?;
    let args = Axpy { x: None, y: None, a: 2.0, n: 0 }.into();
    // SAFETY: nothing runs.
    unsafe {
        let shape = Launch::new([0, 1, 1], 256, 0);
        cuda.stream().launch("exercise.empty", &kernel, &shape, &args).map_err(to_text)?;
    }
    let record = device.launches().of("exercise.empty");
    expect(record.count == 1 && record.blocks == 0, || format!("{record:?}"))?;
    Ok(format!("{record:?}"))
}

fn events(_: &Device, cuda: &Cuda) -> Outcome {
    const BYTES: usize = 8 << 30;
    let stream = cuda.stream();
    let from = stream.allocate(BYTES).map_err(to_text)?;
    let to = stream.allocate(BYTES).map_err(to_text)?;
    stream.fill32(&from, 0x3f81_3f81).map_err(to_text)?;
    stream.copy(&from, &to, BYTES).map_err(to_text)?;
    let begin = stream.record().map_err(to_text)?;
    for _ in 0..5 {
        stream.copy(&from, &to, BYTES).map_err(to_text)?;
    }
    let end = stream.record().map_err(to_text)?;
    let millis = begin.millis_until(&end).map_err(to_text)?;
    Ok(format!("copy {:.0} GB/s read and written", 5.0 * 2.0 * BYTES as f64 / millis / 1e6))
}

fn graph(device: &Device, cuda: &Cuda) -> Outcome {
    const N: usize = 1024;
    let (kernel, stream) = (kernel(device, cuda, 0)?, cuda.stream());
    let x = stream.upload(&bytes(&vec![1.0; N])).map_err(to_text)?;
    let y = stream.upload(&bytes(&vec![0.0; N])).map_err(to_text)?;
    let args = Axpy { x: Some(&x), y: Some(&y), a: 1.0, n: N as i32 }.into();
    let shape = Launch::new([4, 1, 1], 256, 0);
    let graph = stream
        .capture(|stream| {
            for _ in 0..100 {
                // SAFETY: the arguments are the kernel's, over buffers of N floats that outlive the graph.
                unsafe { stream.launch("exercise.graph", &kernel, &shape, &args)? };
            }
            Ok(())
        })
        .map_err(to_text)?;
    let counted = device.launches().of("exercise.graph").count;
    expect(counted == 0, || format!("{counted} launches counted by the capture"))?;
    graph.launch(stream).map_err(to_text)?;
    let begin = stream.record().map_err(to_text)?;
    graph.launch(stream).map_err(to_text)?;
    let end = stream.record().map_err(to_text)?;
    let millis = begin.millis_until(&end).map_err(to_text)?;
    let mut out = vec![0; 4 * N];
    stream.read(&y, &mut out).map_err(to_text)?;
    expect(floats(&out).iter().all(|y| *y == 200.0), || format!("{:?}", floats(&out)[0]))?;
    let counted = device.launches().of("exercise.graph").count;
    expect(counted == 200, || format!("{counted} launches counted"))?;
    let failed = stream.capture(|_| Err(DeviceError::Refused { what: "stop".to_owned() }));
    expect(failed.is_err(), || "a failed capture gave a graph".to_owned())?;
    stream.synchronize().map_err(to_text)?;
    Ok(format!("100 launches replay in {:.1} us", millis * 1e3))
}

fn tma_tile(device: &Device, cuda: &Cuda) -> Outcome {
    const ROWS: usize = 100;
    const COLUMNS: usize = 96;
    let (kernel, stream) = (kernel(device, cuda, 1)?, cuda.stream());
    let values: Vec<u16> = (0..ROWS * COLUMNS).map(|i| i as u16 + 1).collect();
    let sent: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let buffer = stream.upload(&sent).map_err(to_text)?;
    let layout = TiledLayout {
        element: TmaElement::Bf16,
        offset: 0,
        sizes: &[COLUMNS as u64, ROWS as u64],
        strides: &[2 * COLUMNS as u64],
        tile: &[64, 64],
        swizzle: Swizzle::Bytes128,
    };
    let map = cuda.tensor_map(&buffer, &layout).map_err(to_text)?;
    let out = stream.allocate(64 * 64 * 2).map_err(to_text)?;
    let (x, y) = (64, 64);
    let args = CopyTile { map: (&map).into(), out: &out, x, y }.into();
    let shape = Launch::new([1, 1, 1], 128, 64 * 128 + 1024 + 8);
    // SAFETY: the arguments are the kernel's, over a buffer of one tile.
    unsafe { stream.launch("exercise.tile", &kernel, &shape, &args).map_err(to_text)? };
    let mut got = vec![0; 64 * 64 * 2];
    stream.read(&out, &mut got).map_err(to_text)?;
    for (i, two) in got.chunks_exact(2).enumerate() {
        let (row, column) = (i / 64 + y as usize, i % 64 + x as usize);
        let inside = row < ROWS && column < COLUMNS;
        let wanted = if inside { values[row * COLUMNS + column] } else { 0 };
        let got = u16::from_ne_bytes([two[0], two[1]]);
        expect(got == wanted, || format!("({row}, {column}) is {got}, expected {wanted}"))?;
    }
    Ok("a tile over two edges".to_owned())
}

fn misaligned(_: &Device, cuda: &Cuda) -> Outcome {
    let buffer = cuda.stream().allocate(1 << 16).map_err(to_text)?;
    let layout = TiledLayout {
        element: TmaElement::Bf16,
        offset: 2,
        sizes: &[64, 64],
        strides: &[128],
        tile: &[64, 64],
        swizzle: Swizzle::Bytes128,
    };
    match cuda.tensor_map(&buffer, &layout) {
        Err(error) => Ok(error.to_string()),
        Ok(_) => Err("it was accepted".to_owned()),
    }
}

fn cluster(device: &Device, cuda: &Cuda) -> Outcome {
    let (kernel, stream) = (kernel(device, cuda, 2)?, cuda.stream());
    let out = stream.allocate(8 * 4).map_err(to_text)?;
    let shape = Launch::new([8, 1, 1], 32, 0).with_cluster([2, 1, 1]);
    let args = WriteOut { out: &out }.into();
    // SAFETY: the argument is the kernel's, a buffer of one value per block.
    unsafe {
        stream.launch("exercise.cluster", &kernel, &shape, &args).map_err(to_text)?;
    }
    let mut got = [0; 32];
    stream.read(&out, &mut got).map_err(to_text)?;
    let numbers: Vec<u8> = got.chunks_exact(4).map(|four| four[0]).collect();
    expect(numbers == [2, 1, 4, 3, 6, 5, 8, 7], || format!("{numbers:?}"))?;
    let odd = Launch::new([7, 1, 1], 32, 0).with_cluster([2, 1, 1]);
    // SAFETY: refused before it runs.
    let odd = unsafe { stream.launch("exercise.odd", &kernel, &odd, &args) };
    Ok(odd.err().ok_or("seven blocks in clusters of two were accepted")?.to_string())
}

fn mixed_devices(device: &Device, cuda: &Cuda) -> Outcome {
    let other = open(0, DeviceOwnership::Owned).map_err(|error| error.to_string())?;
    let other = Cuda::of(&other).ok_or("no GPU")?;
    let theirs = other.stream().allocate(512).map_err(to_text)?;
    let ours = cuda.stream().allocate(512).map_err(to_text)?;
    let kernel = kernel(device, cuda, 0)?;
    let args = Axpy { x: Some(&ours), y: Some(&theirs), a: 1.0, n: 1 }.into();
    let shape = Launch::new([1, 1, 1], 32, 0);
    // SAFETY: refused before it runs.
    let mixed = unsafe { cuda.stream().launch("exercise.mixed", &kernel, &shape, &args) };
    Ok(mixed.err().ok_or("mixed buffers were accepted")?.to_string())
}

fn lost(device: &Device, cuda: &Cuda) -> Outcome {
    let kernel = kernel(device, cuda, 3)?;
    let out = cuda.stream().allocate(512).map_err(to_text)?;
    cuda.stream().synchronize().map_err(to_text)?;
    // SAFETY: deliberately unsafe; the kernel cannot access host memory.
    unsafe {
        let args = WriteOut { out: &out }.into();
        let shape = Launch::new([1, 1, 1], 1, 0);
        cuda.stream().launch("exercise.out_of_bounds", &kernel, &shape, &args).map_err(to_text)?;
    }
    let error = cuda.stream().synchronize().err().ok_or("the store was not noticed")?;
    let named =
        matches!(&error, DeviceError::Lost { kernels, .. } if kernels == "exercise.out_of_bounds");
    expect(named, || error.to_string())?;
    let again = cuda.stream().allocate(512).err().ok_or("the context still allocates")?;
    expect(again == error, || format!("then {again}"))?;
    Ok(error.to_string())
}
