//! Measurements of several GPUs together, in text shared by terminal and documents.

use crate::format;
use facts::CompactSort;
use facts::{Collective, CollectiveKind, FabricReport, GpuLoad, PeerCopy, SustainedReport};

/// A matrix of copies: a row for each sender, a value for each receiver, `X` on the diagonal.
pub(crate) fn matrix(
    fabric: &FabricReport,
    value: impl Fn(&PeerCopy) -> Option<f64>,
) -> Vec<Vec<String>> {
    let cell = |from: u32, to: u32| {
        let copy = fabric.copies.iter().find(|copy| (copy.from, copy.to) == (from, to));
        match copy {
            _ if from == to => "X".to_owned(),
            Some(copy) if copy.wrong > 0 => "wrong".to_owned(),
            copy => rate(copy.and_then(&value)),
        }
    };
    let line = |from: &u32| fabric.gpus.iter().map(|to| cell(*from, *to)).collect();
    fabric.gpus.iter().map(line).collect()
}

/// A rate, or a dash.
pub(crate) fn rate(value: Option<f64>) -> String {
    value.map_or(format::ABSENT.to_owned(), |value| format::significant(value, 3))
}

/// The collectives: a row for each size, with values in the order of [`CollectiveKind::ALL`].
pub(crate) fn sizes(fabric: &FabricReport) -> Vec<(u64, Vec<Option<&Collective>>)> {
    // If the number of ranks does not divide a size, rows are a little shorter.
    let all = fabric.collectives.iter().filter(|it| it.kind == CollectiveKind::AllReduce);
    let mut sizes: Vec<u64> = all.map(|it| it.bytes).collect();
    sizes.compact_sort();
    let near = |size: u64, kind: CollectiveKind| {
        let mut of_kind = fabric.collectives.iter().filter(|it| it.kind == kind);
        of_kind.find(|it| it.bytes <= size && it.bytes > size - size / 4)
    };
    let line = |size: u64| (size, CollectiveKind::ALL.map(|kind| near(size, kind)).to_vec());
    sizes.into_iter().map(line).collect()
}

/// The measurements between the GPUs, one sentence each.
pub(crate) fn sentences(fabric: &FabricReport) -> Vec<String> {
    let mut out = Vec::new();
    let rates = || fabric.copies.iter().filter_map(|copy| Some((copy, copy.gbps?)));
    let slowest = rates().min_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((copy, gbps)) = slowest {
        let limit = copy.links.as_ref().map(|links| {
            format!(
                ", {} of what {} carry",
                format::percent(100.0 * gbps / links.gbps),
                links.words
            )
        });
        let (from, to) = (copy.from, copy.to);
        let which = if fabric.gpus.len() > 2 { "The slowest copy" } else { "A copy" };
        out.push(format!(
            "{which} from GPU {from} to GPU {to} has {} GB/s{}.",
            format::significant(gbps, 3),
            limit.unwrap_or_default()
        ));
    }
    let sums = fabric.collectives.iter().filter(|it| it.kind == CollectiveKind::AllReduce);
    let largest = sums.filter_map(|it| Some((it, it.bus_gbps?))).max_by_key(|(it, _)| it.bytes);
    if let Some((sum, bus)) = largest {
        let limit = fabric.links.as_ref().map(|links| {
            format!(", {} of what {} carry", format::percent(100.0 * bus / links.gbps), links.words)
        });
        out.push(format!(
            "NCCL's all-reduce of {} has a bus bandwidth of {} GB/s{}.",
            format::cache_size(sum.bytes),
            format::significant(bus, 3),
            limit.unwrap_or_default()
        ));
    }
    for sum in &fabric.recorded {
        let size = format::cache_size(sum.bytes);
        let time = match sum.micros {
            Some(micros) => format!("takes {} µs", format::significant(micros, 3)),
            None => "is wrong".to_owned(),
        };
        out.push(format!("A sum of {size} inside a recorded graph, by {}, {time}.", sum.by));
    }
    for left in &fabric.left_out {
        out.push(format!("Not measured: {}: {}.", left.what, left.why));
    }
    if let Some(why) = &fabric.broke {
        out.push(format!("It did not finish: {why}."));
    }
    out
}

/// One sentence on each GPU under load.
pub(crate) fn loads(report: &SustainedReport) -> Vec<String> {
    let mut out: Vec<String> = report.gpus.iter().map(load).collect();
    if let Some(why) = &report.broke {
        out.push(format!("The product on all GPUs did not finish: {why}."));
    }
    out
}

fn load(gpu: &GpuLoad) -> String {
    let who = format!("GPU {}", gpu.gpu);
    if let Some(why) = &gpu.wrong {
        return format!("{who} has no rate under load: {why}.");
    }
    let Some(rate) = gpu.warm_tflops() else {
        return format!("{who} was not measured under load.");
    };
    let mut words = format!("{who} keeps {} TFLOP/s", format::significant(rate, 3));
    let warm = &gpu.states[gpu.states.len() / 2..];
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let watts = mean(warm.iter().filter_map(|state| state.watts).collect());
    let clock = mean(warm.iter().filter_map(|state| state.sm_mhz).map(f64::from).collect());
    let celsius = gpu.states.iter().filter_map(|state| state.celsius).max();
    let told: Vec<String> = [
        watts.map(|watts| format!("{watts:.0} W")),
        clock.map(|clock| format!("{clock:.0} MHz")),
        celsius.map(|celsius| format!("{celsius} °C at most")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !told.is_empty() {
        words.push_str(&format!(" at {}", told.join(", ")));
    }
    let mut held: Vec<&String> = gpu.states.iter().flat_map(|state| &state.held_down_by).collect();
    held.compact_sort();
    held.dedup();
    if !held.is_empty() {
        let names: Vec<String> =
            held.iter().map(|name| name.replace('_', " ").to_lowercase()).collect();
        words.push_str(&format!("; held down by {}", names.join(", ")));
    }
    words + "."
}

/// Records for tests.
#[cfg(test)]
pub(crate) mod records {
    use super::*;
    use facts::{LinkLimit, LoadRate, LoadState, RecordedSum, UnmeasuredFabric};

    pub(crate) fn fabric(count: u32) -> FabricReport {
        let links = LinkLimit {
            gbps: 478.1,
            words: "18 NVLinks of 26.6 GB/s".into(),
            source: "NVML".into(),
        };
        let copy = |from: u32, to: u32| PeerCopy {
            from,
            to,
            direct: true,
            bytes: 256 << 20,
            gbps: (to != 2).then(|| 390.0 - f64::from(from)),
            both_gbps: Some(760.0),
            micros: Some(2.5),
            wrong: u64::from(to == 2),
            links: Some(links.clone()),
        };
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let sum = |kind, bytes: u64| Collective {
            kind,
            bytes,
            micros: Some(12.0),
            algorithm_gbps: Some(bytes as f64 / 12e3),
            bus_gbps: Some(bytes as f64 / 12e3),
            wrong: 0,
        };
        let sizes = [16 << 10, 4 << 20];
        FabricReport {
            gpus: (0..count).collect(),
            nccl: Some("NCCL 2.28.9 at /lib/libnccl.so.2".into()),
            copies: pairs
                .filter(|(from, to)| from != to)
                .map(|(from, to)| copy(from, to))
                .collect(),
            collectives: CollectiveKind::ALL
                .into_iter()
                .flat_map(|kind| sizes.map(|bytes| sum(kind, bytes)))
                .collect(),
            recorded: vec![RecordedSum {
                by: "decoder.join_peers".into(),
                bytes: 16 << 10,
                micros: Some(4.25),
                wrong: 0,
            }],
            links: Some(links),
            left_out: vec![UnmeasuredFabric { what: "a".into(), why: "b".into() }],
            broke: None,
            seconds: 2.0,
        }
    }

    pub(crate) fn sustained(count: u32) -> SustainedReport {
        let load = |gpu: u32| GpuLoad {
            gpu,
            name: "NVIDIA H100".into(),
            products: 9000,
            rates: (1..5).map(|at| LoadRate { seconds: f64::from(at), tflops: 650.0 }).collect(),
            states: (1..5)
                .map(|at| LoadState {
                    seconds: f64::from(at),
                    watts: Some(690.0),
                    sm_mhz: Some(1500),
                    celsius: Some(60 + at),
                    held_down_by: vec!["SW_POWER_CAP".into()],
                })
                .collect(),
            wrong: None,
        };
        SustainedReport {
            product: "8192 x 8192 x 8192 in bf16".into(),
            seconds: 4.0,
            gpus: (0..count).map(load).collect(),
            broke: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_with_the_links() {
        let two = sentences(&records::fabric(2));
        let expect = [
            "A copy from GPU 1 to GPU 0 has 389 GB/s, 81.4 % of what 18 NVLinks of 26.6 GB/s carry.",
            "NCCL's all-reduce of 4 MiB has a bus bandwidth of 350 GB/s, 73.1 % of what 18 NVLinks of 26.6 GB/s carry.",
            "A sum of 16 KiB inside a recorded graph, by decoder.join_peers, takes 4.25 µs.",
            "Not measured: a: b.",
        ];
        assert_eq!(two, expect);
        let mut hung = FabricReport { broke: Some("it hung".into()), ..FabricReport::default() };
        assert_eq!(sentences(&hung), ["It did not finish: it hung."]);
        // A transfer with wrong data has no rate.
        hung = records::fabric(3);
        let matrix = matrix(&hung, |copy| copy.gbps);
        assert_eq!(matrix[0], ["X", "390", "wrong"]);
        assert_eq!(matrix[2], ["388", "388", "X"]);
    }

    #[test]
    fn each_load_has_a_sentence() {
        let mut report = records::sustained(1);
        let words =
            "GPU 0 keeps 650 TFLOP/s at 690 W, 1500 MHz, 64 °C at most; held down by sw power cap.";
        assert_eq!(loads(&report), [words]);
        report.gpus[0].wrong = Some("NaN".into());
        report.broke = Some("killed".into());
        assert_eq!(loads(&report)[0], "GPU 0 has no rate under load: NaN.");
        assert_eq!(loads(&report).len(), 2);
    }
}
