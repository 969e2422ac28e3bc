//! Swaps memory to the host and back, with a fake driver that uses host memory.

use device::cuda::{Buffer, Cuda, DeviceError, SWAP_CHUNK_BYTES, Stream, Swap};
use std::sync::Arc;

/// Parts that fill two chunks and a little of a third one.
const LENGTHS: [usize; 4] = [5, SWAP_CHUNK_BYTES - 3, SWAP_CHUNK_BYTES + 11, 1000];

/// Bytes of each part that identify their position.
fn drawn(seed: usize) -> Vec<Vec<u8>> {
    let of = |length: &usize| (0..*length).map(|at| (at * 7 + at / 251 + seed) as u8).collect();
    LENGTHS.iter().map(of).collect()
}

fn uploaded(stream: &Stream, parts: &[Vec<u8>]) -> Vec<Arc<Buffer>> {
    parts.iter().map(|part| Arc::new(stream.upload(part).unwrap())).collect()
}

fn read(stream: &Stream, parts: &[Arc<Buffer>]) -> Vec<Vec<u8>> {
    let read = |part: &Arc<Buffer>| {
        let mut bytes = vec![0; part.bytes()];
        stream.read(part, &mut bytes).unwrap();
        bytes
    };
    parts.iter().map(read).collect()
}

pub(super) fn comes_back(cuda: &Cuda) {
    let stream = cuda.stream();
    let total: usize = LENGTHS.iter().sum();
    assert_eq!(Swap::bytes_for(total as u64), 3 * SWAP_CHUNK_BYTES as u64);
    let mut swap = cuda.swap(7 * SWAP_CHUNK_BYTES as u64).unwrap();
    // A thread pins one chunk at a time; while the GPU is idle, all of them are pinned at once.
    while swap.pin_more() {}
    while !swap.is_ready_for(7 * SWAP_CHUNK_BYTES as u64).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(!swap.is_ready_for(8 * SWAP_CHUNK_BYTES as u64).unwrap(), "there are seven chunks");
    let (one, other) = (drawn(1), drawn(100));
    let parts = uploaded(stream, &one);
    let first = swap.save(&parts).unwrap().unwrap();
    for (part, bytes) in parts.iter().zip(&other) {
        stream.write(part, bytes).unwrap();
    }
    let second = swap.save(&parts).unwrap().unwrap();
    assert!(swap.save(&parts).unwrap().is_none(), "one chunk is left");
    assert!(!swap.is_ready_for(total as u64).unwrap());
    let elsewhere = uploaded(stream, &drawn(7));
    let arrival = swap.restore(&first, &elsewhere).unwrap();
    assert!(arrival.is_done().unwrap() && swap.bytes_per_second().is_none());
    swap.time(&arrival, total as u64).unwrap();
    // The fake driver's copies take a millisecond.
    let rate = swap.bytes_per_second().unwrap();
    assert!((rate / (total as f64 * 1e3) - 1.0).abs() < 1e-6, "{rate}");
    arrival.join().unwrap();
    assert!(read(stream, &elsewhere) == one);
    swap.restore(&second, &elsewhere).unwrap().join().unwrap();
    assert!(read(stream, &elsewhere) == other);
    let refused = swap.restore(&first, &parts[..2]).unwrap_err();
    assert!(matches!(&refused, DeviceError::Refused { what } if what.contains("has 3 chunks")));
    // Dropping one frees its memory, and a copy outlives its creator.
    drop(second);
    let again = swap.save(&elsewhere).unwrap().unwrap();
    drop((first, swap));
    drop(again);
}

/// Never pins more than requested, on any thread.
pub(super) fn is_pinned_once(cuda: &Cuda) {
    let mut swap = cuda.swap(5 * SWAP_CHUNK_BYTES as u64 - 1).unwrap();
    let part = [Arc::new(cuda.stream().upload(&[1]).unwrap())];
    let saved: Vec<_> = (0..6).map_while(|_| swap.save(&part).unwrap()).collect();
    assert_eq!(saved.len(), 4);
}
