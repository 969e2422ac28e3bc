//! De-interleaves triples: 3 x L consecutive values fill three vectors of L lanes, where L is not a multiple of 3.
//!
//! Member `k` of triple `c` is value `3c + k`, in lane `(3c + k) mod L`. Over the triples those lanes are all different,
//! so a blend of the three vectors gathers every member `k`, and one permutation puts them in order.

/// The lane of member `k` of each triple.
pub(super) const fn lanes<const L: usize>(k: usize) -> [i32; L] {
    let mut lanes = [0; L];
    let mut c = 0;
    while c < L {
        lanes[c] = ((3 * c + k) % L) as i32;
        c += 1;
    }
    lanes
}

/// For each lane, the triple whose member `k` is in that lane: the inverse of [`lanes`].
pub(super) const fn triples<const L: usize>(k: usize) -> [i32; L] {
    let mut triples = [0; L];
    let mut c = 0;
    while c < L {
        triples[(3 * c + k) % L] = c as i32;
        c += 1;
    }
    triples
}

/// The lanes of vector `j` with a member `k`, one bit each.
pub(super) const fn mask(lanes: usize, j: usize, k: usize) -> u32 {
    let (mut mask, mut lane) = (0, 0);
    while lane < lanes {
        if (lanes * j + lane) % 3 == k {
            mask |= 1 << lane;
        }
        lane += 1;
    }
    mask
}
