use super::super::experts::Experts;
use super::super::record::{Down, Kind, Norm, Scan, Up};
use super::*;
use crate::persistent::Weights;
use crate::persistent::form::{FORMS_OF_X, MAX_STAGES, form_of_x};
use ops::DType;

/// Addresses of tensors in these tests.
const X: u64 = 0x10_0000;
const Z: u64 = 0x20_0000;
const CHANNELS: u64 = 0x30_0000;
const DT: u64 = 0x40_0000;
const Y: u64 = 0x50_0000;
const INNER: u64 = 0x60_0000;
const ELSEWHERE: u64 = 0x70_0000;

fn linear(x: usize, from: u64, columns: i32, to: &[(u64, i32)]) -> PersistentStage {
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
    let mut stage = PersistentStage::linear(Weights::by_rows(DType::E4m3), of);
    stage.records[0].point("x", from);
    for ((address, _), field) in to.iter().zip(["o0", "o1", "o2"]) {
        stage.records[0].point(field, *address);
    }
    stage
}

/// Adds to x in place.
fn onto(x: usize, from: u64) -> PersistentStage {
    let mut stage = linear(x, from, 2048, &[(X, 2048)]);
    stage.records[0].set("out_f32", 1);
    stage.records[0].point("residual", X);
    stage
}

/// 64 heads of 64, one group, a state of 128.
fn scan() -> PersistentStage {
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
    PersistentStage::new(KernelRequirements::default(), vec![record])
}

/// The stages of a layer: an input projection, a scan and an output projection onto the residual; gates and ups, and
/// a down projection onto the residual.
fn layer() -> Vec<PersistentStage> {
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
fn packets(stage: usize) -> u64 {
    AT + (stage % PLACES) as u64 * 0x1_0000
}

fn lengths(stages: &[PersistentStage]) -> Vec<usize> {
    linked(stages, packets).iter().map(Vec::len).collect()
}

#[test]
fn stages_read_the_packets_of_the_previous_stage() {
    let two = [layer(), layer()].concat();
    let launches = linked(&two, packets);
    let [all] = &launches[..] else { panic!("{} launches", launches.len()) };
    for (at, record) in all.iter().enumerate() {
        let to = if at + 1 < all.len() { packets(at) } else { 0 };
        assert_eq!(record.address("packets"), to, "{at}");
    }
    let from = |at: usize, field| all[at].address(field);
    assert_eq!(from(0, "x_packets"), 0);
    // A packet has two columns in the storage type.
    let of_scan = ["z_packets", "x_packets", "b_packets", "c_packets", "dt_packets"];
    for (field, column) in of_scan.into_iter().zip([0, 4096, 8192, 8320, 8448]) {
        assert_eq!(from(1, field), packets(0) + 4 * column, "{field}");
        assert_eq!(from(6, field), packets(5) + 4 * column, "{field}");
    }
    for at in [2, 3, 4, 5, 7] {
        assert_eq!(from(at, "x_packets"), packets(at - 1), "{at}");
    }
    // The input projection and the residual stream have the largest packets.
    let bytes: Vec<usize> = all.iter().map(Record::packet_bytes).collect();
    assert_eq!(bytes[..5], [8512 * 4, 4096 * 4, 2048 * 8, 8192 * 4, 2048 * 8]);
}

#[test]
fn a_stage_that_reads_other_memory_starts_a_launch() {
    let change = |at: usize, change: &dyn Fn(&mut Record)| {
        let mut stages = layer();
        change(&mut stages[at].records[0]);
        lengths(&stages)
    };
    assert_eq!(change(4, &|_| ()), [5]);
    assert_eq!(change(2, &|of| of.point("x", ELSEWHERE)), [2, 3]);
    assert_eq!(change(1, &|of| of.point("c", ELSEWHERE)), [1, 4]);
    // Columns that do not start at a pair of packets.
    assert_eq!(change(1, &|of| of.point("b", CHANNELS + 2 * 4094)), [1, 4]);
    // Rows in f32 differ from stored bf16 rows at the same address.
    assert_eq!(change(3, &|of| of.set("form", form_of_x(FORMS_OF_X[1]) as i32)), [3, 2]);
    // More columns than there are.
    assert_eq!(change(1, &|of| of.set("heads_of_group", 8)), [1, 4]);
    // A residual that no stage writes, one that is no residual of an earlier stage, and one that other threads have
    // written.
    assert_eq!(change(4, &|of| of.point("residual", ELSEWHERE)), [5]);
    assert_eq!(change(4, &|of| of.point("residual", Y)), [4, 1]);
    let mut other = [layer(), layer()].concat();
    for field in ["columns", "start1", "start2", "start3", "start4", "start5"] {
        other[4].records[0].set(field, 1024);
    }
    assert_eq!(lengths(&other), [4, 1, 5]);
}

#[test]
fn launches_are_split_at_the_largest_number_of_stages() {
    let many: Vec<PersistentStage> = (0..26).flat_map(|_| layer()).collect();
    assert_eq!(lengths(&many), [MAX_STAGES, 130 - MAX_STAGES]);
}

/// Sizes of h-tiny's experts, and the addresses of its norm and router outputs.
const TINY: Experts = Experts { of: 64, always: 2, chosen: 8, inner: 512, hidden: 2048 };
const H: u64 = 0x80_0000;
const LOGITS: u64 = 0x90_0000;
const OTHER: u64 = 0xa0_0000;

fn norm(from: u64) -> PersistentStage {
    let mut stage = PersistentStage::norm(Norm { inputs: 2048, ..Norm::default() });
    for (field, address) in [("x", from), ("weight", ELSEWHERE), ("o", H)] {
        stage.records[0].point(field, address);
    }
    stage
}

fn router() -> PersistentStage {
    let mut stage = PersistentStage::norm(Norm { inputs: 2048, columns: 64, ..Norm::default() });
    for (field, address) in [("x", H), ("w", ELSEWHERE), ("logits", LOGITS)] {
        stage.records[0].point(field, address);
    }
    stage
}

/// The experts' stage, which adds to one residual stream and writes the other.
fn experts([from, to]: [u64; 2]) -> PersistentStage {
    let weights = Weights { experts: Some(TINY), ..Weights::by_rows(DType::E4m3) };
    let up = Up { inputs: 2048, ..Up::default() };
    let mut stage =
        PersistentStage::experts(weights, (up, Down { columns: 2048, ..Down::default() }));
    let [up, down] = &mut stage.records[..] else { panic!("no two records") };
    up.point("x", H);
    up.point("logits", LOGITS);
    down.point("residual", from);
    down.point("o", to);
    stage
}

/// A layer with experts: it reads one residual stream and writes the other.
fn layer_of_experts([from, to]: [u64; 2]) -> Vec<PersistentStage> {
    let parts = [(Z, 4096), (CHANNELS, 4352), (DT, 64)];
    let mut out = onto(1, Y);
    out.records[0].point("residual", from);
    out.records[0].point("o0", from);
    vec![linear(0, from, 8512, &parts), scan(), out, norm(from), router(), experts([from, to])]
}

fn kinds(launch: &[Record]) -> Vec<Kind> {
    launch.iter().map(|record| record.kind).collect()
}

#[test]
fn a_router_fuses_with_its_norm_and_experts_read_both() {
    let all = [layer_of_experts([X, OTHER]), layer_of_experts([OTHER, X])].concat();
    let launches = linked(&all, packets);
    let [all] = &launches[..] else { panic!("{} launches", launches.len()) };
    let of_layer = [Kind::Linear, Kind::Scan, Kind::Linear, Kind::Norm, Kind::Up, Kind::Down];
    assert_eq!(kinds(all), [of_layer, of_layer].concat());
    for at in [3, 9] {
        let [norm, up, down] = &all[at..at + 3] else { panic!() };
        assert_eq!(norm.address("x_packets"), packets(at - 1));
        assert_eq!((norm.address("w"), norm.number("columns")), (ELSEWHERE, 64));
        assert_eq!((norm.address("logits"), norm.address("packets")), (LOGITS, packets(at)));
        assert_eq!((up.number("local"), up.address("logits_packets")), (1, packets(at)));
        assert_eq!(
            (up.address("packets"), down.address("x_packets")),
            (packets(at + 1), packets(at + 1))
        );
    }
    assert_eq!(all[5].address("packets"), packets(5));
    assert_eq!(all[6].address("x_packets"), packets(5));
    assert_eq!(all[11].address("packets"), 0);
    let bytes: Vec<usize> = all[3..6].iter().map(Record::packet_bytes).collect();
    assert_eq!(bytes, [64 * 8, 8 * 512 * 4, 2048 * 8]);
}

#[test]
fn routers_and_experts_without_a_norm_read_memory() {
    // Without a preceding norm, a router and experts are separate launches, and so is a norm without successors.
    let launches = linked(&[router(), experts([X, OTHER])], packets);
    let [alone, experts_alone] = &launches[..] else { panic!("{} launches", launches.len()) };
    assert_eq!(kinds(alone), [Kind::Norm]);
    let [up, down] = &experts_alone[..] else { panic!() };
    assert_eq!((up.number("local"), up.address("logits_packets")), (0, 0));
    assert_eq!((up.address("packets"), down.address("x_packets")), (packets(1), packets(1)));
    assert_eq!(lengths(&[norm(X), experts([X, OTHER])]), [1, 2]);
    assert_eq!(lengths(&[norm(X), router(), experts([X, OTHER])]), [3]);
    let change = |at: usize, record: usize, field: &str, to: u64| {
        let mut stages = layer_of_experts([X, OTHER]);
        stages[at].records[record].point(field, to);
        lengths(&stages)
    };
    assert_eq!(change(3, 0, "weight", ELSEWHERE), [6]);
    assert_eq!(change(3, 0, "x", ELSEWHERE), [3, 3]);
    assert_eq!(change(4, 0, "x", ELSEWHERE), [4, 1, 2]);
    assert_eq!(change(5, 0, "x", ELSEWHERE), [4, 2]);
    assert_eq!(change(5, 0, "logits", ELSEWHERE), [4, 2]);
    assert_eq!(change(5, 1, "residual", ELSEWHERE), [6]);
    // With fewer logits than experts, blocks would wait forever.
    let mut stages = layer_of_experts([X, OTHER]);
    stages[4].records[0].set("columns", 32);
    assert_eq!(lengths(&stages), [4, 2]);
}

#[test]
fn no_stage_overwrites_memory_that_a_slow_block_may_read() {
    // After the stages of a projection all blocks have read x; after a norm that is known only once the down
    // projection runs.
    let begins = |to| vec![norm(X), router(), experts([X, to])];
    assert_eq!(lengths(&begins(OTHER)), [3]);
    assert_eq!(lengths(&begins(X)), [1, 2]);
    assert_eq!(lengths(&[begins(OTHER), layer_of_experts([OTHER, X])].concat()), [9]);
    // A scan that reads only some columns does not wait for the producers of the others.
    let mut layer = layer();
    assert_eq!(lengths(&layer), [5]);
    layer[1].records[0].point("z", 0);
    assert_eq!(lengths(&layer), [2, 3]);
    // A stage's residual is written by an earlier stage whose threads have other columns of it.
    let mut two = layer_of_experts([X, OTHER]);
    two.push(linear(0, OTHER, 8512, &[(X, 4096), (CHANNELS, 4352), (DT, 64)]));
    assert_eq!(lengths(&two), [6, 1]);
}

#[test]
fn a_launch_never_splits_experts() {
    let two = [layer_of_experts([X, OTHER]), layer_of_experts([OTHER, X])].concat();
    let mut many: Vec<PersistentStage> = (0..11).flat_map(|_| two.clone()).collect();
    assert_eq!(lengths(&many), [MAX_STAGES, 132 - MAX_STAGES]);
    // With three more stages before it, a launch would end after a gate and up projection.
    let ahead = [onto(2, INNER), linear(0, X, 8192, &[(INNER, 8192)]), onto(2, INNER)];
    many.splice(0..0, ahead);
    let launches = linked(&many, packets);
    assert_eq!(launches.iter().map(Vec::len).collect::<Vec<_>>(), [127, 8]);
    assert_eq!(kinds(&launches[1][..2]), [Kind::Up, Kind::Down]);
    assert_eq!(launches[1][0].number("local"), 0);
}
