//! A stand-in for Triton that reports which configurations of a kernel are tried, and how long each is measured.

use super::{case, check, fakes, session_over};
use facts::Status::Fail;
use std::time::Duration;
use verify::{Session, Tuning};

#[test]
fn tuning_limits_apply_in_every_process_and_are_not_cached() {
    let mut session = session_over(&[fakes().join("with_triton")], Duration::from_secs(60));
    let says = |session: &mut Session, expect: &str| {
        let expect = format!("ValueError: tried {expect}");
        check(session, &case(2, 2), &[("tuned:says", Fail, &expect)]);
    };
    says(&mut session, "0,1,2,3 for 25 and 100 ms, kept");
    session.tune(Tuning::ALONE).unwrap();
    let alone = "0,1,2,3 for 2 and 10 ms, not kept";
    says(&mut session, alone);
    session.restart();
    says(&mut session, alone);
    // In the second session the first configuration that runs is used, whatever this session does.
    let mut beside = session.concurrent().unwrap();
    says(&mut beside, "0,1 for 1 and 4 ms, not kept");
    // Those of a share are compiled; if none of them runs, others are tried until one does.
    for (nth, of, expect) in [(0, 2, "0,2"), (1, 2, "1,3"), (0, 4, "0,1"), (2, 4, "2")] {
        beside.tune(Tuning::compiling(nth, of)).unwrap();
        says(&mut beside, &format!("{expect} for 1 and 4 ms, not kept"));
    }
    beside.tune(Tuning::ALONE).unwrap();
    says(&mut beside, alone);
}
