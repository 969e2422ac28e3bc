//! A process that is restricted to fewer cores than at its start.
#![allow(clippy::unwrap_used)] // Helpers of tests may panic like tests.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn launches_use_no_more_threads_than_the_limit() {
    // Four threads even on a machine with one core.
    rayon::ThreadPoolBuilder::new().num_threads(4).build_global().unwrap();
    let device = device::Device::processor();
    let threads_of = |launches: usize| {
        let (ran, threads) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        for _ in 0..launches {
            device.launch(
                "exercise",
                64,
                || (),
                |(), _| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    threads.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
                    std::thread::sleep(Duration::from_micros(100));
                },
            );
        }
        // All 64 blocks of each launch ran, with any number of threads.
        assert_eq!(ran.into_inner(), 64 * launches);
        threads.into_inner().unwrap().len()
    };
    assert_eq!(threads_of(8), 4);
    for (most, expect) in [(1, 1), (3, 3), (2, 2), (0, 1), (usize::MAX, 4)] {
        device::limit_threads(most);
        assert_eq!(threads_of(8), expect, "{most}");
    }
}
