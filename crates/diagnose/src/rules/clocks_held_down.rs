use super::{Context, Rule, Text};
use crate::gpu::nvidia;
use crate::host;
use facts::{Confidence, Finding, Gpu, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "clocks-held-down",
    title: "a GPU's clocks are held down",
    about: "\
A GPU throttles its clocks when it is too hot (thermal slowdown), when the power supply signals it (power brake), or to
stay within its power cap. The power cap is normal under full load; the other two reduce its speed by half or more and
mean that cooling or power is insufficient. An administrator may also have set a power cap below the default, or an
application clock.

It shows as kernels that are slower than on a sibling, and in nvidia-smi -q as
  HW Thermal Slowdown : Active

Detected by asking NVML for the current throttle reasons, and by comparing the power cap with the board's default.

Check fans, airflow and the power cables; reset a power cap or clock that was not set on purpose.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    texts: &[Text::new("HW Thermal Slowdown : Active", "            HW Thermal Slowdown           : Active")],
    remedy: |seen| inspect(seen.machine()),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// NVML's throttle reasons that indicate a fault, each with its meaning. HW_SLOWDOWN is also set with either of the
/// first two.
pub(super) const ALARMS: [(&str, &str); 4] = [
    ("HW_POWER_BRAKE_SLOWDOWN", "the power supply asks for less"),
    ("HW_THERMAL_SLOWDOWN", "it is too hot, by its own circuits"),
    ("SW_THERMAL_SLOWDOWN", "it is too hot, by the driver"),
    ("HW_SLOWDOWN", "its own circuits lower the clocks"),
];
/// The throttle reason for an application clock that a user set.
const SET: &str = "APPLICATIONS_CLOCKS_SETTING";

fn inspect(machine: &Machine) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    lines.push("nvidia-smi --query --display=PERFORMANCE,TEMPERATURE,POWER,CLOCK".into());
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    nvidia(machine).flat_map(|gpu| [alarm(machine, gpu), setting(machine, gpu)]).flatten().collect()
}

fn alarm(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let held = gpu.health.held_down_by.as_ref()?;
    let (name, why) = ALARMS.iter().find(|(name, _)| held.value.iter().any(|it| it == name))?;
    let title =
        format!("the clocks of GPU {} ({}) are held down: {why}", gpu.index, gpu.name.value);
    let mut draft = RULE
        .finding(Severity::Warning, Confidence::Certain, title)
        .evidence(held.value.join(", "), held.source.clone());
    if let Some(celsius) = &gpu.health.celsius {
        draft = draft.evidence(format!("{} °C", celsius.value), celsius.source.clone());
    }
    if let Some(clock) = &gpu.health.sm_mhz {
        draft = draft.evidence(format!("{} MHz", clock.value), clock.source.clone());
    }
    let cause = if name.contains("POWER") {
        "The power supply or its cables do not deliver the power the GPU needs, and it runs at a fraction of its clock."
    } else {
        "The GPU is not cooled enough for its load, and runs at a fraction of its clock until it is."
    };
    Some(draft.cause(cause).fix(inspect(machine)).finish())
}

fn setting(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let health = &gpu.health;
    let cap = health.power_cap_milliwatts.as_ref().zip(health.power_default_milliwatts.as_ref());
    let lowered = cap.filter(|(cap, usual)| cap.value < usual.value);
    let clock = health.held_down_by.as_ref().filter(|held| held.value.iter().any(|it| it == SET));
    if lowered.is_none() && clock.is_none() {
        return None;
    }
    let title = format!("GPU {} ({}) is set to less than it can do", gpu.index, gpu.name.value);
    let mut draft = RULE.finding(Severity::Info, Confidence::Certain, title);
    let mut fix = inspect(machine);
    if let Some((cap, usual)) = lowered {
        let what = format!("power cap {} W of {} W", cap.value / 1000, usual.value / 1000);
        draft = draft.evidence(what, cap.source.clone());
        let watts = usual.value / 1000;
        fix.push(format!("sudo nvidia-smi --id={} --power-limit={watts}", gpu.index));
    }
    if let Some(held) = clock {
        draft = draft.evidence(SET, held.source.clone());
        fix.push(format!("sudo nvidia-smi --id={} --reset-applications-clocks", gpu.index));
    }
    let cause = "A power cap or a clock below the default was set; it slows down kernels limited by power or clock rate.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let held = |names: &[&str]| {
            let mut machine = machines::h200();
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let health = &mut machine.gpus[0].health;
            health.held_down_by = Some(Fact::new(names, "NVML"));
            health.celsius = Some(Fact::new(91, "NVML nvmlDeviceGetTemperature"));
            machine
        };
        let mut capped = machines::h200();
        capped.gpus[0].health.power_cap_milliwatts = Some(Fact::new(500_000, "NVML"));
        capped.gpus[0].health.power_default_milliwatts = Some(Fact::new(700_000, "NVML"));
        let case = |what, machine| Case::new(what, machine, Vec::new());
        vec![
            case("too hot", held(&["HW_SLOWDOWN", "HW_THERMAL_SLOWDOWN"])).finds(
                Warning,
                Certain,
                &["too hot, by its own circuits", "91 °C", "not cooled enough"],
            ),
            case("too little power", held(&["HW_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN"])).finds(
                Warning,
                Certain,
                &["the power supply asks for less"],
            ),
            case("a lowered cap", capped).finds(
                Info,
                Certain,
                &["power cap 500 W of 700 W", "--power-limit=700"],
            ),
            case("a set clock", held(&[SET])).finds(
                Info,
                Certain,
                &["--reset-applications-clocks"],
            ),
            case("at full work", held(&["SW_POWER_CAP"])),
            case("not throttled", held(&[])),
            case("no throttle reasons were read", machines::h200()),
        ]
    }
}
