//! Bundled kernels of `direct`.

use super::{BLOCK, DirectParams, FEW, MAX_ROWS, SPLITS, Weights};
use device::cuda::{ComputeCapability, GpuArch, KernelSource};
use ops::linear::SCALED;

/// The kernels that common models use on Hopper.
pub(in super::super) fn bundled() -> Vec<KernelSource> {
    let from = DirectParams {
        weights: Weights::E4m3,
        grouped: false,
        blocks: 0,
        offset: false,
        tokens: 1,
        normed: true,
        x_f32: true,
        through: false,
        residual: false,
        swiglu: false,
        squared: false,
        taps: 0,
        parts: 1,
    };
    let normed_rows = DirectParams { x_f32: false, ..from };
    let rows = DirectParams { normed: false, ..normed_rows };
    let onto = |params: DirectParams| DirectParams { residual: true, ..params };
    let gated = |params: DirectParams| DirectParams { swiglu: true, ..params };
    let through = |params: DirectParams| DirectParams { through: true, ..params };
    let in_parts = SPLITS.map(|parts| DirectParams { parts, ..onto(rows) });
    let convolved = DirectParams { taps: 4, ..from };
    let any = [rows, gated(rows), onto(rows)];
    let one = [&any[..], &[from, gated(from), convolved, normed_rows, onto(normed_rows)]].concat();
    let few = [&any[..], &[DirectParams { taps: 4, ..rows }]].concat();
    let batch = [&any[..], &[through(rows), through(onto(rows))]].concat();
    let of = |param_sets: &[DirectParams], sizes: &[usize]| {
        let each = |params: &DirectParams| {
            let params = *params;
            sizes
                .iter()
                .map(move |tokens| DirectParams { tokens: *tokens, ..params })
                .collect::<Vec<_>>()
        };
        param_sets.iter().flat_map(each).collect::<Vec<_>>()
    };
    let up_to_eight = [of(&one, &[1]), of(&few, &[FEW])].concat();
    let mut param_sets = [&up_to_eight[..], &of(&batch, &[16, MAX_ROWS])].concat();
    // int4 by groups and int8 by rows, as published checkpoints have them.
    let integers = [&up_to_eight[..], &of(&any, &[16]), &of(&batch, &[MAX_ROWS])].concat();
    for (weights, grouped) in [(Weights::U4, true), (Weights::I8, false)] {
        let one = |params: &DirectParams| grouped && params.tokens == 1;
        let params = |params: &DirectParams| match one(params) {
            true => DirectParams { weights, blocks: SCALED, ..*params },
            false => DirectParams { weights, grouped, ..*params },
        };
        let parts = of(if grouped { &in_parts } else { &[] }, &[MAX_ROWS]);
        param_sets.extend(integers.iter().chain(&parts).map(params));
    }
    // GGUF's Q8_0, Q4_0 and Q4_K for layers and heads; Q6_K where such files use it, for down projections and heads.
    let one = of(&[from, gated(from), convolved, rows, onto(rows), onto(normed_rows)], &[1]);
    let few = of(&few, &[FEW]);
    let sizes = [
        (Weights::I8, false, BLOCK, [&one[..], &few].concat()),
        (Weights::U4, false, BLOCK, [&one[..], &few].concat()),
        (Weights::U4, true, BLOCK, one),
    ];
    // More rows: scales are applied before the MMA, with or without an offset.
    let down = of(&[through(onto(rows))], &[16, MAX_ROWS]);
    let parts = of(&in_parts, &[MAX_ROWS]);
    let more = [&of(&any, &[16, MAX_ROWS])[..], &down, &parts].concat();
    let up_to_eight = of(&[rows, onto(rows)], &[FEW]);
    let among = [of(&[normed_rows, onto(rows)], &[1]), up_to_eight, down, parts];
    let many = [
        (Weights::I8, false, BLOCK, more.clone()),
        (Weights::U4, false, BLOCK, more.clone()),
        (Weights::U4, true, BLOCK, more),
        (Weights::I8, false, BLOCK / 2, among.concat()),
    ];
    for (weights, offset, blocks, of) in sizes.into_iter().chain(many) {
        param_sets.extend(of.into_iter().map(|params| DirectParams {
            weights,
            blocks,
            offset,
            ..params
        }));
    }
    let arch = || GpuArch::of(ComputeCapability::new(9, 0));
    let ready = param_sets.iter().filter(|params| params.tokens > 1 && !params.through).flat_map(
        |params| {
            let of_x = [(true, true), (true, false), (false, false)];
            of_x.map(|(normed, x_f32)| params.ready(normed, x_f32).ready_source(arch()))
        },
    );
    let mut sources: Vec<KernelSource> = ready.collect();
    sources.sort_by_key(KernelSource::key);
    sources.dedup_by_key(|source| source.key());
    sources.extend(param_sets.into_iter().map(|params| params.source(arch())));
    sources
}
