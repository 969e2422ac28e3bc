use super::svg::{Anchor, Svg, WIDTH};
use crate::format;

/// The rate from one GPU to another.
pub(crate) struct PairRate {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// `None` if the transfer was wrong or not measured: it has a dash and no mark.
    pub(crate) rate: Option<f64>,
}

/// Position of the first cell, and the size of cells.
const LEFT: f64 = 58.0;
const TOP: f64 = 52.0;
const CELL: f64 = 46.0;
/// A rate below this share of the highest is marked as bad.
const BAD: f64 = 0.9;

/// A matrix of rates: the row is the sender, the column the receiver. A larger square is a higher rate, which is
/// printed below it.
pub(crate) fn pairs(
    id: &str,
    title: &str,
    unit: &str,
    names: &[String],
    rates: &[PairRate],
) -> String {
    let known = |pair: &PairRate| pair.rate.filter(|rate| rate.is_finite());
    let most = rates.iter().filter_map(known).fold(0.0, f64::max);
    let said = |pair: &PairRate| {
        let rate = known(pair).map_or("not measured".to_owned(), |rate| {
            format!("{} {unit}", format::significant(rate, 3))
        });
        format!("{} to {}: {rate}", names[pair.from], names[pair.to])
    };
    let described: Vec<String> = rates.iter().map(said).collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));
    let each = (WIDTH - LEFT) / names.len().max(1) as f64;
    let middle = |at: usize| LEFT + each * (at as f64 + 0.5);
    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    svg.text(0.0, 32.0, Anchor::Start, "muted", &format!("{unit}, from the row to the column"));
    for (at, name) in names.iter().enumerate() {
        let y = TOP + CELL * at as f64;
        svg.line((0.0, y), (WIDTH, y), "grid");
        svg.label(0.0, y + CELL / 2.0 + 4.5, LEFT - 8.0, "", name);
        svg.text(middle(at), TOP - 6.0, Anchor::Middle, "", name);
    }
    for pair in rates {
        let (x, y) = (middle(pair.to), TOP + CELL * pair.from as f64);
        let Some(rate) = known(pair) else {
            svg.text(x, y + CELL / 2.0 + 4.5, Anchor::Middle, "muted", format::ABSENT);
            continue;
        };
        let share = if most > 0.0 { (rate / most).clamp(0.0, 1.0) } else { 0.0 };
        let side = (CELL - 22.0) * share.sqrt();
        let class = if share < BAD { "bad" } else { "s1" };
        svg.rect(
            x - side / 2.0,
            y + 3.0 + (CELL - 22.0 - side) / 2.0,
            side,
            side,
            class,
            &said(pair),
        );
        svg.text(x, y + CELL - 5.0, Anchor::Middle, "muted", &format::significant(rate, 3));
    }
    let bottom = TOP + CELL * names.len() as f64;
    let words = format!("red: below {:.0} % of the fastest", 100.0 * BAD);
    svg.text(WIDTH, bottom + 18.0, Anchor::End, "muted", &words);
    svg.finish(bottom + 26.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_a_square_and_slow_pairs_are_marked() {
        let pair = |from, to, rate| PairRate { from, to, rate };
        let rates = [pair(0, 1, Some(390.0)), pair(1, 0, Some(200.0)), pair(0, 2, None)];
        let names = ["GPU 0", "GPU 1", "GPU 2"].map(str::to_owned);
        let svg = pairs("x", "copies", "GB/s", &names, &rates);
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"bad\"").count(), 1, "{svg}");
        assert!(svg.contains("GPU 1 to GPU 0: 200 GB/s"), "{svg}");
        assert!(svg.contains("GPU 0 to GPU 2: not measured"), "{svg}");
        assert!(!pairs("x", "none", "GB/s", &names, &[]).contains("NaN"));
    }
}
