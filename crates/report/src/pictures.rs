//! Pictures of a bench run's sweeps, each a self-contained SVG file.
//!
//! Rows of one op belong to one picture when they differ in one dimension alone: the head dim for attention, the tokens for
//! every other op. A series is firstlight's own kernels, whichever the selection chose at each size, or one peer.

mod floors;
mod png;

use crate::baseline::{BASIS, bands};
use crate::plot::{Band, Series, lines_with};
use facts::CompactCollect;
use facts::{BenchReport, BenchRow, Ceilings};
use floors::floors;
use std::collections::BTreeMap;

/// One picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// File name without its extension: the quantity, the shape and the device.
    pub name: String,
    /// The picture.
    pub svg: String,
}

impl Picture {
    /// The same as a PNG file, with the pixels that the SVG file names as its size.
    ///
    /// # Errors
    /// One sentence: the SVG is not one that [`bench_pictures`] draws.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        png::drawn(&self.svg)
    }
}

/// The pictures of every sweep in a run; none for a run that measured each shape once. `device` is the name of the machine
/// or GPU.
pub fn bench_pictures(report: &BenchReport, device: &str) -> Vec<Picture> {
    let mut sweeps: BTreeMap<Sweep, Vec<&BenchRow>> = BTreeMap::new();
    for row in &report.rows {
        sweeps.entry(Sweep::of(row)).or_default().push(row);
    }
    let pictures =
        sweeps.iter().flat_map(|(sweep, rows)| sweep.pictures(rows, &report.ceilings, device));
    pictures.collect()
}

/// The properties that all rows of a sweep share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sweep {
    op: String,
    /// The case's name without the sizes that vary.
    form: String,
    /// Every other dimension.
    shape: BTreeMap<String, u64>,
    dtype: String,
}

/// Dimensions that a sweep of the op runs over, the one of the x axis first.
fn axes(op: &str) -> &'static [&'static str] {
    match op {
        "attention" => &["D", "Dv"],
        "nsa" => &["Tk", "Tq"],
        _ => &["T"],
    }
}

impl Sweep {
    fn of(row: &BenchRow) -> Self {
        let axes = axes(&row.op);
        // Every size in a case's name is in its shape too.
        let size = |part: &&str| {
            let digits = part.strip_prefix('d').unwrap_or(part);
            !digits.is_empty() && digits.chars().all(|letter| letter.is_ascii_digit())
        };
        let form: Vec<&str> = row.case.split('-').filter(|part| !size(part)).collect();
        let kept = row.shape.iter().filter(|(name, _)| !axes.contains(&name.as_str()));
        Self {
            op: row.op.clone(),
            form: form.join("-"),
            shape: kept.map(|(name, size)| (name.clone(), *size)).collect(),
            dtype: row.dtype.clone(),
        }
    }

    fn pictures(&self, rows: &[&BenchRow], ceilings: &[Ceilings], device: &str) -> Vec<Picture> {
        let x_name = axes(&self.op)[0];
        // Rows of another value of the second axis (MLA has Dv apart from D) are not on this curve.
        let on_curve = |row: &&&BenchRow| {
            let sizes: Vec<_> =
                axes(&self.op).iter().filter_map(|name| row.shape.get(*name)).collect();
            sizes.windows(2).all(|pair| pair[0] == pair[1]) || self.op == "nsa"
        };
        let mut curves: Vec<(String, BTreeMap<u64, &BenchRow>)> = Vec::new();
        for row in rows.iter().filter(on_curve) {
            let Some(x) = row.shape.get(x_name) else { continue };
            let label = match &row.peer {
                None => "firstlight".to_owned(),
                Some(package) => format!("{} ({package})", row.variant),
            };
            match curves.iter_mut().find(|(known, _)| *known == label) {
                Some((_, points)) => _ = points.insert(*x, row),
                None => curves.push((label, BTreeMap::from([(*x, *row)]))),
            }
        }
        if !curves.iter().any(|(_, points)| points.len() > 1) {
            return Vec::new();
        }
        let series = |value: &dyn Fn(&BenchRow) -> Option<f64>| -> Vec<Series> {
            let of = |(label, points): &(String, BTreeMap<u64, &BenchRow>)| Series {
                label: label.clone(),
                points: points
                    .iter()
                    .filter_map(|(x, row)| Some((*x as f64, value(row)?)))
                    .collect(),
            };
            curves.iter().map(of).filter(|series| !series.points.is_empty()).collect()
        };
        let basis = rows.iter().filter(|row| row.peer.is_some() && row.variant == BASIS);
        let basis: BTreeMap<u64, f64> =
            basis.filter_map(|row| Some((*row.shape.get(x_name)?, row.median_ms))).compact_map();
        let mut drawn = Vec::new();
        let mut draw = |what: &str, y_name: &str, series: &[Series], bands: &[Band]| {
            let title = format!("{} {} {} on {device}", self.op, self.form, self.dtype);
            let y_name = format!("{y_name}; {}", self.shape_words(" "));
            let name = file_name(&[
                &self.op,
                &self.form,
                &self.shape_words("-"),
                &self.dtype,
                what,
                device,
            ]);
            let svg = lines_with(&name, &title, x_name, &y_name, series, bands);
            drawn.push(Picture { svg: standalone(&svg), name });
        };
        if self.op == "attention" {
            let rates = series(&|row| Some(row.gflops / 1e3));
            draw("tflops", "TFLOP/s, by medians", &rates, &bands(&self.op, &self.shape));
            if basis.len() > 1 {
                let gains = series(&|row| Some(basis.get(row.shape.get(x_name)?)? / row.median_ms));
                draw("speedup", &format!("times as fast as {BASIS}"), &gains, &[]);
            }
        } else {
            let mut times = series(&|row| Some(row.median_ms));
            times.extend(
                curves.first().into_iter().flat_map(|(_, points)| floors(points, ceilings)),
            );
            draw("millis", "ms, medians", &times, &[]);
        }
        drawn
    }

    /// `B=1 H=32`: every other dimension, key heads and keys only where they differ from those of the queries.
    fn shape_words(&self, between: &str) -> String {
        let join = if between == " " { "=" } else { "" };
        let size = |name: &str| self.shape.get(name);
        let told = |name: &str| match name {
            "Hkv" => size("H") == size(name),
            "Tk" => size("Tq") == size(name),
            _ => false,
        };
        let words: Vec<String> = self
            .shape
            .iter()
            .filter(|(name, _)| !told(name))
            .map(|(name, size)| format!("{name}{join}{size}"))
            .collect();
        words.join(between)
    }
}

/// Lower-case words that are valid in every file system.
fn file_name(parts: &[&str]) -> String {
    let mut name = String::new();
    for letter in parts.join("-").to_lowercase().chars() {
        match letter {
            'a'..='z' | '0'..='9' | '.' => name.push(letter),
            _ if name.ends_with('-') || name.is_empty() => {}
            _ => name.push('-'),
        }
    }
    name.trim_end_matches('-').to_owned()
}

/// The page's light colours, fixed: a file has no page around it.
const STYLE: &str = include_str!("pictures/standalone.css");

/// White around a picture, in its own units.
const MARGIN: f64 = 12.0;

/// A picture of the report as a separate file: adds the namespace, the colours and a white background.
fn standalone(svg: &str) -> String {
    let (head, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let size = head.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split('"').next());
    let Some((width, height)) = size.and_then(|size| size.split_once(' ')) else {
        return svg.to_owned();
    };
    let wider = |side: &str| side.parse::<f64>().unwrap_or_default() + 2.0 * MARGIN;
    let (wide, high) = (wider(width), wider(height));
    let from = format!("viewBox=\"0 0 {width} {height}\"");
    let to = format!(
        "xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-{MARGIN} -{MARGIN} {wide} {high}\" \
         width=\"{:.0}\" height=\"{:.0}\"",
        2.0 * wide,
        2.0 * high
    );
    let paper = format!(
        "<rect x=\"-{MARGIN}\" y=\"-{MARGIN}\" width=\"{wide}\" height=\"{high}\" class=\"paper\"/>"
    );
    format!("{}>\n<style>{STYLE}</style>\n{paper}{rest}\n", head.replace(&from, &to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{BackendKind, Ceilings, GemmCeilings, RooflineBound, SCHEMA};

    fn row(
        op: &str,
        case: &str,
        shape: &[(&str, u64)],
        peer: Option<&str>,
        millis: f64,
    ) -> BenchRow {
        BenchRow {
            op: op.into(),
            case: case.into(),
            shape: shape.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect(),
            dtype: "bf16".into(),
            backend: BackendKind::Cuda,
            variant: peer.map_or("hopper_wide", |peer| peer).into(),
            samples: 9,
            replays: 1,
            samples_ms: Vec::new(),
            median_ms: millis,
            p95_ms: millis,
            gflops: 1e6 / millis,
            gbps: 1.0,
            bound: RooflineBound::Compute,
            pct_of_ceiling: None,
            against: None,
            cache_resident: false,
            verified_rel_err: 1e-3,
            reference_ms: None,
            dense_ms: None,
            peer: peer.map(|_| "torch 2.11.0".to_owned()),
            evidence: String::new(),
        }
    }

    fn names(rows: Vec<BenchRow>) -> Vec<String> {
        let ceilings = Ceilings {
            backend: BackendKind::Cuda,
            copy_gbps: 1.0,
            gemm_gflops: GemmCeilings { f32: None, bf16: None },
            gemm_by: None,
            read_gbps: None,
            raised: Vec::new(),
        };
        let report = BenchReport {
            schema: SCHEMA,
            ceilings: vec![ceilings],
            rows,
            not_timed: Vec::new(),
            not_applicable: Vec::new(),
            not_run: Vec::new(),
            conditions: Vec::new(),
        };
        let pictures = bench_pictures(&report, "NVIDIA H200");
        for Picture { name, svg } in &pictures {
            assert!(
                svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"),
                "{name}: {svg}"
            );
            assert!(svg.contains("xmlns=\"http://www.w3.org/2000/svg\""), "{name}");
            assert!(!svg.contains("NaN\"") && !svg.contains("inf"), "{name}: {svg}");
        }
        pictures.into_iter().map(|picture| picture.name).collect()
    }

    #[test]
    fn a_sweep_gives_rates_and_gains_and_a_single_shape_nothing() {
        let attention = |dim: u64, peer, millis| {
            let shape = [("B", 1), ("H", 48), ("Tq", 8192), ("D", dim), ("Dv", dim)];
            row("attention", &format!("prefill-8192-d{dim}"), &shape, peer, millis)
        };
        let efficient = Some("torch.sdpa.efficient");
        assert_eq!(names(vec![attention(320, None, 1.0)]), Vec::<String>::new());
        let shape = "attention-prefill-b1-h48-tq8192-bf16";
        assert_eq!(
            names(vec![
                attention(320, None, 1.0),
                attention(320, efficient, 2.0),
                attention(384, None, 1.5),
                attention(384, efficient, 3.0),
            ]),
            [format!("{shape}-tflops-nvidia-h200"), format!("{shape}-speedup-nvidia-h200")]
        );
        // Without the peer that speed-ups are relative to there is no speed-up to show.
        assert_eq!(
            names(vec![attention(320, None, 1.0), attention(384, None, 1.5)]),
            [format!("{shape}-tflops-nvidia-h200")]
        );
        let kda = |tokens: u64, millis| {
            let shape = [("B", 1), ("T", tokens), ("H", 32)];
            row("kda", &format!("prefill-{tokens}"), &shape, None, millis)
        };
        assert_eq!(
            names(vec![kda(2048, 1.0), kda(8192, 4.0)]),
            ["kda-prefill-b1-h32-bf16-millis-nvidia-h200"]
        );
    }

    #[test]
    fn floors_follow_from_the_ceilings() {
        let kda = row("kda", "prefill-2048", &[("T", 2048)], None, 2.0);
        let ceilings = |backend, bf16| Ceilings {
            backend,
            copy_gbps: 4.0,
            gemm_gflops: GemmCeilings { f32: Some(1.0), bf16 },
            gemm_by: None,
            read_gbps: None,
            raised: Vec::new(),
        };
        let drawn = |ceilings: &[Ceilings]| -> Vec<Vec<(f64, f64)>> {
            let rows = BTreeMap::from([(2048, &kda)]);
            floors(&rows, ceilings).into_iter().map(|series| series.points).collect()
        };
        // 2 ms at 1 GB/s of 4, and at 5e5 GFLOP/s of 1e6.
        let both = ceilings(BackendKind::Cuda, Some(1e6));
        assert_eq!(drawn(&[both]), [[(2048.0, 0.5)], [(2048.0, 1.0)]]);
        assert_eq!(drawn(&[ceilings(BackendKind::Cuda, None)]), [[(2048.0, 0.5)]]);
        assert!(drawn(&[ceilings(BackendKind::Cpu, Some(1e6))]).is_empty());
    }

    #[test]
    fn the_baseline_is_drawn_at_its_own_shape_alone() {
        let shape = |heads| {
            BTreeMap::from(
                [("B", 1), ("H", heads), ("Tq", 8192), ("Tk", 8192)]
                    .map(|(name, size)| (name.to_owned(), size)),
            )
        };
        let labels: Vec<String> =
            bands("attention", &shape(48)).into_iter().map(|band| band.label).collect();
        assert_eq!(labels.len(), 3);
        assert!(labels.iter().all(|label| label.contains("field report")), "{labels:?}");
        assert!(bands("attention", &shape(32)).is_empty());
        assert!(bands("kda", &shape(48)).is_empty());
    }
}
