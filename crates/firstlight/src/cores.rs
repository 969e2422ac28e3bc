//! CPU affinity of processes. Processes that time GPUs concurrently have separate cores: input generation and checks of
//! one process must not delay launches of another.

/// The cores that this process may use; empty if the system does not report them.
pub(crate) fn allowed() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    }
    Vec::new()
}

/// Restricts all threads of this process, and those that they start, to these cores, and the processor's launches to as
/// many threads; empty for no change. Errors of the system are ignored.
pub(crate) fn only(cores: &[usize]) {
    if !cores.is_empty() {
        device::limit_threads(cores.len());
    }
    #[cfg(target_os = "linux")]
    if !cores.is_empty() {
        use rustix::thread::{CpuSet, Pid, sched_setaffinity};
        let mut set = CpuSet::new();
        cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in threads {
            let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
            // A thread that has ended meanwhile needs no core.
            let _ = number.and_then(Pid::from_raw).map(|id| sched_setaffinity(Some(id), &set));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cores;
}

/// The cores of `parts` processes: equally many for each, in order, so that neighbours share caches. With fewer than
/// two for each, all processes share all cores.
pub(crate) fn shares(cores: &[usize], parts: usize) -> Vec<Vec<usize>> {
    let each = cores.len() / parts.max(1);
    match each {
        0 | 1 => vec![Vec::new(); parts],
        each => cores.chunks(each).take(parts).map(<[usize]>::to_vec).collect(),
    }
}

/// The cores of the ranks of a tensor-parallel model, at least one for each; with fewer cores than ranks, all ranks
/// share all cores.
pub(crate) fn of_ranks(cores: &[usize], ranks: usize) -> Vec<Vec<usize>> {
    match cores.len() / ranks.max(1) {
        0 => vec![Vec::new(); ranks],
        each => cores.chunks(each).take(ranks).map(<[usize]>::to_vec).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_separate_cores() {
        let check = |cores: &[usize], parts, expect: &[&[usize]]| {
            assert_eq!(shares(cores, parts), expect, "{cores:?} {parts}");
        };
        check(&[0, 1, 2, 3], 2, &[&[0, 1], &[2, 3]]);
        check(&[0, 1, 8, 9, 10], 2, &[&[0, 1], &[8, 9]]);
        check(&[0, 1, 2, 3], 1, &[&[0, 1, 2, 3]]);
        // Too few to divide, and a system that does not report them.
        check(&[0, 1, 2], 2, &[&[], &[]]);
        check(&[], 2, &[&[], &[]]);
    }

    #[test]
    fn each_rank_has_a_core_if_there_are_enough() {
        assert_eq!(of_ranks(&[0, 1, 4], 2), [[0], [1]]);
        assert_eq!(of_ranks(&[0, 1, 4, 5], 2), [[0, 1], [4, 5]]);
        assert_eq!(of_ranks(&[3], 2), [[], []] as [[usize; 0]; 2]);
    }
}
