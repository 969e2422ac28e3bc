//! Inputs and outputs of records, and the connections between successive records.

use super::super::STATE;
use super::super::record::{Kind, Record};
use super::PACKET;
use ops::DType;
use std::ops::Range;

/// Output columns of a stage: their address, the first column and their number.
struct OutputColumns {
    address: u64,
    first: usize,
    width: usize,
}

/// Input columns of a stage.
struct StageInput {
    /// The fields with their address and with the address of their packets.
    field: &'static str,
    packets: &'static str,
    width: usize,
    /// Whether they are in f32.
    wide: bool,
}

/// A record's field for the address of packets, and the first column of these.
pub(super) type PacketField = (&'static str, usize);

/// Memory that a stage writes, and the first of the columns stored there.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoredRange {
    range: Range<u64>,
    first: usize,
}

impl StoredRange {
    fn new(address: u64, first: usize, bytes: usize) -> Self {
        Self { range: address..address + bytes as u64, first }
    }

    pub(super) fn overlaps(&self, other: &Range<u64>) -> bool {
        self.range.start < other.end && other.start < self.range.end
    }
}

/// The assignment of stored columns to threads, and their element size. Equal values mean the same threads.
#[derive(PartialEq, Eq)]
enum ThreadAssignment {
    /// By pairs of columns.
    Columns {
        all: usize,
        wide: bool,
    },
    Heads {
        all: usize,
        columns: usize,
    },
    /// x and o by `inputs` columns; a router's columns one by one.
    Norm {
        inputs: usize,
    },
    Nothing,
}

impl Record {
    /// Whether the output columns are f32.
    pub(super) fn is_wide(&self) -> bool {
        match self.kind {
            Kind::Linear => self.number("out_f32") != 0,
            Kind::Norm | Kind::Down => true,
            Kind::Scan | Kind::Up => false,
        }
    }

    /// Whether the record has a norm; otherwise a `Norm` is only a router.
    fn normalises(&self) -> bool {
        self.address("weight") != 0
    }

    /// Output columns.
    fn makes(&self) -> Vec<OutputColumns> {
        let one =
            |field, width| vec![OutputColumns { address: self.address(field), first: 0, width }];
        match self.kind {
            Kind::Linear => self.outputs(),
            Kind::Scan => one("o", self.number("heads") * self.number("head_dim")),
            Kind::Norm => one("logits", self.number("columns")),
            // Its outputs exist only as packets.
            Kind::Up => Vec::new(),
            Kind::Down => one("o", self.number("columns")),
        }
    }

    /// The outputs of a linear projection.
    fn outputs(&self) -> Vec<OutputColumns> {
        let starts = ["start1", "start2", "start3", "start4", "start5", "columns"];
        let mut first = 0;
        let each = ["o0", "o1", "o2", "o3", "o4", "o5"].into_iter().zip(starts).map(|(o, end)| {
            let (start, end) = (first, self.number(end));
            first = end;
            OutputColumns { address: self.address(o), first: start, width: end - start }
        });
        each.filter(|made| made.address != 0 && made.width > 0).collect()
    }

    /// Inputs that are outputs of other stages.
    fn reads(&self) -> Vec<StageInput> {
        let read = |field, packets, width| StageInput { field, packets, width, wide: false };
        let x = |wide| StageInput { wide, ..read("x", "x_packets", self.number("inputs")) };
        match self.kind {
            // See FORM in `phase.cuh`.
            Kind::Linear => return vec![x(self.number("form") & 2 != 0)],
            Kind::Norm => return vec![x(self.normalises())],
            Kind::Up => {
                let logits = read("logits", "logits_packets", self.experts.of);
                return vec![x(false), StageInput { wide: true, ..logits }];
            }
            // Reads the packets of the gate and up projections, its predecessor in the same call.
            Kind::Down => return Vec::new(),
            Kind::Scan => {}
        }
        let heads = self.number("heads");
        let rows = heads * self.number("head_dim");
        let of_groups = heads / self.number("heads_of_group").max(1) * STATE;
        let all = [
            read("x", "x_packets", rows),
            read("z", "z_packets", rows),
            read("dt", "dt_packets", heads),
            read("b", "b_packets", of_groups),
            read("c", "c_packets", of_groups),
        ];
        all.into_iter().filter(|read| self.address(read.field) != 0).collect()
    }

    /// The packet fields of the inputs and their first columns among the previous stage's outputs; `None` if any
    /// input is not one of these or its packets would be misaligned.
    pub(super) fn takes(&self, ahead: &Self) -> Option<Vec<PacketField>> {
        match (ahead.kind, self.kind) {
            (Kind::Up, Kind::Down) => return Some(vec![("x_packets", 0)]),
            // Each block has computed all of x itself.
            (Kind::Norm, Kind::Up) => {
                let [x, logits] = [("x", "o"), ("logits", "logits")].map(|(own, theirs)| {
                    self.address(own) != 0 && self.address(own) == ahead.address(theirs)
                });
                let sizes = self.number("inputs") == ahead.number("inputs")
                    && self.experts.of == ahead.number("columns");
                return (x && logits && sizes).then(|| vec![("logits_packets", 0)]);
            }
            // A single router reads global memory.
            (_, Kind::Up) => return None,
            (_, Kind::Norm) if !self.normalises() => return None,
            _ => {}
        }
        let (wide, made) = (ahead.is_wide(), ahead.makes());
        let size = if wide { DType::F32.bytes() } else { DType::Bf16.bytes() };
        let place = |StageInput { field, packets, width, wide: in_f32 }: StageInput| {
            let address = self.address(field);
            let of = made.iter().find(|made| {
                let end = made.address + (made.width * size) as u64;
                (made.address..end).contains(&address) && address + (width * size) as u64 <= end
            })?;
            let column = of.first + (address - of.address) as usize / size;
            // Packets are read in pairs; step sizes singly.
            let whole = if wide || field == "dt" { 2 } else { 4 };
            (in_f32 == wide && column.is_multiple_of(whole)).then_some((packets, column))
        };
        self.reads().into_iter().map(place).collect()
    }

    /// Fuses a router into the norm that computes its x; returns whether that is possible.
    pub(super) fn fuse_router(&mut self, router: &Self) -> bool {
        let both = [&*self, router].iter().all(|of| of.kind == Kind::Norm);
        let fits = both
            && self.normalises()
            && !router.normalises()
            && self.address("w") == 0
            && self.address("o") != 0
            && self.address("o") == router.address("x")
            && self.number("inputs") == router.number("inputs");
        if fits {
            self.take(&["w", "logits", "columns", "scale"], router);
        }
        fits
    }

    /// Whether the blocks together wait for all outputs of the previous stage.
    pub(super) fn waits_for_all(&self, ahead: &Self) -> bool {
        let wanted: usize = self.reads().iter().map(|read| read.width).sum();
        wanted >= ahead.columns()
    }

    /// Number of output columns.
    fn columns(&self) -> usize {
        if self.kind == Kind::Up {
            return self.experts.chosen * self.experts.inner;
        }
        self.makes().iter().map(|made| made.first + made.width).max().unwrap_or(0)
    }

    /// Size of the packets of all output columns, bytes.
    pub(super) fn packet_bytes(&self) -> usize {
        let columns = self.columns();
        PACKET * if self.is_wide() { columns } else { columns.div_ceil(2) }
    }

    /// The address ranges of inputs that are read from global memory instead of packets.
    pub(super) fn read_memory(&self) -> Vec<Range<u64>> {
        let range = |StageInput { field, width, wide, .. }: StageInput| {
            let size = if wide { DType::F32.bytes() } else { DType::Bf16.bytes() };
            self.address(field)..self.address(field) + (width * size) as u64
        };
        self.reads().into_iter().map(range).collect()
    }

    /// The memory that it writes, except for states, which no other call of a step accesses.
    pub(super) fn stored(&self) -> Vec<StoredRange> {
        let size = if self.is_wide() { DType::F32.bytes() } else { DType::Bf16.bytes() };
        let made = self.makes().into_iter();
        let mut all: Vec<_> = made
            .map(|OutputColumns { address, first, width }| {
                StoredRange::new(address, first, width * size)
            })
            .collect();
        if self.kind == Kind::Norm && self.address("o") != 0 {
            let bytes = self.number("inputs") * DType::Bf16.bytes();
            all.push(StoredRange::new(self.address("o"), 0, bytes));
        }
        all.retain(|stored| stored.range.start != 0);
        all
    }

    /// The residual that it reads and adds.
    fn residual(&self) -> Option<StoredRange> {
        if !matches!(self.kind, Kind::Linear | Kind::Down) {
            return None;
        }
        let (address, columns) = (self.address("residual"), self.number("columns"));
        (address != 0).then(|| StoredRange::new(address, 0, columns * DType::F32.bytes()))
    }

    fn thread_assignment(&self) -> ThreadAssignment {
        match self.kind {
            Kind::Linear | Kind::Down => {
                ThreadAssignment::Columns { all: self.number("columns"), wide: self.is_wide() }
            }
            Kind::Scan => ThreadAssignment::Heads {
                all: self.number("heads"),
                columns: self.number("head_dim"),
            },
            Kind::Norm => ThreadAssignment::Norm { inputs: self.number("inputs") },
            Kind::Up => ThreadAssignment::Nothing,
        }
    }

    /// Whether the memory that it shares with an earlier stage's writes or residual is assigned to the same threads.
    /// Blocks share no barrier, so other threads cannot know when that stage is done with it.
    pub(super) fn shares_with(&self, ahead: &Self) -> bool {
        let alike = self.thread_assignment() == ahead.thread_assignment();
        let disjoint = |one: &StoredRange, other: &StoredRange| {
            !one.overlaps(&other.range) || alike && one == other
        };
        let (own, theirs) = (self.stored(), ahead.stored());
        let written = |one: &StoredRange| theirs.iter().all(|other| disjoint(one, other));
        let added = ahead.residual();
        own.iter().all(|one| written(one) && added.iter().all(|other| disjoint(one, other)))
            && self.residual().iter().all(written)
    }
}
