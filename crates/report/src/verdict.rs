use crate::counts::Counts;
use crate::document::Tone;
use crate::format;
use crate::run::Run;
use crate::sections::unexplained_problems;
use facts::{
    BackendKind, Coverage, DoctorReport, GpuCoverage, GpusReport, Machine, ParityReport, ParityRow,
    Platform, RunState, Severity, Status,
};

/// The verdict on a run, worst first. It is computed from counts; there is no word for "excellent".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The run is incomplete.
    Incomplete,
    /// A check failed, a pass lacks its evidence, or a finding is an error.
    Failing,
    /// Nothing failed, and no kernel was compared with the reference.
    NotVerified,
    /// There is a GPU, and no check passed on it.
    GpuNotVerified,
    /// Kernels passed and none failed; something was skipped, not run, or has a warning.
    Partial,
    /// Everything passed, and this process sees no GPU: only the CPU kernels were verified.
    ProcessorOnly,
    /// Every check that can run here ran and passed, on a GPU too, and nothing was omitted.
    Verified,
}

impl Verdict {
    /// The verdict on a run.
    pub fn of(run: &Run<'_>) -> Self {
        let counts = Counts::of(run.parity.iter().flat_map(|parity| &parity.rows));
        let found =
            |severity| run.doctor.findings.iter().any(|finding| finding.severity == severity);
        let problems = unexplained_problems(run.doctor).next().is_some();
        let left_out = counts.skip > 0
            || !run.manifest.not_run.is_empty()
            || run.bench.is_some_and(|bench| !bench.not_timed.is_empty())
            || run.model_speed.is_some_and(|model| !model.not_timed.is_empty());
        if run.manifest.state == RunState::Incomplete {
            Self::Incomplete
        } else if counts.bad() > 0 || found(Severity::Error) {
            Self::Failing
        } else if counts.pass == 0 {
            Self::NotVerified
        } else {
            match coverage(run.doctor, run.parity).gpu {
                GpuCoverage::NotVerified => Self::GpuNotVerified,
                _ if left_out || found(Severity::Warning) || problems => Self::Partial,
                GpuCoverage::NoneVisible => Self::ProcessorOnly,
                GpuCoverage::Verified => Self::Verified,
            }
        }
    }

    /// Whether no problem of the verified kernels is known.
    pub fn is_good(self) -> bool {
        !matches!(self, Self::Incomplete | Self::Failing | Self::NotVerified)
    }

    /// The verdict as a phrase.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Failing => "problems found",
            Self::NotVerified => "kernels not verified",
            Self::GpuNotVerified => "GPU not verified",
            Self::Partial => "verified in part",
            Self::ProcessorOnly => "processor verified, no GPU",
            Self::Verified => "verified",
        }
    }

    pub(crate) fn tone(self) -> Tone {
        match self {
            Self::Incomplete | Self::Failing => Tone::Bad,
            Self::NotVerified | Self::GpuNotVerified | Self::Partial | Self::ProcessorOnly => {
                Tone::Warn
            }
            Self::Verified => Tone::Good,
        }
    }
}

/// The devices whose kernels a run checked.
pub fn coverage(doctor: &DoctorReport, parity: Option<&ParityReport>) -> Coverage {
    let rows = parity.map_or(&[][..], |parity| &parity.rows);
    let proven = |row: &&ParityRow| {
        row.peer.is_none() && row.status == Status::Pass && evidence_gap(row).is_none()
    };
    let mut backends: Vec<BackendKind> = Vec::new();
    for row in rows.iter().filter(proven) {
        if !backends.contains(&row.backend) {
            backends.push(row.backend);
        }
    }
    let gpu = if backends.iter().any(|backend| *backend != BackendKind::Cpu) {
        GpuCoverage::Verified
    } else if doctor.machine.gpus.is_empty() {
        GpuCoverage::NoneVisible
    } else {
        GpuCoverage::NotVerified
    };
    Coverage { backends, gpu }
}

/// `Verified: the kernels on NVIDIA H200 and the processor's.`
pub(crate) fn scope(run: &Run<'_>) -> String {
    let Coverage { backends, gpu } = coverage(run.doctor, run.parity);
    let machine = &run.doctor.machine;
    let gpus = gpus(machine);
    let whose: Vec<String> = [BackendKind::Cuda, BackendKind::Metal, BackendKind::Cpu]
        .into_iter()
        .filter(|backend| backends.contains(backend))
        .map(|backend| match backend {
            BackendKind::Cpu => "the processor's kernels".to_owned(),
            _ => match (checked(run.gpus), machine.gpus.first()) {
                (Some(gpus), _) => format!("the kernels on {gpus}"),
                (None, Some(gpu)) => format!("the kernels on {}", gpu.name.value),
                (None, None) => format!("the kernels on {backend}"),
            },
        })
        .collect();
    let verified = match whose.as_slice() {
        [] => "No kernel was verified".to_owned(),
        whose => format!("Verified: {}", whose.join(" and ")),
    };
    let of_gpu = match gpu {
        GpuCoverage::Verified => "",
        // Unknown in a run without facts.
        GpuCoverage::NoneVisible if machine.platform == Platform::Unknown => "",
        GpuCoverage::NoneVisible => "; no GPU is visible to this process",
        GpuCoverage::NotVerified => {
            return format!("{verified}; nothing was verified on {gpus}.");
        }
    };
    format!("{verified}{of_gpu}.")
}

/// The GPUs on which checks passed, by recorded name.
fn checked(report: Option<&GpusReport>) -> Option<String> {
    let passed = report?.gpus.iter().filter(|gpu| gpu.passed > 0);
    Some(counted(passed.map(|gpu| gpu.name.as_str()))).filter(|names| !names.is_empty())
}

/// `NVIDIA H200`, `8 × NVIDIA H200`, or nothing.
pub(crate) fn gpus(machine: &Machine) -> String {
    counted(machine.gpus.iter().map(|gpu| gpu.name.value.as_str()))
}

fn counted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let word = |(name, count): &(&str, usize)| match count {
        1 => (*name).to_owned(),
        count => format!("{count} × {name}"),
    };
    counts.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// A run's GPUs and their driver in one line, or that there is no GPU.
pub fn headline(machine: &Machine) -> String {
    let driver = machine.driver.as_ref().and_then(|driver| driver.version());
    let driver = driver.map(|version| format!(", driver {}", version.value)).unwrap_or_default();
    match gpus(machine).as_str() {
        "" if machine.platform == Platform::Unknown => "A machine that was not recorded".to_owned(),
        "" => format!("No GPU visible{driver}"),
        gpus => format!("{gpus}{driver}"),
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The missing evidence of a row with status PASS: a counted launch, an error, or an error within its tolerance. `None`
/// for a proven pass and for every other status.
pub fn evidence_gap(row: &ParityRow) -> Option<String> {
    if row.status != Status::Pass {
        return None;
    }
    match row.rel_err {
        _ if row.launches == 0 => Some("no launch was counted".to_owned()),
        None => Some("no error was computed".to_owned()),
        // Comparisons with NaN are false, so it is detected here as well.
        Some(error) if error.is_nan() || error > row.tolerance => Some(format!(
            "its error {} is above the {} allowed",
            format::error(error),
            format::error(row.tolerance)
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::BackendKind;

    #[test]
    fn pass_needs_a_launch_and_an_error_within_tolerance() {
        let check = |status, launches, rel_err, expect: Option<&str>| {
            let row = ParityRow {
                op: "ssd".into(),
                case: "x".into(),
                backend: BackendKind::Cpu,
                variant: "chunk".into(),
                dtype: "f32".into(),
                status,
                reason: String::new(),
                rel_err,
                max_err: None,
                tolerance: 1e-3,
                launches,
                millis: 1.0,
                peer: None,
                evidence: String::new(),
                bits: None,
            };
            assert_eq!(evidence_gap(&row).as_deref(), expect);
        };
        check(Status::Pass, 1, Some(1e-3), None);
        check(Status::Pass, 0, Some(1e-9), Some("no launch was counted"));
        check(Status::Pass, 2, None, Some("no error was computed"));
        check(Status::Pass, 2, Some(f64::NAN), Some("its error NaN is above the 1.0e-3 allowed"));
        check(Status::Pass, 2, Some(2e-3), Some("its error 2.0e-3 is above the 1.0e-3 allowed"));
        check(Status::Skip, 0, None, None);
        check(Status::Fail, 0, Some(f64::NAN), None);
    }
}
