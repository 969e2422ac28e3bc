use super::Rule;
use super::clocks_held_down::ALARMS;
use facts::CompactSort;
use facts::{Confidence, Finding, GpuLoad, GpusReport, Severity, SustainedReport};

pub(super) const RULE: Rule = Rule {
    id: "gpu-under-load",
    title: "a GPU slows down, or computes wrongly, under load",
    about: "\
A GPU that is fast for a second can be slow for an hour: it heats up, its power supply is too weak, or it shares a
cooler with a hotter GPU. Bits that flip only when it is hot become a wrong loss days later.

`firstlight check` runs a large matrix product on all GPUs at the same time for some seconds, samples power, clocks,
temperatures and throttle reasons twice a second, and verifies the product before and after. A GPU is reported if its
rate in the second half is more than 3 % below the median of its siblings, if its clocks are throttled for another
reason than the power cap, or if the product is wrong.

Check fans, airflow and power cables; do not use a GPU whose product is wrong.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    remedy: |_| commands(0),
    check_gpus: Some(|gpus: &GpusReport| {
        let report = gpus.sustained.as_ref();
        report.map(|report| {
            let of_each = report.gpus.iter().filter_map(|gpu| judge(report, gpu));
            of_each.chain(ended(report)).collect()
        }).unwrap_or_default()
    }),
    ..Rule::BLANK
};

/// Lowest accepted fraction of the siblings' median rate.
const OF_SIBLINGS: f64 = 0.97;
const SOURCE: &str = "gpus.json";

fn judge(report: &SustainedReport, gpu: &GpuLoad) -> Option<Finding> {
    let who = format!("GPU {} ({})", gpu.gpu, gpu.name);
    if let Some(why) = &gpu.wrong {
        let title = format!("a product on {who} is wrong, or could not be computed");
        let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
        let draft = draft.evidence(why, SOURCE).evidence(report.product.clone(), SOURCE);
        let cause = "The GPU computed a wrong result or failed, from the start or when it was hot.";
        return Some(draft.cause(cause).fix(commands(gpu.gpu)).finish());
    }
    let rate = gpu.warm_tflops()?;
    let others = report.gpus.iter().filter(|other| other.gpu != gpu.gpu && other.name == gpu.name);
    let mut others: Vec<f64> = others.filter_map(GpuLoad::warm_tflops).collect();
    others.compact_sort_by(f64::total_cmp);
    let usual = others.get(others.len() / 2).copied();
    let slow = usual.filter(|usual| rate < OF_SIBLINGS * usual);
    let alarm = ALARMS.iter().find_map(|(name, why)| {
        let times =
            gpu.states.iter().filter(|state| state.held_down_by.iter().any(|it| it == name));
        Some(times.count()).filter(|times| *times > 0).map(|times| (*name, *why, times))
    });
    let title = match (slow, alarm) {
        (Some(usual), _) => format!(
            "{who} is slower than its siblings under load: {rate:.0} TFLOP/s, theirs is {usual:.0}"
        ),
        (None, Some((_, why, _))) => format!("the clocks of {who} are held down under load: {why}"),
        (None, None) => return None,
    };
    let mut draft = RULE.finding(Severity::Warning, Confidence::Certain, title);
    if let Some(usual) = slow {
        let what = format!("{rate:.1} TFLOP/s in the second half, the siblings {usual:.1}");
        draft = draft.evidence(what, SOURCE);
    }
    if let Some((name, _, times)) = alarm {
        draft =
            draft.evidence(format!("{name} in {times} of {} samples", gpu.states.len()), SOURCE);
    }
    let hottest = gpu.states.iter().filter_map(|state| state.celsius).max();
    let slowest = gpu.states.iter().filter_map(|state| state.sm_mhz).min();
    for (value, unit) in [(hottest, "°C at most"), (slowest, "MHz at least")] {
        if let Some(value) = value {
            draft = draft.evidence(format!("{value} {unit}"), SOURCE);
        }
    }
    let cause = "It is too hot, gets too little power, or its board is worse than the others'.";
    Some(draft.cause(cause).fix(commands(gpu.gpu)).finish())
}

fn ended(report: &SustainedReport) -> Option<Finding> {
    let why = report.broke.as_ref()?;
    let title = "the matrix product on all GPUs at once did not finish";
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let cause = "A GPU stopped answering under load, or its process was ended.";
    Some(draft.evidence(why, "the process that computes").cause(cause).fix(commands(0)).finish())
}

/// Commands to diagnose the GPU with this index.
fn commands(gpu: u32) -> Vec<String> {
    vec![
        format!("nvidia-smi --query --display=CLOCK,PERFORMANCE,POWER,TEMPERATURE --id={gpu}"),
        "sudo dmesg | grep -E 'NVRM|Xid'".to_owned(),
        "firstlight check --sustain 300".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::run_on_gpus;
    use facts::{GpuLoad, GpusReport, LoadRate, LoadState, SCHEMA, Severity, SustainedReport};

    #[test]
    fn names_gpus_that_slow_down_under_load() {
        let load = |gpu: u32| {
            let rate = |at: u32| LoadRate { seconds: f64::from(at), tflops: 650.0 };
            let state = |at: u32| LoadState {
                seconds: f64::from(at),
                celsius: Some(60 + at),
                held_down_by: vec!["SW_POWER_CAP".into()],
                ..LoadState::default()
            };
            let (rates, states) = ((1..21).map(rate).collect(), (1..21).map(state).collect());
            GpuLoad { gpu, name: "NVIDIA H100".into(), products: 9000, rates, states, wrong: None }
        };
        let check = |change: &dyn Fn(&mut SustainedReport), expect: Option<(Severity, &str)>| {
            let mut report =
                SustainedReport { gpus: (0..2).map(load).collect(), ..SustainedReport::default() };
            change(&mut report);
            let (gpus, kinds) = (Vec::new(), Vec::new());
            let found = run_on_gpus(&GpusReport {
                schema: SCHEMA,
                gpus,
                kinds,
                fabric: None,
                sustained: Some(report),
            });
            assert_eq!(found.len(), usize::from(expect.is_some()), "{found:?}");
            for (finding, (severity, words)) in found.iter().zip(expect) {
                assert_eq!(finding.severity, severity);
                assert!(format!("{finding:?}").contains(words), "no {words} in {finding:?}");
            }
        };
        check(&|_| (), None);
        // The first half, in which the GPUs warm up, does not count.
        check(&|report| report.gpus[1].rates[..9].iter_mut().for_each(|it| it.tflops = 99.0), None);
        let slow = |report: &mut SustainedReport| {
            report.gpus[1].rates[8..].iter_mut().for_each(|it| it.tflops = 600.0);
        };
        let words = "GPU 1 (NVIDIA H100) is slower than its siblings under load: 600 TFLOP/s, theirs is 650";
        check(&slow, Some((Severity::Warning, words)));
        let hot = |report: &mut SustainedReport| {
            report.gpus[0].states[19].held_down_by.push("HW_THERMAL_SLOWDOWN".into());
        };
        check(&hot, Some((Severity::Warning, "HW_THERMAL_SLOWDOWN in 1 of 20 samples")));
        check(&hot, Some((Severity::Warning, "80 °C at most")));
        let wrong = |report: &mut SustainedReport| report.gpus[0].wrong = Some("NaN".into());
        check(&wrong, Some((Severity::Error, "a product on GPU 0 (NVIDIA H100) is wrong")));
        let broke = |report: &mut SustainedReport| report.broke = Some("signal: 9".into());
        check(&broke, Some((Severity::Error, "did not finish")));
    }
}
