use super::super::record::Scan;
use super::*;
use crate::persistent::Weights;
use crate::persistent::form::{FORMS_OF_X, form_of_x};

/// Where tensors lie in these tests.
const X: u64 = 0x10_0000;
const Z: u64 = 0x20_0000;
const CHANNELS: u64 = 0x30_0000;
const DT: u64 = 0x40_0000;
const Y: u64 = 0x50_0000;
const INNER: u64 = 0x60_0000;
const ELSEWHERE: u64 = 0x70_0000;

fn linear(x: usize, from: u64, columns: i32, to: &[(u64, i32)]) -> Phase {
    let form = form_of_x(FORMS_OF_X[x]) as i32;
    let mut starts = [columns; 5];
    let mut first = 0;
    for (start, (_, width)) in starts.iter_mut().zip(to) {
        first += width;
        *start = first;
    }
    let [start1, start2, start3, start4, start5] = starts;
    let inputs = FORMS_OF_X[x].1 as i32;
    let of = Linear {
        form,
        inputs,
        start1,
        start2,
        start3,
        start4,
        start5,
        columns,
        ..Linear::default()
    };
    let mut phase = Phase::linear(Weights::by_rows(DType::E4m3), of);
    phase.record.point("x", from);
    for ((address, _), field) in to.iter().zip(["o0", "o1", "o2"]) {
        phase.record.point(field, *address);
    }
    phase
}

/// Adds to x in place.
fn onto(x: usize, from: u64) -> Phase {
    let mut phase = linear(x, from, 2048, &[(X, 2048)]);
    phase.record.set("out_f32", 1);
    phase.record.point("residual", X);
    phase
}

/// 64 heads of 64, one group, a state of 128.
fn scan() -> Phase {
    let numbers = [("heads", 64), ("head_dim", 64), ("heads_of_group", 64)];
    let mut record = Record::new(Kind::Scan, Args::from(Scan::default()));
    for (field, number) in numbers {
        record.set(field, number);
    }
    let channel = |first: u64| CHANNELS + 2 * first;
    for (field, address) in [
        ("x", channel(0)),
        ("b", channel(4096)),
        ("c", channel(4224)),
        ("z", Z),
        ("dt", DT),
        ("o", Y),
    ] {
        record.point(field, address);
    }
    Phase { weights: None, record, held: Vec::new() }
}

/// What a layer is: an input projection, a scan, and what is added behind it; gates and ups, and what is added behind these.
fn layer() -> Vec<Phase> {
    let parts = [(Z, 4096), (CHANNELS, 4352), (DT, 64)];
    vec![
        linear(0, X, 8512, &parts),
        scan(),
        onto(1, Y),
        linear(0, X, 8192, &[(INNER, 8192)]),
        onto(2, INNER),
    ]
}

const AT: u64 = 0x100_0000;
fn packets(phase: usize) -> u64 {
    AT + (phase % PLACES) as u64 * 0x1_0000
}

fn lengths(phases: &[Phase]) -> Vec<usize> {
    linked(phases, packets).iter().map(Vec::len).collect()
}

#[test]
fn a_phase_takes_what_the_one_ahead_of_it_made() {
    let two = [layer(), layer()].concat();
    let launches = linked(&two, packets);
    let [all] = &launches[..] else { panic!("{} launches", launches.len()) };
    for (at, record) in all.iter().enumerate() {
        let to = if at + 1 < all.len() { packets(at) } else { 0 };
        assert_eq!(record.address("packets"), to, "{at}");
    }
    let from = |at: usize, field| all[at].address(field);
    assert_eq!(from(0, "x_packets"), 0);
    // Two columns in storage are a packet.
    let of_scan = ["z_packets", "x_packets", "b_packets", "c_packets", "dt_packets"];
    for (field, column) in of_scan.into_iter().zip([0, 4096, 8192, 8320, 8448]) {
        assert_eq!(from(1, field), packets(0) + 4 * column, "{field}");
        assert_eq!(from(6, field), packets(5) + 4 * column, "{field}");
    }
    for at in [2, 3, 4, 5, 7] {
        assert_eq!(from(at, "x_packets"), packets(at - 1), "{at}");
    }
    // The largest of all are what an input projection makes, and the residual stream.
    let bytes: Vec<usize> = all.iter().map(Record::packet_bytes).collect();
    assert_eq!(bytes[..5], [8512 * 4, 4096 * 4, 2048 * 8, 8192 * 4, 2048 * 8]);
}

#[test]
fn what_reads_anything_else_begins_a_launch() {
    let change = |at: usize, change: &dyn Fn(&mut Record)| {
        let mut phases = layer();
        change(&mut phases[at].record);
        lengths(&phases)
    };
    assert_eq!(change(4, &|_| ()), [5]);
    assert_eq!(change(2, &|of| of.point("x", ELSEWHERE)), [2, 3]);
    assert_eq!(change(1, &|of| of.point("c", ELSEWHERE)), [1, 4]);
    // Columns that are no whole packets.
    assert_eq!(change(1, &|of| of.point("b", CHANNELS + 2 * 4094)), [1, 4]);
    // Rows in f32 are not those in storage that lie there.
    assert_eq!(change(3, &|of| of.set("form", form_of_x(FORMS_OF_X[1]) as i32)), [3, 2]);
    // More columns than there are.
    assert_eq!(change(1, &|of| of.set("heads_of_group", 8)), [1, 4]);
    // A residual of somebody else's, and one that other threads have written.
    assert_eq!(change(4, &|of| of.point("residual", ELSEWHERE)), [4, 1]);
    let mut other = [layer(), layer()].concat();
    for field in ["columns", "start1", "start2", "start3", "start4", "start5"] {
        other[4].record.set(field, 1024);
    }
    assert_eq!(lengths(&other), [4, 1, 5]);
}

#[test]
fn a_launch_takes_so_many_phases() {
    let many: Vec<Phase> = (0..26).flat_map(|_| layer()).collect();
    assert_eq!(lengths(&many), [MOST_PHASES, 130 - MOST_PHASES]);
}
