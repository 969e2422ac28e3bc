//! GPUs under load: rate, power, clock and temperature over time.

use crate::document::{Block, Figure, Prose, Tone};
use crate::format;
use crate::plot::{Series, over_time};
use crate::run::{GPUS_FILE, Run};
use crate::together::loads;
use facts::{GpuLoad, LoadState, SustainedReport};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let sustained = run.gpus.and_then(|gpus| gpus.sustained.as_ref());
    sustained.map(of).unwrap_or_default()
}

/// A chart of one state of the GPUs: id, title and unit.
type StateChart = ([&'static str; 3], fn(&LoadState) -> Option<f64>);
const STATES: [StateChart; 3] = [
    (["load-power", "Power", "W"], |state| state.watts),
    (["load-clock", "SM clock", "MHz"], |state| state.sm_mhz.map(f64::from)),
    (["load-temperature", "Temperature", "°C"], |state| state.celsius.map(f64::from)),
];

fn of(report: &SustainedReport) -> Vec<Block> {
    let count = format::count(report.gpus.len(), "GPU");
    let words = format!(
        "{}, on {count} at once for {:.0} s, verified before and after.",
        report.product, report.seconds
    );
    let mut blocks = Vec::new();
    if !report.gpus.is_empty() {
        blocks.push(Block::Paragraph(Prose::from(words)));
    }
    let bad = report.broke.is_some() || report.gpus.iter().any(|gpu| gpu.wrong.is_some());
    for words in loads(report) {
        blocks.push(match bad {
            true => Block::Notice(Tone::Bad, Prose::from(words)),
            false => Block::Paragraph(Prose::from(words)),
        });
    }
    let rates = drawn(report, ["load-rate", "Rate", "TFLOP/s"], |gpu| {
        gpu.rates.iter().map(|rate| (rate.seconds, rate.tflops)).collect()
    });
    let states = STATES.into_iter().map(|(names, value)| {
        drawn(report, names, move |gpu| {
            let points = gpu.states.iter().filter_map(|state| Some((state.seconds, value(state)?)));
            points.collect()
        })
    });
    let figures: Vec<Figure> = std::iter::once(rates).chain(states).flatten().collect();
    if !figures.is_empty() {
        blocks.push(Block::Figures(figures));
    }
    blocks
}

/// A chart with a line for each GPU that has points; `None` without any.
fn drawn(
    report: &SustainedReport,
    [id, title, unit]: [&str; 3],
    points: impl Fn(&GpuLoad) -> Vec<(f64, f64)>,
) -> Option<Figure> {
    let believed = report.gpus.iter().filter(|gpu| gpu.wrong.is_none());
    let all = believed.map(|gpu| Series { label: format!("GPU {}", gpu.gpu), points: points(gpu) });
    let series: Vec<Series> = all.filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| Figure {
        id: id.to_owned(),
        caption: Prose::new().text(format!("{title} under load, from ")).file(GPUS_FILE).text("."),
        svg: over_time(id, &format!("{title} under load"), unit, &series),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::together::records;

    #[test]
    fn load_has_charts_over_time_unless_results_were_wrong() {
        let figures = |blocks: &[Block]| match blocks.last() {
            Some(Block::Figures(figures)) => figures.clone(),
            _ => Vec::new(),
        };
        let mut report = records::sustained(2);
        let drawn = figures(&of(&report));
        assert_eq!(drawn.len(), 4);
        assert!(drawn.iter().all(|figure| figure.svg.matches("<circle").count() == 2 * 5));
        report.gpus[1].wrong = Some("NaN".into());
        let blocks = of(&report);
        assert!(figures(&blocks).iter().all(|figure| !figure.svg.contains("GPU 1")));
        assert!(blocks.iter().any(|it| matches!(it, Block::Notice(Tone::Bad, _))));
        let ended = SustainedReport { broke: Some("killed".into()), ..SustainedReport::default() };
        assert_eq!(of(&ended).len(), 1);
    }
}
