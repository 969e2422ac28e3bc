//! A stand-in for Triton that says how long a kernel's configurations are measured for.

use super::{case, check, fakes, session_over};
use facts::Status::Fail;
use std::time::Duration;
use verify::Tuning;

#[test]
fn kernels_are_tuned_as_it_was_said_in_every_process_and_nothing_of_it_is_kept() {
    let mut session = session_over(&[fakes().join("with_triton")], Duration::from_secs(60));
    let as_packaged = [("tuned:says", Fail, "ValueError: tuned for 25 and 100 ms, kept")];
    check(&mut session, &case(2, 2), &as_packaged);
    let alone = [("tuned:says", Fail, "ValueError: tuned for 2 and 10 ms, not kept")];
    session.tune(Tuning::ALONE).unwrap();
    check(&mut session, &case(2, 2), &alone);
    session.restart();
    check(&mut session, &case(2, 2), &alone);
    // Beside others it is shorter yet, whatever this session does.
    let beside_others = [("tuned:says", Fail, "ValueError: tuned for 1 and 4 ms, not kept")];
    let mut beside = session.beside().unwrap();
    check(&mut beside, &case(2, 2), &beside_others);
    beside.tune(Tuning::ALONE).unwrap();
    check(&mut beside, &case(2, 2), &alone);
}
