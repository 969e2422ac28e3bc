//! The PTX ISA version of each CUDA release, which is the newest one that its driver compiles.

use knowledge::{Citation, Minor};

/// The source of the rows.
pub(crate) const SOURCE: Citation = Citation::of(
    "NVIDIA, PTX ISA, release history, as cuda-python's _ptx_utils.py has it up to 9.1; 8.1 also read in xformers \
           0.0.28.post3, and 7.8, 8.4, 8.5, 8.7, 9.0 and 9.2 in bitsandbytes 0.50.2",
    "2026-11-21",
);

/// CUDA release and PTX ISA version, in ascending order.
const ROWS: &[(Minor, Minor)] = &[
    ((11, 0), (7, 0)),
    ((11, 1), (7, 1)),
    ((11, 2), (7, 2)),
    ((11, 3), (7, 3)),
    ((11, 4), (7, 4)),
    ((11, 5), (7, 5)),
    ((11, 6), (7, 6)),
    ((11, 7), (7, 7)),
    ((11, 8), (7, 8)),
    ((12, 0), (8, 0)),
    ((12, 1), (8, 1)),
    ((12, 2), (8, 2)),
    ((12, 3), (8, 3)),
    ((12, 4), (8, 4)),
    ((12, 5), (8, 5)),
    ((12, 6), (8, 5)),
    ((12, 7), (8, 6)),
    ((12, 8), (8, 7)),
    ((12, 9), (8, 8)),
    ((13, 0), (9, 0)),
    ((13, 1), (9, 1)),
    ((13, 2), (9, 2)),
];

/// The newest PTX ISA that a driver of this CUDA release compiles; `None` for an unknown release.
pub(crate) fn of_cuda(cuda: Minor) -> Option<Minor> {
    ROWS.iter().find(|(release, _)| *release == cuda).map(|(_, isa)| *isa)
}

/// The first CUDA release whose driver compiles a PTX ISA; `None` if no known driver does.
pub(crate) fn first_cuda(isa: Minor) -> Option<Minor> {
    ROWS.iter().find(|(_, known)| *known >= isa).map(|(release, _)| *release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_versions_ascend() {
        assert_eq!(SOURCE.check(), Ok(()));
        assert!(ROWS.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!((of_cuda((12, 8)), of_cuda((13, 0))), (Some((8, 7)), Some((9, 0))));
        assert_eq!((first_cuda((8, 5)), first_cuda((9, 2))), (Some((12, 5)), Some((13, 2))));
        assert_eq!((of_cuda((14, 0)), first_cuda((10, 0))), (None, None));
    }
}
