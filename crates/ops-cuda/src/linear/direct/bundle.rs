//! Bundled kernels of `direct`.

use super::{BLOCK, FEW, Form, MAX_ROWS, SPLITS, Weights};
use device::cuda::{ComputeCapability, GpuArch, KernelSource};
use ops::linear::SCALED;

/// The kernels that common models use on Hopper.
pub(in super::super) fn bundled() -> Vec<KernelSource> {
    let from = Form {
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
    let normed_rows = Form { x_f32: false, ..from };
    let rows = Form { normed: false, ..normed_rows };
    let onto = |form: Form| Form { residual: true, ..form };
    let gated = |form: Form| Form { swiglu: true, ..form };
    let through = |form: Form| Form { through: true, ..form };
    let in_parts = SPLITS.map(|parts| Form { parts, ..onto(rows) });
    let convolved = Form { taps: 4, ..from };
    let any = [rows, gated(rows), onto(rows)];
    let one = [&any[..], &[from, gated(from), convolved, normed_rows, onto(normed_rows)]].concat();
    let few = [&any[..], &[Form { taps: 4, ..rows }]].concat();
    let batch = [&any[..], &[through(rows), through(onto(rows))]].concat();
    let of = |forms: &[Form], sizes: &[usize]| {
        let each = |form: &Form| {
            let form = *form;
            sizes.iter().map(move |tokens| Form { tokens: *tokens, ..form }).collect::<Vec<_>>()
        };
        forms.iter().flat_map(each).collect::<Vec<_>>()
    };
    let up_to_eight = [of(&one, &[1]), of(&few, &[FEW])].concat();
    let mut forms = [&up_to_eight[..], &of(&batch, &[16, MAX_ROWS])].concat();
    // int4 by groups and int8 by rows, as published checkpoints have them.
    let integers = [&up_to_eight[..], &of(&any, &[16]), &of(&batch, &[MAX_ROWS])].concat();
    for (weights, grouped) in [(Weights::U4, true), (Weights::I8, false)] {
        let one = |form: &Form| grouped && form.tokens == 1;
        let form = |form: &Form| match one(form) {
            true => Form { weights, blocks: SCALED, ..*form },
            false => Form { weights, grouped, ..*form },
        };
        let parts = of(if grouped { &in_parts } else { &[] }, &[MAX_ROWS]);
        forms.extend(integers.iter().chain(&parts).map(form));
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
        forms.extend(of.into_iter().map(|form| Form { weights, blocks, offset, ..form }));
    }
    let arch = || GpuArch::of(ComputeCapability::new(9, 0));
    let ready = forms.iter().filter(|form| form.tokens > 1 && !form.through).flat_map(|form| {
        let of_x = [(true, true), (true, false), (false, false)];
        of_x.map(|(normed, x_f32)| form.ready(normed, x_f32).ready_source(arch()))
    });
    let mut sources: Vec<KernelSource> = ready.collect();
    sources.sort_by_key(KernelSource::key);
    sources.dedup_by_key(|source| source.key());
    sources.extend(forms.into_iter().map(|form| form.source(arch())));
    sources
}
